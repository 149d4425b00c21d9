from __future__ import annotations

import colorsys
import itertools

import numpy as np
import pytest
import torch
from references import augment as reference

from varcon.augment import ops

torch.set_num_threads(1)

RATIO = (3 / 4, 4 / 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=seeded(seed))


def as_float(images: torch.Tensor) -> np.ndarray:
    return images.double().numpy() / 255


def identity(n: int, size: int) -> torch.Tensor:
    return torch.eye(size).expand(n, size, size)


def random_boxes(n: int, size: tuple[int, int], area: tuple[float, float], seed: int = 0) -> ops.Boxes:
    uniforms = torch.rand(4, n, ops.CROP_ATTEMPTS, generator=seeded(seed))
    return ops.resized_crop_boxes(uniforms, size, area, RATIO)


def boxes_of(boxes: ops.Boxes) -> list[tuple[int, int, int, int]]:
    return list(zip(*(field.tolist() for field in boxes), strict=True))


# Geometry


@pytest.mark.parametrize(
    ("size_in", "size_out"),
    [
        ((32, 32), (32, 32)),
        ((8, 8), (8, 8)),
        ((20, 36), (28, 12)),
        ((96, 96), (8, 8)),
        ((224, 224), (224, 224)),
    ],
)
def test_crop_resize_and_flip_equal_interpolation_of_the_crop(size_in, size_out):
    n = 4 if size_in[0] == 224 else 24
    images = noise(n, *size_in)
    boxes = random_boxes(n, size_in, (0.05, 1.0), 1)
    flip = torch.arange(n) % 2 == 0
    rows = ops.resize_matrix(
        boxes.top, boxes.height, size_in[0], size_out[0], torch.zeros(n, dtype=torch.bool)
    )
    columns = ops.resize_matrix(boxes.left, boxes.width, size_in[1], size_out[1], flip)
    ours = ops.resample(images, rows, columns)
    assert ours.shape == (n, 3, *size_out) and ours.dtype == torch.float32
    for image, box, mirror, result in zip(images.numpy(), boxes_of(boxes), flip, ours.numpy(), strict=True):
        np.testing.assert_allclose(result, reference.resized_crop(image, box, size_out, mirror), atol=2e-5)


@pytest.mark.parametrize("size_out", [(32, 32), (12, 50)])
def test_crop_and_resize_equal_pillow_within_its_rounding(size_out):
    images = noise(16, 32, 32)
    boxes = random_boxes(16, (32, 32), (0.1, 1.0), 2)
    upright = torch.zeros(16, dtype=torch.bool)
    rows = ops.resize_matrix(boxes.top, boxes.height, 32, size_out[0], upright)
    columns = ops.resize_matrix(boxes.left, boxes.width, 32, size_out[1], upright)
    levels = 255 * ops.resample(images, rows, columns).numpy()
    for image, box, result in zip(images.numpy(), boxes_of(boxes), levels, strict=True):
        pillow = reference.resized_crop_by_pillow(image, box, size_out)
        np.testing.assert_allclose(
            result, pillow, atol=1.1
        )  # half a level for each axis, a little for its weights


def test_a_whole_image_crop_is_the_image_and_pixels_outside_a_crop_have_no_weight():
    whole = ops.resize_matrix(torch.tensor([0]), torch.tensor([32]), 32, 32, torch.tensor([False]))
    assert torch.equal(whole[0], torch.eye(32))
    mirrored = ops.resize_matrix(torch.tensor([0]), torch.tensor([32]), 32, 32, torch.tensor([True]))
    assert torch.equal(mirrored[0], torch.eye(32).flip(1))
    crop = ops.resize_matrix(torch.tensor([5]), torch.tensor([9]), 32, 32, torch.tensor([False]))[0]
    assert crop[:, :5].eq(0).all() and crop[:, 14:].eq(0).all()
    torch.testing.assert_close(crop.sum(dim=1), torch.ones(32))


@pytest.mark.parametrize(("size", "radius"), [(8, 1), (32, 1), (33, 5), (64, 11)])
def test_blur_equals_a_padded_convolution(size, radius):
    images = noise(6, size, size)
    sigma = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 8.0])
    matrix = ops.blur_matrix(sigma, size, radius)
    assert torch.equal(matrix[0], torch.eye(size))
    ours = ops.resample(images, matrix, matrix)
    for image, spread, result in zip(as_float(images), sigma.tolist(), ours.numpy(), strict=True):
        np.testing.assert_allclose(result, reference.blurred(image, spread, radius), atol=1e-6)


def test_blur_composes_with_a_crop_by_matrix_product():
    images = noise(5, 32, 32)
    boxes = random_boxes(5, (32, 32), (0.2, 1.0), 3)
    sigma = torch.linspace(0.1, 2.0, 5)
    flip = torch.tensor([True, False, True, False, True])
    blur = ops.blur_matrix(sigma, 32, 2)
    rows = blur @ ops.resize_matrix(boxes.top, boxes.height, 32, 32, torch.zeros_like(flip))
    columns = blur @ ops.resize_matrix(boxes.left, boxes.width, 32, 32, flip)
    ours = ops.resample(images, rows, columns).numpy()
    for index, box in enumerate(boxes_of(boxes)):
        crop = reference.resized_crop(images[index].numpy(), box, (32, 32), bool(flip[index]))
        np.testing.assert_allclose(ours[index], reference.blurred(crop, float(sigma[index]), 2), atol=1e-5)


@pytest.mark.parametrize(("height", "width", "padding"), [(8, 8, 7), (32, 32, 4), (9, 14, 3)])
def test_shift_equals_cropping_a_reflected_border(height, width, padding):
    images = noise(40, height, width)
    down, right = torch.randint(-padding, padding + 1, (2, 40), generator=seeded(4))
    flip = torch.arange(40) % 3 == 0
    rows = ops.shift_indices(down, height, torch.zeros_like(flip))
    ours = ops.pick(images, rows, ops.shift_indices(right, width, flip))
    assert ours.dtype == torch.uint8
    for index, image in enumerate(images.numpy()):
        theirs = reference.shifted(image, int(down[index]), int(right[index]), padding, bool(flip[index]))
        np.testing.assert_array_equal(ours[index].numpy(), theirs)


# Random crops


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (224, 224), (8, 40), (40, 8)])
def test_boxes_equal_ten_attempts_made_one_by_one(size):
    n = 400
    boxes = random_boxes(n, size, (0.2, 1.0), 5)
    draws = torch.rand(4, n, ops.CROP_ATTEMPTS, generator=seeded(5)).permute(1, 2, 0).tolist()
    assert boxes_of(boxes) == [reference.crop_box(attempts, size, (0.2, 1.0), RATIO) for attempts in draws]


def test_boxes_fall_back_to_the_central_crop_where_nothing_fits():
    boxes = random_boxes(3, (8, 40), (0.9, 1.0))
    assert boxes_of(boxes) == [(0, 14, 8, 11)] * 3  # 11 = round(8 * 4/3)
    boxes = random_boxes(3, (40, 8), (0.9, 1.0))
    assert boxes_of(boxes) == [(14, 0, 11, 8)] * 3


def test_boxes_keep_to_area_and_ratio_and_stay_inside():
    n, size = 20_000, 224
    top, left, height, width = random_boxes(n, (size, size), (0.2, 1.0), 6)
    assert min(top.min(), left.min()) == 0
    assert (top + height).max() == size and (left + width).max() == size
    share, ratio = (height * width) / size**2, width / height
    assert 0.2 - 0.01 < share.min() < 0.21 and 0.99 < share.max() <= 1  # the sides are rounded to pixels
    assert 0.75 - 0.01 < ratio.min() < 0.76 and 1.32 < ratio.max() < 4 / 3 + 0.01
    # The logarithm of the ratio is symmetric, and small crops, which always fit, have uniform areas.
    assert abs(ratio.log().mean()) < 4 * 0.17 / n**0.5
    small = share[share < 0.6]
    assert abs(small.mean() - 0.4) < 4 * 0.115 / len(small) ** 0.5
    # Each position of the crops that have exactly four of them.
    places = torch.bincount(top[height == size - 3], minlength=4).float()
    assert len(places) == 4
    assert ((places - places.mean()).abs() < 4 * places.mean().sqrt()).all()


@pytest.mark.parametrize(("low", "high"), [(0.6, 1.4), (-0.1, 0.1), (0.0, 2.5), (0.1, 2.0), (0.3, 0.3)])
def test_between_equals_what_torch_draws_itself(low, high):
    uniforms = torch.rand(2, 5000, generator=seeded(7))
    theirs = torch.empty(2, 5000).uniform_(low, high, generator=seeded(7))
    assert torch.equal(ops.between(uniforms, [low, low], [high, high]), theirs)


def test_constants_are_made_once_and_serve_training_after_evaluation():
    with torch.inference_mode():
        made = ops.constant([0.125, 0.25], torch.device("cpu"))
    assert ops.constant((0.125, 0.25), torch.device("cpu")) is made
    assert not made.is_inference() and made.tolist() == [0.125, 0.25]


# Colour


def factors(n: int, seed: int = 7) -> torch.Tensor:
    """Brightness, contrast, saturation and hue, [4, N]."""
    low, high = torch.tensor([0.2, 0.2, 0.0, -0.5]), torch.tensor([1.8, 1.8, 1.8, 0.5])
    return (low + (high - low) * torch.rand(n, 4, generator=seeded(seed))).T


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_colour_matrix_equals_the_four_jitters_in_any_order(order):
    images = noise(6, 8, 8).float() / 255
    parameters = factors(6)
    matrix = ops.colour_matrix(ops.mean_grey(images), *parameters)
    ours = ops.apply_colour(images, matrix).numpy()
    rows = parameters.T.tolist()
    theirs = np.stack(
        [
            reference.jittered(image, row, order)
            for image, row in zip(images.double().numpy(), rows, strict=True)
        ]
    )
    assert theirs.max() > 1.2 and theirs.min() < -0.2  # so that the clamp has work
    np.testing.assert_allclose(ours, theirs.clip(0, 1), atol=2e-6)


@pytest.mark.parametrize("which", range(4))
def test_each_jitter_alone(which):
    images = noise(6, 8, 8).float() / 255
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None].repeat(1, 6)
    neutral[which] = factors(6)[which]
    ours = ops.apply_colour(images, ops.colour_matrix(ops.mean_grey(images), *neutral)).numpy()
    for image, factor, result in zip(images.double().numpy(), neutral[which].tolist(), ours, strict=True):
        theirs = reference.JITTERS[which](image, factor).clip(0, 1)
        assert np.abs(theirs - image).max() > 0.02
        np.testing.assert_allclose(result, theirs, atol=2e-6)


def test_no_saturation_after_any_jitter_is_a_grey_image():
    images = noise(6, 8, 8).float() / 255
    brightness, contrast, saturation, hue = factors(6)
    zero = torch.zeros(6)
    ours = ops.apply_colour(images, ops.colour_matrix(ops.mean_grey(images), brightness, contrast, zero, hue))
    rows = torch.stack([brightness, contrast, saturation, hue]).T.tolist()
    for image, row, result in zip(images.double().numpy(), rows, ours.numpy(), strict=True):
        theirs = reference.grey(reference.jittered(image, row, range(4))).clip(0, 1)
        np.testing.assert_allclose(result, theirs, atol=2e-6)


def test_neutral_factors_change_nothing():
    images = noise(3, 8, 8).float() / 255
    one = torch.ones(3)
    matrix = ops.colour_matrix(ops.mean_grey(images), one, one, one, torch.zeros(3))
    torch.testing.assert_close(ops.apply_colour(images, matrix), images, atol=1e-6, rtol=0)


@pytest.mark.parametrize("turns", [-0.1, 0.05, 0.1])
def test_hue_keeps_luma_and_moves_the_hue_of_hsv_by_about_the_angle(turns):
    hues = torch.arange(24) / 24
    colours = torch.tensor([colorsys.hsv_to_rgb(float(hue), 0.5, 0.7) for hue in hues])  # [24, 3]
    one = torch.ones(1)
    matrix = ops.colour_matrix(0.5 * one, one, one, one, turns * one)[0]
    moved = colours @ matrix[:, :3].T + matrix[:, 3]
    luma = torch.tensor(ops.GREY_WEIGHTS)
    torch.testing.assert_close(moved @ luma, colours @ luma, atol=1e-6, rtol=0)
    now = torch.tensor([colorsys.rgb_to_hsv(*colour)[0] for colour in moved.tolist()])
    change = (now - hues + 0.5) % 1 - 0.5
    # HSV's hexagon is not YIQ's circle: single colours differ by up to 16 degrees, their mean by 3.
    assert (change - turns).abs().max() < 16 / 360
    assert (change - turns).mean().abs() < 3 / 360


def test_normalise_leaves_its_input_alone():
    images = noise(2, 8, 8).float() / 255
    before = images.clone()
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.2)
    ours = ops.normalise(images, mean, std)
    assert torch.equal(images, before)
    for channel in range(3):
        expected = (before[:, channel].double() - mean[channel]) / std[channel]
        torch.testing.assert_close(ours[:, channel].double(), expected, atol=1e-6, rtol=0)
