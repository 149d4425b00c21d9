import pytest
import torch

from varcon.core import InputError, Split
from varcon.data import DataSettings, load
from varcon.data.subset import choose, few_indices, few_per_class, halves, hold_out, set_apart


@pytest.fixture(scope="module")
def digits():
    return load(DataSettings()).train


@pytest.mark.parametrize("per_class", [1, 7, 100])
def test_every_class_has_as_many_images_as_asked(digits, per_class):
    few = few_per_class(digits, per_class, seed=3)
    assert few.labels.bincount().tolist() == [per_class] * 10
    # Each is an image of the split with its own label, and none comes twice.
    known = {(bytes(i.numpy()), int(y)) for i, y in zip(digits.images, digits.labels, strict=True)}
    assert {(bytes(i.numpy()), int(y)) for i, y in zip(few.images, few.labels, strict=True)} <= known
    assert len(few_indices(digits.labels, per_class, 3).unique()) == 10 * per_class


def test_the_seed_decides_and_smaller_parts_lie_within_larger(digits):
    ten, again, other, twenty = (
        set(few_indices(digits.labels, n, seed).tolist()) for n, seed in ((10, 0), (10, 0), (10, 1), (20, 0))
    )
    assert ten == again != other
    assert ten < twenty


def test_every_image_is_as_likely_as_another():
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 1])
    drawn = torch.zeros(7)
    for seed in range(800):
        drawn[few_indices(labels, 1, seed)] += 1 / 800
    torch.testing.assert_close(drawn, torch.where(labels == 0, 1 / 3, 1 / 4), atol=0.05, rtol=0)


def test_too_many_are_refused(digits):
    with pytest.raises(InputError, match=r"500 images per class are asked for and class \d has 1\d\d"):
        few_per_class(digits, 500, seed=0)
    with pytest.raises(InputError, match="at least 1"):
        few_per_class(digits, 0, seed=0)
    with pytest.raises(InputError, match="there are none"):
        few_per_class(Split(torch.zeros(0, 3, 2, 2, dtype=torch.uint8), torch.zeros(0).long()), 1, seed=0)


def test_chosen_images_are_a_random_part():
    chosen = choose(1000, 300, seed=0)
    assert len(chosen.unique()) == 300
    assert (chosen.diff() > 0).all()
    assert chosen.double().mean() == pytest.approx(500, abs=50)
    assert torch.equal(chosen, choose(1000, 300, seed=0))
    assert not torch.equal(chosen, choose(1000, 300, seed=1))
    assert choose(5, 300, seed=0).tolist() == [0, 1, 2, 3, 4]


def test_held_out_images_are_a_share_of_each_class():
    labels = torch.tensor([0] * 10 + [1] * 100 + [2] * 2 + [3])[torch.randperm(113)]
    kept, held = hold_out(labels, 0.2, seed=0)
    assert labels[held].bincount(minlength=4).tolist() == [2, 20, 1, 0]
    assert sorted(kept.tolist() + held.tolist()) == list(range(113))
    assert labels[hold_out(labels, 0.99, seed=0)[0]].bincount().tolist() == [1, 1, 1, 1]
    assert (
        held.tolist()
        == hold_out(labels, 0.2, seed=0)[1].tolist()
        != hold_out(labels, 0.2, seed=1)[1].tolist()
    )


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_images_are_set_apart_where_they_lie(share, generator):
    images = torch.randint(0, 256, (700, 3, 2, 2), generator=generator).to(torch.uint8)
    labels = torch.randint(0, 5, (700,), generator=generator)
    kept, held = hold_out(labels, share, seed=0)
    split = Split(images.clone(), labels)
    for part, places in zip(set_apart(split, share, seed=0), (kept, held), strict=True):
        assert torch.equal(part.images, images[places]) and torch.equal(part.labels, labels[places])
        assert part.images.untyped_storage().data_ptr() == split.images.untyped_storage().data_ptr()


def test_halves_are_drawn_from_everywhere():
    """Images of a folder stand class by class."""
    (one, other), back = halves(101, seed=0)
    assert sorted([*one.tolist(), *other.tolist()]) == list(range(101))
    assert [part.tolist() for part in back] == [other.tolist(), one.tolist()]
    assert abs(len(one) - len(other)) == 1
    assert 15 < sum(place < 50 for place in one.tolist()) < 35
    assert halves(101, seed=1)[0][0].tolist() != one.tolist()
