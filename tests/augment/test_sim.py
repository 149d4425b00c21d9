"""The "sim" policy against the same steps one image at a time, and its draws against their odds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from references import augment as reference

from varcon.augment import AugmentSettings, augment, draw_views, ops, sim

torch.set_num_threads(1)

ZERO, ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # a mean and a std that leave the view in [0, 1]
MEAN, STD = (0.49, 0.48, 0.45), (0.20, 0.21, 0.22)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=seeded(seed))


def random_draw(n: int, size: int, settings: AugmentSettings, generator: torch.Generator) -> sim.SimDraw:
    count = n * sim.uniforms_per_view(settings)
    uniforms = torch.rand(count, device=generator.device, generator=generator)
    return sim.draw_sim(uniforms, (size, size), settings)


def sim_by_reference(image: np.ndarray, draw: sim.SimDraw, index: int, order, blur_last: bool) -> np.ndarray:
    size = image.shape[1:]
    box = tuple(int(field[index]) for field in draw.boxes)
    view = reference.resized_crop(image, box, size, bool(draw.flip[index]))
    sigma = 0.0 if draw.sigma is None else float(draw.sigma[index])
    if not blur_last:
        view = reference.blurred(view, sigma, sim.blur_radius(size[0]))
    factors = [float(f[index]) for f in (draw.brightness, draw.contrast, draw.saturation, draw.hue)]
    view = reference.jittered(view, factors, order)
    if draw.grey[index]:
        view = reference.grey(view)
    if blur_last:
        view = reference.blurred(view, sigma, sim.blur_radius(size[0]))
    return view.clip(0, 1)


@pytest.mark.parametrize("size", [8, 32, 96])
@pytest.mark.parametrize("blur", [0.0, 0.5])
def test_sim_equals_its_steps_one_image_at_a_time(size, blur):
    n = 30
    images = noise(n, size, size)
    settings = AugmentSettings(blur=blur)
    draw = random_draw(n, size, settings, seeded(1))
    ours = augment(images, settings, ZERO, ONE, seeded(1)).numpy()
    orders = itertools.cycle(itertools.permutations(range(4)))
    for index, order in zip(range(n), orders, strict=False):
        theirs = sim_by_reference(images[index].numpy(), draw, index, order, blur_last=False)
        np.testing.assert_allclose(ours[index], theirs, atol=3e-5)


@pytest.mark.parametrize("blur", [0.0, 0.5])
def test_sim_draws_as_one_call_for_each_quantity_would(blur):
    """Recorded results depend on the order of the stream: each quantity for all images, one after another."""
    n = 500
    settings = AugmentSettings(jitter=(0.4, 0.3, 1.5, 0.1), blur=blur)
    ours, generator = random_draw(n, 32, settings, seeded(1)), seeded(1)
    crops = torch.rand(4, n, ops.CROP_ATTEMPTS, generator=generator)
    boxes = ops.resized_crop_boxes(crops, (32, 32), settings.crop_area, sim.CROP_RATIO)
    assert all(torch.equal(*pair) for pair in zip(ours.boxes, boxes, strict=True))
    assert torch.equal(ours.flip, torch.rand(n, generator=generator) < 0.5)
    jittered = torch.rand(n, generator=generator) < 0.8
    for factor, low, high in zip(ours[2:6], (0.6, 0.7, 0.0, -0.1), (1.4, 1.3, 2.5, 0.1), strict=True):
        drawn = torch.empty(n).uniform_(low, high, generator=generator)
        assert torch.equal(factor[jittered], drawn[jittered])
    assert torch.equal(ours.grey, torch.rand(n, generator=generator) < 0.2)
    if blur:
        blurred = torch.rand(n, generator=generator) < blur
        sigma = torch.empty(n).uniform_(0.1, 2.0, generator=generator)
        assert ours.sigma is not None and torch.equal(ours.sigma, torch.where(blurred, sigma, 0.0))


def test_sim_views_draw_the_large_ones_first_and_then_the_small_ones():
    images = noise(5, 16, 16)
    settings = AugmentSettings(views=2, small_views=3, small_size=8)
    views, generator = draw_views(images, settings, MEAN, STD, seeded(2)), seeded(2)
    to = ops.Normalisation(MEAN, STD)
    close = AugmentSettings(crop_area=settings.small_crop_area)
    for part, count, kind, side in ((views[:2], 10, settings, 16), (views[2:], 15, close, 8)):
        uniforms = torch.rand(count * sim.uniforms_per_view(kind), generator=generator)
        many = images.repeat(len(part), 1, 1, 1)
        assert torch.equal(torch.cat(part), sim.sim_views(many, None, uniforms, kind, (side, side), to))


def test_blurring_before_the_colours_is_as_good_as_after():
    n = 30
    images = noise(n, 32, 32)
    draw = random_draw(n, 32, AugmentSettings(blur=1.0), seeded(2))
    draw = draw._replace(brightness=0.5 * draw.brightness)  # so that no clamp hides or adds a difference
    ours = sim.apply_sim(images, draw, (32, 32)).numpy()
    for index in range(n):
        theirs = sim_by_reference(images[index].numpy(), draw, index, range(4), blur_last=True)
        np.testing.assert_allclose(ours[index], theirs, atol=1 / 255)


def test_sim_draws_anew_for_each_image():
    n = 256
    settings = AugmentSettings(jitter_probability=1)  # two crops without jitter may well be the same
    views = augment(noise(1, 16, 16).expand(n, -1, -1, -1), settings, ZERO, ONE, seeded(4))
    assert len(views.flatten(1).unique(dim=0)) == n


def test_sim_honours_probabilities_and_strengths():
    n = 20_000
    settings = AugmentSettings(flip=0.3, jitter=(0.4, 0.3, 1.5, 0.1), blur=0.25)
    draw = random_draw(n, 32, settings, seeded(5))
    assert draw.sigma is not None
    jittered, blurred = draw.brightness != 1, draw.sigma != 0
    for happened, probability in ((draw.flip, 0.3), (jittered, 0.8), (draw.grey, 0.2), (blurred, 0.25)):
        spread = (probability * (1 - probability) / n) ** 0.5
        assert abs(happened.float().mean() - probability) < 4 * spread
    uniform = (
        (draw.brightness[jittered], 0.6, 1.4),
        (draw.contrast[jittered], 0.7, 1.3),
        (draw.saturation[jittered], 0.0, 2.5),  # not below zero
        (draw.hue[jittered], -0.1, 0.1),
        (draw.sigma[blurred], 0.1, 2.0),
    )
    for values, low, high in uniform:
        assert low <= values.min() and values.max() <= high
        quarters = torch.histc(values, bins=4, min=low, max=high) / len(values)
        assert (quarters - 0.25).abs().max() < 4 * (0.25 * 0.75 / len(values)) ** 0.5
    assert (draw.contrast[~jittered] == 1).all() and (draw.saturation[~jittered] == 1).all()
    assert (draw.hue[~jittered] == 0).all()
    # Draws do not depend on one another: one image's flip, grey and factors are uncorrelated.
    table = torch.stack([draw.flip.float(), draw.grey.float(), *(f - f.mean() for f in draw[2:6])])
    off_diagonal = torch.corrcoef(table) - torch.eye(6)
    assert off_diagonal.abs().max() < 5 / n**0.5


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_and_impossible_events(probability):
    settings = AugmentSettings(
        flip=probability, jitter_probability=probability, grey=probability, blur=probability
    )
    draw = random_draw(2000, 32, settings, seeded(6))
    assert draw.flip.eq(bool(probability)).all() and draw.grey.eq(bool(probability)).all()
    assert (draw.brightness != 1).float().mean().round() == probability
    assert draw.sigma is None if probability == 0 else (draw.sigma > 0).all()


def test_applying_a_draw_needs_no_value_on_the_host():
    """Meta tensors have no values: whatever looked at one, as a compiler's graph cannot, would fail here."""
    draw = random_draw(4, 32, AugmentSettings(blur=0.5), seeded())
    assert draw.sigma is not None
    boxes = ops.Boxes(*(field.to("meta") for field in draw.boxes))
    draw = sim.SimDraw(boxes, *(field.to("meta") for field in draw[1:]))  # type: ignore[union-attr]
    view = sim.apply_sim(noise(4, 32, 32).to("meta"), draw, (32, 32))
    assert view.device.type == "meta" and view.shape == (4, 3, 32, 32)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.gpu
def test_a_gpu_draws_without_waiting_and_makes_what_the_cpu_makes():
    images, settings = noise(16, 32, 32).cuda(), AugmentSettings(blur=0.5)
    generator = torch.Generator("cuda").manual_seed(0)
    random_draw(16, 32, settings, generator)  # libraries load, constants are sent
    torch.cuda.set_sync_debug_mode("error")
    try:
        generator.manual_seed(9)
        draw = random_draw(16, 32, settings, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    view = augment(images, settings, MEAN, STD, generator.manual_seed(9))
    assert draw.sigma is not None
    boxes = ops.Boxes(*(field.cpu() for field in draw.boxes))
    draw = sim.SimDraw(boxes, *(field.cpu() for field in draw[1:]))  # type: ignore[union-attr]
    on_cpu = ops.normalise(sim.apply_sim(images.cpu(), draw, (32, 32)), MEAN, STD)
    torch.testing.assert_close(view.cpu(), on_cpu, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_blur_of_the_smallest_images_keeps_their_brightness(shape):
    images = torch.full((20, 3, *shape), 200, dtype=torch.uint8)
    settings = AugmentSettings(blur=1, jitter_probability=0, small_views=1, small_size=1)
    for view in draw_views(images, settings, ZERO, ONE, seeded()):
        torch.testing.assert_close(view, torch.full_like(view, 200 / 255), atol=1e-6, rtol=0)
