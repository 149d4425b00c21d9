import pytest
import torch

from varcon.augment import AugmentSettings, augment, draw_views, prepare
from varcon.core import InputError

MEAN, STD = (1.0, -2.0, 0.0), (2.0, 0.5, 1.0)


def samples(n=50, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def draw(vectors, indices=None, seed=0, dtype=torch.float32, **settings):
    width = vectors.shape[1]
    mean, std = (MEAN, STD) if width == 3 else ((0.0,) * width, (1.0,) * width)
    settings = AugmentSettings(policy="vectors", **settings)
    return draw_views(vectors, settings, mean, std, torch.Generator().manual_seed(seed), indices, dtype)


def test_without_swaps_the_views_are_the_standardised_vectors():
    vectors, indices = samples(), torch.tensor([4, 0, 7])
    views = draw(vectors, indices, swap=0.0, views=3)
    expected = torch.stack([(vectors[i] - torch.tensor(MEAN)) / torch.tensor(STD) for i in indices])
    assert len(views) == 3
    for view in views:
        torch.testing.assert_close(view, expected)
    torch.testing.assert_close(prepare(vectors[indices], MEAN, STD), expected)


def test_a_swapped_value_is_one_of_the_same_feature():
    """Every value has its own number, so that each can be traced to where it comes from."""
    vectors = torch.arange(400.0).view(100, 4)  # feature j of sample i is 4 i + j
    views = torch.stack(draw(vectors, swap=0.3, views=20))  # [20, 100, 4]
    assert torch.equal(views % 4, torch.arange(4.0).expand_as(views))
    assert (views >= 0).all() and (views < 400).all()
    moved = (views != vectors).float()
    # 24,000 draws, of which one in a hundred finds its own sample: three deviations are 0.009.
    assert moved.mean() == pytest.approx(0.3 * 0.99, abs=0.01)
    givers = (views[moved.bool()] // 4).long().bincount(minlength=100)
    assert givers.min() > 0.5 * givers.float().mean()
    assert torch.equal(torch.stack(draw(vectors, swap=1.0)) % 4, views[:2] % 4)


def test_givers_come_from_the_whole_set_and_not_from_the_batch():
    vectors = torch.arange(60.0)[:, None].expand(60, 3).contiguous()
    view = draw(vectors, torch.tensor([0, 1]), swap=1.0, views=100)[0] * torch.tensor(STD) + torch.tensor(
        MEAN
    )
    assert view.max() > 5


def test_the_generator_decides_and_the_data_stay_as_they_are():
    vectors = samples()
    before = vectors.clone()
    one, two = draw(vectors, swap=0.5), draw(vectors, swap=0.5)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], draw(vectors, swap=0.5, seed=1)[0])
    assert torch.equal(vectors, before)
    assert draw(vectors, dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_one_view_for_evaluations():
    vectors, settings = samples(), AugmentSettings(policy="vectors", views=2)
    view = augment(vectors, settings, MEAN, STD, torch.Generator().manual_seed(0))
    assert view.shape == vectors.shape


def test_a_policy_for_the_other_kind_of_data():
    generator = torch.Generator()
    with pytest.raises(InputError, match="policy is 'sim' and the data are vectors; choose 'vectors'"):
        draw_views(samples(), AugmentSettings(), MEAN, STD, generator)
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(InputError, match="policy is 'vectors' and the data are images; choose another"):
        draw_views(images, AugmentSettings(policy="vectors"), MEAN, STD, generator)
    with pytest.raises(InputError, match=r"augment\.swap is 1\.5; it must lie in \[0, 1\]"):
        AugmentSettings(swap=1.5)
