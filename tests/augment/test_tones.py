"""Against Pillow, one image at a time, level by level."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from varcon.augment.tones import TONES, apply_tones, histograms


def pictures(generator):
    """Noise, a dark gradient, two levels, one colour, and a picture whose channels differ in range."""
    noise = torch.randint(0, 256, (2, 3, 12, 17), generator=generator)
    gradient = torch.arange(17).expand(1, 3, 12, 17) * 5 + 20
    two = torch.where(noise[:1] > 100, 90, 30)
    flat = torch.full((1, 3, 12, 17), 77)
    uneven = noise[1:] // torch.tensor([1, 4, 20])[:, None, None]
    return torch.cat([noise, gradient, two, flat, uneven]).to(torch.uint8)


def by_pillow(name, image, strength):
    enhancers = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "colour": ImageEnhance.Color,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhancers:
        return enhancers[name](image).enhance(strength)
    plain = {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize, "invert": ImageOps.invert}
    if name in plain:
        return plain[name](image)
    return (
        ImageOps.posterize(image, int(strength))
        if name == "posterize"
        else ImageOps.solarize(image, strength)
    )


STRENGTHS = {"posterize": (4, 6, 8), "solarize": (0, 113.3, 255)}


@pytest.mark.parametrize("name", TONES)
def test_as_pillow_does_it(name, generator):
    images = pictures(generator)
    chosen = torch.full((len(images),), TONES.index(name))
    for strength in STRENGTHS.get(name, (0.1, 0.55, 1.0, 1.9)):
        ours = apply_tones(images, chosen, torch.full((len(images),), float(strength)))
        for image, result in zip(images, ours, strict=True):
            theirs = by_pillow(name, Image.fromarray(image.permute(1, 2, 0).numpy()), strength)
            expected = np.asarray(theirs).astype(int)
            difference = np.abs(result.permute(1, 2, 0).numpy().astype(int) - expected)
            # Pillow blends in float32 or float64 by version: a level may fall to the other side of a whole.
            assert difference.max() <= (1 if name in ("colour", "contrast", "brightness", "sharpness") else 0)
            assert (difference > 0).mean() < 0.02


def test_each_image_has_its_own_and_a_strange_number_changes_nothing(generator):
    images = pictures(generator)
    chosen = torch.tensor(
        [TONES.index("invert"), len(TONES), TONES.index("posterize"), -1, 99, len(TONES) + 4]
    )
    ours = apply_tones(images, chosen, torch.full((6,), 4.0))
    assert torch.equal(ours[0], 255 - images[0])
    assert torch.equal(ours[2], images[2] // 16 * 16)
    for place in (1, 3, 4, 5):
        assert torch.equal(ours[place], images[place])


def test_autocontrast_of_every_range():
    """A channel of one row holds all the levels of a range; 32,640 ranges make 10,880 images."""
    low, high = torch.tensor([(low, high) for low in range(256) for high in range(low + 1, 256)]).T
    rows = torch.arange(256).clamp(low[:, None], high[:, None]).to(torch.uint8)
    for images in rows.view(-1, 3, 1, 256).split(100):
        chosen = torch.full((len(images),), TONES.index("autocontrast"))
        ours = apply_tones(images, chosen, torch.ones(len(images)))
        for image, result in zip(images, ours, strict=True):
            theirs = ImageOps.autocontrast(Image.fromarray(image.permute(1, 2, 0).numpy()))
            assert np.array_equal(result.permute(1, 2, 0).numpy(), np.asarray(theirs))


def test_histograms(generator):
    images = pictures(generator)
    expected = [
        [np.bincount(channel.flatten(), minlength=256) for channel in image] for image in images.numpy()
    ]
    assert np.array_equal(histograms(images).numpy(), np.array(expected))


def test_the_smallest_images():
    images = torch.tensor([[[[10]], [[200]], [[30]]]], dtype=torch.uint8)
    for name in TONES:
        assert (
            apply_tones(images, torch.tensor([TONES.index(name)]), torch.tensor([1.0])).shape == images.shape
        )
