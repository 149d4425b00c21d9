import numpy as np
import pytest
import torch
from PIL import Image

from varcon.augment import prepare
from varcon.data.assemble import available_memory, channel_statistics, feature_statistics, resize


def test_statistics_agree_with_numpy(generator: torch.Generator) -> None:
    images = torch.randint(0, 256, (150, 3, 6, 6), dtype=torch.uint8, generator=generator)
    images[:, 1] //= 4
    mean, std = channel_statistics(images)
    scaled = images.double().numpy() / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std((0, 2, 3)), rtol=1e-9)


def test_constant_images_do_not_divide_by_zero() -> None:
    mean, std = channel_statistics(torch.full((70, 3, 4, 4), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2, 0.2, 0.2))
    assert std == (1e-3, 1e-3, 1e-3)


def test_large_values_that_hardly_vary_do_not_outweigh_the_other_features(generator: torch.Generator) -> None:
    """Such as the seconds of a clock, of which float32 holds every 128th; smaller ones are as they were."""
    clock = 1.7e9 + 200 * torch.rand(500, 1, generator=generator, dtype=torch.float64)
    small = 300 + 1e-5 * torch.randn(500, 1, generator=generator, dtype=torch.float64)
    usual = 5 + 2 * torch.randn(500, 1, generator=generator, dtype=torch.float64)
    vectors = torch.cat([clock, small, usual], dim=1).float()
    assert vectors[:, 0].std() > 60
    mean, std = feature_statistics(vectors)
    assert std[1:] == pytest.approx((1, usual.std(correction=0).item()))
    spread = prepare(vectors, mean, std).std(dim=0, correction=0)
    assert spread[0] == pytest.approx(1, abs=0.01)
    assert spread[1] < 1e-4
    assert spread[2] == pytest.approx(1)


@pytest.mark.parametrize("size", [5, 8, 23])
def test_resize_agrees_with_pillow(size: int, generator: torch.Generator) -> None:
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=generator)
    for image, resized in zip(images, resize(images, size), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        oracle = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(oracle.astype(int) - resized.numpy()).max() <= 1


def test_available_memory_is_plausible() -> None:
    available = available_memory()
    assert available is None or 10**7 < available < 10**14
