"""AutoAugment's policies against kornia's tables, geometry against Pillow, draws against their odds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from references import augment as reference
from scipy.ndimage import binary_erosion

from varcon.augment import AugmentSettings, auto, draw_views, ops
from varcon.augment.auto import GEOMETRY, OPERATIONS, RAND_OPERATIONS, Chosen
from varcon.augment.tones import TONES


def whole(n, height, width=None):
    zero = torch.zeros(n, dtype=torch.int64)
    return ops.Boxes(zero, zero, zero + height, zero + (width or height))


def one(name, strength, n=1):
    return Chosen(torch.full((1, n), OPERATIONS.index(name)), torch.full((1, n), float(strength)))


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_policies_are_the_published_ones(name):
    from kornia.augmentation.auto.autoaugment import autoaugment

    published = getattr(autoaugment, f"{name}_policy")
    spelling = {"color": "colour", "auto_contrast": "autocontrast"}
    theirs = [
        tuple((spelling.get(operation, operation), odds, level or 0) for operation, odds, level in pair)
        for pair in published
    ]
    assert [tuple(pair) for pair in auto.POLICIES[name]] == theirs


@pytest.mark.parametrize(
    ("name", "strength", "coefficients"),
    [
        ("translate_x", 0.25, (1, 0, 4, 0, 1, 0)),
        ("translate_y", -0.5, (1, 0, 0, 0, 1, -8)),
        ("shear_x", 0.3, (1, 0.3, 0, 0, 1, 0)),
        ("shear_y", -0.2, (1, 0, 0, -0.2, 1, 0)),
    ],
)
def test_geometry_as_pillow_does_it(name, strength, coefficients, generator):
    image = torch.randint(0, 256, (1, 3, 16, 16), generator=generator).to(torch.uint8)
    change = auto.affine(one(name, strength), (16, 16))
    ours = auto.warp(image, whole(1, 16), torch.tensor([False]), change)[0].permute(1, 2, 0).numpy()
    theirs = Image.fromarray(image[0].permute(1, 2, 0).numpy()).transform(
        (16, 16), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)
    )
    assert np.abs(ours.astype(int) - np.asarray(theirs).astype(int)).max() <= 2


def test_rotation_as_pillow_does_it(generator):
    image = torch.randint(0, 256, (1, 3, 16, 16), generator=generator).to(torch.uint8)
    change = auto.affine(one("rotate", math.radians(20)), (16, 16))
    ours = auto.warp(image, whole(1, 16), torch.tensor([False]), change)[0].permute(1, 2, 0).numpy()
    theirs = Image.fromarray(image[0].permute(1, 2, 0).numpy()).rotate(20, Image.Resampling.BILINEAR)
    difference = np.abs(ours.astype(int) - np.asarray(theirs).astype(int))[4:-4, 4:-4]
    assert difference.max() <= 3


def by_pillow(image, name, strength, fill):
    """As the authors' programs call it: shear and translation count from the corner."""
    if name == "rotate":
        return image.rotate(math.degrees(strength), Image.Resampling.BILINEAR, fillcolor=fill)
    width, height = image.size
    coefficients = {
        "shear_x": (1, strength, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, strength, 1, 0),
        "translate_x": (1, 0, int(strength * width), 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, int(strength * height)),
    }[name]
    return image.transform(
        image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR, fillcolor=fill
    )


@pytest.mark.parametrize("second", GEOMETRY)
@pytest.mark.parametrize("first", GEOMETRY)
def test_two_operations_as_pillow_does_one_after_the_other(first, second):
    """Smooth images, which repeated resampling hardly blurs; what has once left the image does not return."""
    height, width = 40, 32
    rows, columns = np.mgrid[:height, :width]
    smooth = (200 + 40 * np.sin(rows / 9) * np.cos(columns / 7)).round().astype(np.uint8)
    image = torch.from_numpy(smooth).expand(1, 3, -1, -1)
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        names = (first, second)
        strengths = [sign * auto.STRONGEST[name] for sign, name in zip(signs, names, strict=True)]
        pair = Chosen(
            torch.tensor([[OPERATIONS.index(name)] for name in names]), torch.tensor(strengths)[:, None]
        )
        ours = auto.warp(
            image, whole(1, height, width), torch.tensor([False]), auto.affine(pair, (height, width))
        )
        theirs, share = Image.fromarray(smooth), Image.fromarray(np.full_like(smooth, 255))
        for name, strength in zip(names, strengths, strict=True):
            theirs, share = by_pillow(theirs, name, strength, 128), by_pillow(share, name, strength, 0)
        filled, kept = np.asarray(share) == 0, np.asarray(share) == 255
        kept = binary_erosion(kept, np.ones((3, 3)), border_value=1)
        assert (filled | kept).mean() > 0.8  # the others, along the filling's edge, may be a mixture
        assert (ours[0, 0].numpy()[filled] == 128).all()
        assert np.abs(ours[0, 0].numpy().astype(int) - np.asarray(theirs))[kept].max() <= 4


@pytest.mark.parametrize("sign", [1, -1])
def test_an_image_moves_by_whole_pixels(sign):
    """By 14.5 of 32 a pattern of single columns would be all grey."""
    stripes = (255 * (torch.arange(32) % 2)).to(torch.uint8).expand(1, 3, 32, 32)
    change = auto.affine(one("translate_x", sign * auto.STRONGEST["translate_x"]), (32, 32))
    moved = auto.warp(stripes, whole(1, 32), torch.tensor([False]), change)
    kept, filled = (slice(0, 18), slice(18, 32)) if sign > 0 else (slice(14, 32), slice(0, 14))
    assert torch.equal(moved[..., kept], stripes[..., kept])
    assert (moved[..., filled] == 128).all()


def test_opposite_translations_leave_what_they_cover_grey(generator):
    """The CIFAR-10 policy's pair of translations, which one map alone would take for nothing."""
    image = torch.randint(0, 256, (1, 3, 32, 32), generator=generator).to(torch.uint8)
    far = 16 / 32
    pair = Chosen(torch.full((2, 1), OPERATIONS.index("translate_y")), torch.tensor([[far], [-far]]))
    ours = auto.warp(image, whole(1, 32), torch.tensor([False]), auto.affine(pair, (32, 32)))
    assert (ours[:, :, :16] == 128).all()
    assert torch.equal(ours[:, :, 16:], image[:, :, 16:])


def test_operations_need_no_value_on_the_host():
    """Meta tensors have none: what would have to read one back cannot be recorded in a CUDA graph either."""
    uniforms = torch.rand(2, 3, 4, device="meta")
    chosen = auto.draw_rand(uniforms, 0.3)
    boxes = ops.Boxes(*(field.to("meta") for field in whole(4, 8)))
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8, device="meta")
    view = auto.warp(images, boxes, uniforms[0, 0] < 0.5, auto.affine(chosen, (8, 8)))
    assert auto.change_tones(view, chosen).shape == (4, 3, 8, 8)


def test_a_crop_is_the_usual_resized_crop(generator):
    """Without operations: crop, enlargement and mirror as `ops.resample` makes them."""
    images = torch.randint(0, 256, (20, 3, 32, 32), generator=generator).to(torch.uint8)
    boxes = ops.resized_crop_boxes(
        torch.rand(4, 20, 10, generator=generator), (32, 32), (0.2, 1), (0.75, 1.33)
    )
    flip = torch.rand(20, generator=generator) < 0.5
    nothing = auto.affine(one("identity", 0, 20), (32, 32))
    ours = auto.warp(images, boxes, flip, nothing).float()
    rows = ops.resize_matrix(boxes.top, boxes.height, 32, 32, torch.zeros_like(flip))
    columns = ops.resize_matrix(boxes.left, boxes.width, 32, 32, flip)
    theirs = 255 * ops.resample(images, rows, columns)
    # The outermost pixels may see beyond the crop, into the image.
    assert (ours - theirs)[:, :, 2:-2, 2:-2].abs().max() <= 0.51


def test_two_operations_are_done_in_their_order(generator):
    image = torch.randint(0, 256, (1, 3, 16, 16), generator=generator).to(torch.uint8)
    pair = Chosen(
        torch.tensor([[OPERATIONS.index("shear_x")], [OPERATIONS.index("translate_y")]]),
        torch.tensor([[0.25], [0.25]]),
    )
    at_once = auto.warp(image, whole(1, 16), torch.tensor([False]), auto.affine(pair, (16, 16)))
    step = image
    for operation, strength in zip(*pair, strict=True):
        change = auto.affine(Chosen(operation[None], strength[None]), (16, 16))
        step = auto.warp(step, whole(1, 16), torch.tensor([False]), change)
    assert (at_once.int() - step.int())[:, :, 5:-6, 5:-5].abs().max() <= 1


def test_odds_and_strengths_of_a_policy(generator):
    n = 200_000
    chosen = auto.draw_auto(torch.rand(5, n, generator=generator), "cifar10")
    expected = np.zeros(len(OPERATIONS))
    for pair in auto.POLICIES["cifar10"]:
        for name, odds, _ in pair:
            expected[OPERATIONS.index(name)] += odds / 25 / 2
            expected[OPERATIONS.index("identity")] += (1 - odds) / 25 / 2
    shares = np.bincount(chosen.operations.flatten(), minlength=len(OPERATIONS)) / (2 * n)
    np.testing.assert_allclose(shares, expected, atol=0.002)
    turned = chosen.strengths[chosen.operations == OPERATIONS.index("rotate")]
    assert turned.abs().unique().tolist() == pytest.approx([math.radians(30) * 2 / 9])
    assert (turned > 0).float().mean().item() == pytest.approx(0.5, abs=0.02)
    kept = chosen.strengths[chosen.operations == OPERATIONS.index("posterize")]
    assert kept.unique().tolist() == [5.0]
    inverted_from = chosen.strengths[chosen.operations == OPERATIONS.index("solarize")]
    assert sorted(inverted_from.unique().tolist()) == pytest.approx([255 * (1 - m / 9) for m in (8, 5, 3, 2)])


def test_odds_of_rand(generator):
    chosen = auto.draw_rand(torch.rand(2, 3, 50_000, generator=generator), 0.5)
    assert chosen.operations.shape == (3, 50_000)
    shares = np.bincount(chosen.operations.flatten(), minlength=len(OPERATIONS)) / 150_000
    assert shares[OPERATIONS.index("invert")] == 0
    for name in RAND_OPERATIONS:
        assert shares[OPERATIONS.index(name)] == pytest.approx(1 / 14, abs=0.003)
    bright = chosen.strengths[chosen.operations == OPERATIONS.index("brightness")]
    assert sorted(bright.unique().tolist()) == pytest.approx([0.55, 1.45])


def test_a_tone_moves_no_pixel_and_a_geometry_changes_no_tone(generator):
    image = torch.randint(0, 256, (1, 3, 8, 8), generator=generator).to(torch.uint8)
    for name in TONES:
        assert torch.equal(auto.affine(one(name, 0.7), (8, 8))[0, 0], torch.eye(3)[:2])
    for name in GEOMETRY:
        assert torch.equal(auto.change_tones(image, one(name, 0.2)), image)


def test_cut_out():
    views = torch.ones(3, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    places = torch.tensor([[0.5, 0.0, 0.99], [0.5, 0.0, 0.99]])
    hidden = auto.cut_out(views, 4, places) == 0
    assert hidden[0, 0, 2:6, 2:6].all() and hidden[0].sum() == 3 * 16
    assert hidden[1, 0, :2, :2].all() and hidden[1].sum() == 3 * 4
    assert hidden[2, 0, 5:, 5:].all() and hidden[2].sum() == 3 * 9


def test_a_shift_is_mirrored_at_the_edges(generator):
    image = torch.randint(0, 256, (1, 3, 8, 8), generator=generator).to(torch.uint8)
    boxes = whole(1, 8)._replace(top=torch.tensor([-2]), left=torch.tensor([3]))
    ours = auto.warp(image, boxes, torch.tensor([False]), auto.affine(one("identity", 0), (8, 8)))
    expected = torch.cat([image[:, :, [1, 0]], image[:, :, :6]], 2)
    expected = torch.cat([expected[..., 3:], expected[..., [7, 6, 5]]], 3)
    assert torch.equal(ours, expected)


def test_cutout_in_a_policy():
    """Every image loses its square, or what of it lies inside."""
    images = torch.full((50, 3, 32, 32), 200, dtype=torch.uint8)
    plain = AugmentSettings(policy="rand", rand_magnitude=0.0, crop_area=(1, 1), flip=0, views=1)
    mean, std = (0.1,) * 3, (1.0,) * 3
    (view,) = draw_views(images, plain, mean, std, torch.Generator().manual_seed(0))
    (cut,) = draw_views(images, replace(plain, cutout=8), mean, std, torch.Generator().manual_seed(0))
    lost = (cut == 0).all(1).flatten(1).sum(1)
    assert lost.max() == 64 and lost.min() >= 16
    assert torch.equal(torch.where(cut == 0, view, cut), view)


def test_stacked_rand_is_blurred_last(generator):
    """The sharp views of the same draw, blurred by the slow reference."""
    n = 60
    images = torch.randint(0, 256, (n, 3, 40, 40), generator=generator).to(torch.uint8)
    settings = AugmentSettings("stacked-rand", 1, blur=0.5)
    sharp, blurred = (
        draw_views(images, kind, (0.0,) * 3, (1.0,) * 3, torch.Generator().manual_seed(0))[0].numpy()
        for kind in (replace(settings, blur=0.0), settings)
    )
    # Of the 60 numbers drawn for an image the last two decide its blur, so that the others stay as they were.
    *_, whether, spread = torch.rand(60 * n, generator=torch.Generator().manual_seed(0)).view(60, n)
    sigma = torch.where(whether < 0.5, 0.1 + 1.9 * spread, 0.0).tolist()
    assert 20 < sum(value > 0 for value in sigma) < 40
    for ours, before, value in zip(blurred, sharp, sigma, strict=True):
        np.testing.assert_allclose(ours, reference.blurred(before, value, 2), atol=1e-5)


def test_stacked_rand_has_the_colours_of_sim(generator):
    images = torch.randint(0, 256, (400, 3, 8, 8), generator=generator).to(torch.uint8)
    settings = AugmentSettings(policy="stacked-rand", grey=0.25, rand_magnitude=0.0, views=1)
    (view,) = draw_views(images, settings, (0.0,) * 3, (1.0,) * 3, torch.Generator().manual_seed(0))
    grey = (view.amax(1) - view.amin(1)).flatten(1).amax(1) < 0.01
    assert grey.float().mean().item() == pytest.approx(0.25, abs=0.06)
