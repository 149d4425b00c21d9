import colorsys
import io
import math

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import scipy.stats
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from varcon.core import InputError
from varcon.data import corruptions
from varcon.data.corruptions import NAMES, SEVERITIES, before_saving, blur, corrupt, digital, noise, weather
from varcon.data.corruptions.draws import Draws, scramble
from varcon.data.corruptions.parameters import PARAMETERS, SIZES, parameters


@pytest.fixture(scope="module")
def medium():
    """Photographs in 48 pieces of 64 pixels."""
    pieces = []
    for name in ("china.jpg", "flower.jpg"):
        photograph = load_sample_image(name)[:384, :512]
        grid = photograph.reshape(6, 64, 8, 64, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 64, 64, 3)
        pieces.append(grid[::2])
    return torch.from_numpy(np.concatenate(pieces)).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def small(medium):
    """The same, shrunk to 32."""
    return medium.view(-1, 3, 32, 2, 32, 2).double().mean(dim=(3, 5)).round().to(torch.uint8)


@pytest.fixture(scope="module")
def sized(small, medium, large):
    return {32: small, 64: medium, 224: large}


@pytest.fixture(scope="module")
def large():
    crops = [load_sample_image(name)[100:324, 200:424] for name in ("china.jpg", "flower.jpg")]
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous()


def by_severity(*values):
    return list(zip(SEVERITIES, values, strict=True))


def grey(value, size=32, count=160):
    return torch.full((count, 3, size, size), value, dtype=torch.uint8), torch.arange(count)


def draws(count=3, name="test"):
    return Draws(0, torch.arange(count), name, 1)


def unit(images):
    return images.double().numpy() / 255


# What belongs to all of them


@pytest.mark.parametrize("name", NAMES)
def test_an_image_does_not_depend_on_its_batch(small, name, monkeypatch):
    indices = torch.arange(len(small)) + 1000
    whole = corrupt(small, indices, name, 4, seed=3)
    assert whole.dtype == torch.uint8
    assert whole.shape == small.shape
    assert torch.equal(whole, corrupt(small, indices, name, 4, seed=3))
    some = torch.tensor([31, 5, 17])
    assert torch.equal(corrupt(small[some], indices[some], name, 4, seed=3), whole[some])
    assert torch.equal(corrupt(small[7:8], indices[7:8], name, 4, seed=3), whole[7:8])
    monkeypatch.setitem(corruptions.VALUES_AT_ONCE, "cpu", 5 * 3 * 32 * 32)  # five images in work
    assert torch.equal(corrupt(small, indices, name, 4, seed=3), whole)


@pytest.mark.parametrize("name", ["gaussian_noise", "glass_blur", "motion_blur", "snow", "frost", "fog"])
def test_chance_depends_on_seed_and_index(small, name):
    twice = small[:1].repeat(2, 1, 1, 1)
    first, second = corrupt(twice, torch.tensor([0, 1]), name, 3, seed=0)
    assert not torch.equal(first, second)
    assert not torch.equal(first, corrupt(twice[:1], torch.tensor([0]), name, 3, seed=1)[0])


# Published parameters whose change of the pixels does not grow from one severity to the next: less ice hides
# a darker image, two rounds of glass replace a wider Gaussian, smaller displacements of finer grain replace
# an affine map, a longer streak has the same deviation, rarer flakes replace broad ones, fog of the same
# density has finer detail.
NOT_GROWING = {
    32: {"glass_blur": (2, 3, 5), "motion_blur": (4,), "frost": (3, 4, 5), "elastic_transform": (2, 3, 4, 5)},
    64: {"glass_blur": (2, 4), "elastic_transform": (2, 4, 5)},
    224: {"glass_blur": (2, 4), "snow": (3,), "frost": (4,), "fog": (4,), "elastic_transform": (3,)},
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_change_grows_with_severity(sized, name, size):
    copies = 4 if name in ("fog", "elastic_transform") else 1  # where chance is coarse
    images = sized[size].repeat(copies if size == 224 else 1, 1, 1, 1)
    change = [
        (corrupt(images, torch.arange(len(images)), name, s, 0).float() - images.float()).abs().mean().item()
        for s in SEVERITIES
    ]
    assert change[0] > 0
    for severity in (2, 3, 4, 5):
        if severity not in NOT_GROWING[size].get(name, ()):
            assert change[severity - 1] > change[severity - 2], (severity, change)


def test_parameters_between_the_published_sizes():
    assert parameters("gaussian_noise", 3, 8) == parameters("gaussian_noise", 3, 32) == (0.08,)
    assert parameters("gaussian_noise", 3, 64) == (0.12,)
    assert parameters("gaussian_noise", 3, 224) == parameters("gaussian_noise", 3, 500) == (0.18,)
    assert parameters("gaussian_noise", 3, 48) == pytest.approx((0.10,))
    assert parameters("gaussian_noise", 3, 144) == pytest.approx((0.15,))
    assert parameters("defocus_blur", 4, 64) == (2.5, 0.01)
    assert set(PARAMETERS) == set(corruptions.CORRUPTIONS) == set(NAMES)
    assert all(len(table) == 5 for published in PARAMETERS.values() for table in published)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(8, 8), (100, 72), (150, 150)])
def test_other_sizes(name, shape):
    images = torch.arange(2 * 3 * shape[0] * shape[1]).view(2, 3, *shape).to(torch.uint8)
    assert corrupt(images, torch.arange(2), name, 5, 0).shape == images.shape
    assert corrupt(images[:0], torch.arange(0), name, 5, 0).shape == (0, 3, *shape)


def test_what_cannot_be_corrupted():
    images, indices = grey(0, size=8, count=2)
    with pytest.raises(InputError, match="there is no corruption 'rain'"):
        corrupt(images, indices, "rain", 1, 0)
    with pytest.raises(InputError, match="severity is 6"):
        corrupt(images, indices, "fog", 6, 0)
    with pytest.raises(InputError, match=r"images are torch.float32 \[2, 3, 8, 8\]"):
        corrupt(images.float(), indices, "fog", 1, 0)
    with pytest.raises(InputError, match="2 images and 1 indices"):
        corrupt(images, indices[:1], "fog", 1, 0)
    with pytest.raises(InputError, match="images of 7 pixels are too small"):
        corrupt(images[:, :, :7], indices, "fog", 1, 0)


# Random numbers


def test_scramble_is_splitmix64():
    """The first outputs for the state 1234567 that the generator's authors' code gives."""
    state = torch.tensor([1234567]) + torch.arange(1, 4) * (0x9E3779B97F4A7C15 - 2**64)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [value % 2**64 for value in scramble(state).tolist()] == expected


def test_numbers_are_uniform_normal_and_unrelated():
    sequence = Draws(5, torch.arange(40), "test", 2)
    uniform, normal = sequence.uniform(100, 50).double().numpy(), sequence.normal(5001).double().numpy()
    assert scipy.stats.kstest(uniform.ravel(), "uniform").pvalue > 0.01
    assert scipy.stats.kstest(normal.ravel(), "norm").pvalue > 0.01
    flat = uniform.reshape(40, -1) - 0.5
    for shifted in (np.roll(flat, 1, axis=0), np.roll(flat, 1, axis=1), np.roll(flat, 4, axis=1)):
        assert abs((flat * shifted).mean() * 12) < 4 / math.sqrt(flat.size)
    whole = sequence.below(6, 20000)
    assert torch.bincount(whole.flatten()).double().div(whole.numel()).sub(1 / 6).abs().max() < 2e-3
    cosine, sine = Draws(5, torch.arange(5000), "test", 2).direction(-135, -45)
    angles = np.degrees(np.arctan2(sine.numpy(), cosine.numpy())).ravel()
    assert scipy.stats.kstest(angles, "uniform", (-135, 90)).pvalue > 0.01


# Noise


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    ("size", "deviations"),
    [
        (32, (0.04, 0.06, 0.08, 0.09, 0.10)),
        (64, (0.04, 0.08, 0.12, 0.15, 0.18)),
        (224, (0.08, 0.12, 0.18, 0.26, 0.38)),
    ],
)
def test_gaussian_noise_has_its_variance(severity, size, deviations):
    images, indices = grey(128, size, 4 if size == 224 else 40)
    noisy = unit(before_saving(images, indices, "gaussian_noise", severity, 0))
    # A normal variable about grey, cut off at black and white.
    samples = np.clip(
        128 / 255 + deviations[severity - 1] * np.random.default_rng(0).normal(size=10**6), 0, 1
    )
    assert noisy.mean() == pytest.approx(samples.mean(), abs=2e-3)
    assert noisy.std() == pytest.approx(samples.std(), rel=0.01)


@pytest.mark.parametrize(("severity", "photons"), by_severity(500, 250, 100, 75, 50))
def test_shot_noise_has_the_variance_of_counting(severity, photons):
    images, indices = grey(100)
    noisy = unit(corrupt(images, indices, "shot_noise", severity, 0))
    assert noisy.mean() == pytest.approx(100 / 255, rel=2e-3)
    # Of rounded values: 251 counts on 256 levels leave gaps, where they are as fine as the noise.
    counts = np.arange(photons + 1)
    weights, values = (
        scipy.stats.poisson.pmf(counts, 100 / 255 * photons),
        np.rint(255 * counts / photons) / 255,
    )
    variance = (weights * values**2).sum() - (weights * values).sum() ** 2
    assert noisy.var() == pytest.approx(variance, rel=0.01)
    assert noisy.var() == pytest.approx(100 / 255 / photons, rel=0.08)


def test_shot_noise_counts_photons():
    images, _ = grey(200, 64, 10)
    images[:5] = 31
    counts = (noise.shot_noise(images, draws(10), 5).double() / 255 * 5).round().flatten(1).numpy()
    for part, value in ((counts[:5], 31), (counts[5:], 200)):
        for count in range(5):
            expected = scipy.stats.poisson.pmf(count, value / 255 * 5)
            assert (part == count).mean() == pytest.approx(expected, abs=5e-3)
    black, indices = grey(0, 32, 2)
    assert not corrupt(black, indices, "shot_noise", 5, 0).any()


@pytest.mark.parametrize(("severity", "amount"), by_severity(0.01, 0.02, 0.03, 0.05, 0.07))
def test_impulse_noise_loses_its_share(severity, amount):
    images, indices = grey(77)
    noisy = corrupt(images, indices, "impulse_noise", severity, 0)
    assert (noisy == 0).double().mean() == pytest.approx(amount / 2, rel=0.05)
    assert (noisy == 255).double().mean() == pytest.approx(amount / 2, rel=0.05)
    assert ((noisy == 77) | (noisy == 0) | (noisy == 255)).all()


# Blurs


@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "motion_blur"])
def test_blurs_keep_the_mean_and_lose_detail(large, name):
    def detail(images):
        return sum((images.float().diff(dim=dim) ** 2).mean().item() for dim in (2, 3))

    images = large[:, :, :100].repeat(8, 1, 1, 1)  # eight directions of motion
    before = detail(images)
    for severity in SEVERITIES:
        blurred = corrupt(images, torch.arange(16), name, severity, 0)
        assert detail(blurred) < before
        before = detail(blurred)
        assert blurred.float().mean() == pytest.approx(images.float().mean().item(), abs=6)
    even, indices = grey(93, 32, 2)
    assert (corrupt(even, indices, name, 5, 0) == 93).all()


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("size", SIZES)
def test_defocus_blur_equals_a_convolution(sized, severity, size):
    image = sized[size][:1]
    radius, rim = PARAMETERS["defocus_blur"][SIZES.index(size)][severity - 1]
    reach = 8 if radius <= 8 else int(radius)
    disk = np.array(
        [
            [float(x * x + y * y <= radius**2) for x in range(-reach, reach + 1)]
            for y in range(-reach, reach + 1)
        ]
    )
    half = 1 if radius <= 8 else 2
    taps = np.array([math.exp(-(k**2) / (2 * rim**2)) for k in range(-half, half + 1)])
    soft = np.outer(taps / taps.sum(), taps / taps.sum())
    # Smoothed within its own array, as published: the largest disks, which touch its borders, gain by it.
    kernel = scipy.ndimage.convolve(disk / disk.sum(), soft, mode="mirror")
    assert kernel.sum() == pytest.approx({8: 1.0130, 10: 1.0108}.get(radius, 1), abs=1e-4)
    blurred = [scipy.ndimage.convolve(channel, kernel, mode="mirror") for channel in unit(image[0])]
    expected = np.clip(blurred, 0, 1)
    found = unit(before_saving(image, torch.arange(1), "defocus_blur", severity, 0)[0])
    assert np.abs(found - expected).max() < 0.51 / 255


@pytest.mark.parametrize(("deviation", "edges", "truncate"), [(0.05, "nearest", 4.0), (1.5, "nearest", 4.0)])
def test_smoothing_equals_scipy(small, deviation, edges, truncate):
    found = blur.smooth(small[:2].double(), deviation, edges, truncate).numpy()
    expected = scipy.ndimage.gaussian_filter(
        small[:2].double().numpy(), deviation, mode=edges, truncate=truncate, axes=(2, 3)
    )
    assert np.abs(found - expected).max() < 0.05
    even = torch.full((1, 1, 40, 30), 201.0, dtype=torch.float64)
    assert (blur.smooth(even, 25.0, "reflect", 3.0) == 201).all()


@pytest.mark.parametrize(("reach", "rounds"), [(1, 1), (1, 2), (3, 2)])
def test_glass_blur_equals_one_pixel_after_the_other(small, reach, rounds):
    images = small[:3, :, :20, :29]
    found = (blur.glass_blur(images, draws(), 0.01, reach, rounds) * 255).round().numpy()
    chance, expected = draws(), images.numpy().copy()
    for _ in range(rounds):
        down, right = (chance.below(2 * reach, 2, 20 * 29) - reach).view(3, 2, 20, 29).unbind(1)
        for n in range(3):
            for y in range(20 - reach, reach, -1):
                for x in range(29 - reach, reach, -1):
                    expected[n, :, y, x] = expected[n, :, y + down[n, y, x], x + right[n, y, x]]
    assert (found == expected).all()


def test_a_streak_equals_a_loop(small):
    images = small[:2].double()
    angles = (0.3, -2.0)
    cosine, sine = (torch.tensor([[[f(a)]] for a in angles]) for f in (math.cos, math.sin))
    found = blur.streak(images, 4, 2.5, cosine, sine).numpy()
    weights = [math.exp(-(i**2) / (2 * 2.5**2)) for i in range(9)]
    for n in range(2):
        for y, x in ((0, 0), (3, 30), (16, 16), (31, 5), (20, 31)):
            total = 0
            for i, weight in enumerate(weights):
                row = min(max(y + math.ceil(i * math.sin(angles[n]) - 0.5), 0), 31)
                column = min(max(x + math.ceil(i * math.cos(angles[n]) - 0.5), 0), 31)
                total += weight / sum(weights) * images[n, :, row, column].numpy()
            assert np.abs(found[n, :, y, x] - total).max() < 1e-4


@pytest.mark.parametrize("factor", [1.0, 1.03, 1.25, 1.75, 2.5, 4.5])
@pytest.mark.parametrize("size", [32, 45])
def test_zoom_equals_scipy(size, factor):
    image = np.random.default_rng(0).random((size, size))
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    enlarged = scipy.ndimage.zoom(image[top : top + crop, top : top + crop], factor, order=1)
    trim = (len(enlarged) - size) // 2
    expected = enlarged[trim : trim + size, trim : trim + size]
    found = blur.zoomed(torch.from_numpy(image)[..., None].float(), factor)[..., 0].numpy()
    assert np.abs(found - expected).max() < 1e-5


def test_zoom_blur_is_a_mean_of_enlargements(small):
    found = unit(corrupt(small[:1], torch.arange(1), "zoom_blur", 2, 0))
    planes = (small[:1].float() / 255).permute(2, 3, 0, 1)
    factors = [1 + 0.01 * k for k in range(12)]  # 1 to 1.11
    total = planes + sum(blur.zoomed(planes, factor) for factor in factors)
    assert np.abs(found - (total / 13).permute(2, 3, 0, 1).numpy()).max() < 0.51 / 255


# Weather


def test_plasma_equals_diamond_and_square_point_by_point():
    size, decay = 16, 1.7
    found = weather.plasma(draws(2), 13, 16, decay)[:, 0].numpy()
    chance = 2 * draws(2).uniform(size, size).double().numpy() - 1
    for n in range(2):
        height = {(0, 0): 0.0}
        step, amplitude = size, 1.0
        while step >= 2:
            half = step // 2
            for y in range(half, size, step):
                for x in range(half, size, step):
                    around = [((y + a) % size, (x + b) % size) for a in (-half, half) for b in (-half, half)]
                    height[y, x] = sum(height[p] for p in around) / 4 + amplitude * chance[n, y, x]
            edges = [(y, x) for y in range(0, size, half) for x in range(0, size, half)]
            for y, x in [p for p in edges if (p[0] // half + p[1] // half) % 2]:
                around = [
                    ((y + a) % size, (x + b) % size)
                    for a, b in ((-half, 0), (half, 0), (0, -half), (0, half))
                ]
                height[y, x] = sum(height[p] for p in around) / 4 + amplitude * chance[n, y, x]
            step, amplitude = half, amplitude / decay**2
        full = np.array([[height[y, x] for x in range(size)] for y in range(size)])
        expected = (full - full.min()) / (full.max() - full.min())
        assert np.abs(found[n] - expected[:13]).max() < 1e-5


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_equals_its_formula(small, severity):
    density, decay = PARAMETERS["fog"].cifar[severity - 1]
    indices = torch.arange(4)
    cloud = weather.plasma(Draws(9, indices, "fog", severity), 32, 32, decay).double().numpy()
    images = unit(small[:4])
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    expected = (images + density * cloud) * brightest / (brightest + density)
    found = unit(corrupt(small[:4], indices, "fog", severity, 9))
    assert np.abs(found - expected).max() < 0.51 / 255


def test_snow_lightens_and_falls(large):
    for severity in SEVERITIES:
        snowy = before_saving(large, torch.arange(2), "snow", severity, 0).int()
        assert (snowy >= large.int() - 1).all()
    black, indices = grey(0, 224, 3)
    flakes = before_saving(black, indices, "snow", 1, 0).double()
    bleached = 0.2 * 0.5 * 255
    assert flakes.min() == round(bleached)
    assert 0.005 < (flakes > bleached + 30).double().mean() < 0.3  # some ground is covered
    assert torch.equal(flakes, flakes.flip(2, 3))  # the second layer is the first upside down
    along, across = ((flakes.diff(dim=dim) ** 2).mean() for dim in (2, 3))
    assert along < across  # within 45 degrees of the vertical


def test_frost_adds_ice_to_the_image(small):
    nothing = weather.frost(small[:3], draws(), 1.0, 0.0)
    assert torch.equal((nothing * 255).round().byte(), small[:3])
    for size in (32, 224):
        ice = weather.frost(torch.zeros(4, 3, size, size), draws(4), 0.0, 1.0)
        assert ice.min() >= 0
        assert ice.max() <= 1
        assert 0.3 < ice.mean() < 0.55
        assert 0.15 < ice.std() < 0.3
    half = weather.frost(small[:3], draws(), 0.5, 0.25).double()
    both = 0.5 * small[:3].double() / 255 + 0.25 * weather.frost(small[:3], draws(), 0.0, 1.0).double()
    torch.testing.assert_close(half, both, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("severity", "shift"), by_severity(0.05, 0.1, 0.15, 0.2, 0.3))
def test_brightness_raises_the_value_of_hsv(small, severity, shift):
    image = small[:1].clone()
    image[0, :, 0, :3] = torch.tensor([[0, 255, 255], [0, 0, 255], [0, 0, 255]], dtype=torch.uint8)
    found = unit(corrupt(image, torch.arange(1), "brightness", severity, 0)[0])
    for y, x in [(0, 0), (0, 1), (0, 2), *((k, 31 - k) for k in range(32))]:
        hue, saturation, value = colorsys.rgb_to_hsv(*unit(image[0, :, y, x]))
        expected = colorsys.hsv_to_rgb(hue, saturation, min(value + shift, 1))
        assert np.abs(found[:, y, x] - expected).max() < 0.51 / 255
    even, indices = grey(100, 8, 1)
    raised = corrupt(even, indices, "brightness", severity, 0)
    assert (raised.double() - (100 + 255 * shift)).abs().max() < 0.51


# Digital


@pytest.mark.parametrize(("severity", "factor"), by_severity(0.75, 0.5, 0.4, 0.3, 0.15))
def test_contrast_shrinks_about_the_channel_mean(small, severity, factor):
    images = unit(small)
    means = images.mean(axis=(2, 3), keepdims=True)
    found = unit(corrupt(small, torch.arange(len(small)), "contrast", severity, 0))
    assert np.abs(found - (means + factor * (images - means))).max() < 0.51 / 255


@pytest.mark.parametrize("shape", [(32, 32), (40, 33)])
def test_elastic_transform_equals_scipy(small, shape):
    image = small[:3].repeat(1, 1, 2, 2)[:, :, : shape[0], : shape[1]].contiguous()
    side, (height, width) = min(shape), shape
    strength, smoothness, shift = 0.1, 0.04, 0.08
    found = digital.elastic_transform(image, draws(), strength, smoothness, shift).numpy()
    chance = draws()
    moves = (2 * chance.uniform(6).double().numpy() - 1) * shift * side
    levels = chance.levels(2, height, width).double().numpy()
    field = (2 * levels - 65535) / 65536
    grid = np.mgrid[:height, :width].astype(float)
    third = side // 3
    for n in range(3):
        middle = np.array([height // 2, width // 2])
        before = middle + third * np.array([[1, 1], [-1, 1], [-1, -1]])
        after = before + moves[n].reshape(3, 2)
        affine = np.linalg.solve(np.column_stack([after, np.ones(3)]), before)  # [y x 1] after -> before
        source = np.einsum("kc,kyx->cyx", affine, np.concatenate([grid, np.ones((1, height, width))]))
        blurred = [
            scipy.ndimage.gaussian_filter(part, smoothness * side, mode="reflect", truncate=3.0)
            for part in field[n]
        ]
        second = grid + strength * side * np.stack(blurred)
        for channel in range(3):
            pixels = unit(image[n, channel])
            warped = scipy.ndimage.map_coordinates(pixels, source, order=1, mode="mirror")
            expected = scipy.ndimage.map_coordinates(warped, second, order=1, mode="reflect")
            assert np.abs(found[n, channel] - expected).max() < 2e-3
    still = digital.elastic_transform(image, draws(), 0, 0, 0)
    assert torch.equal((still * 255).round().byte(), image)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("size", SIZES)
def test_pixelate_samples_down_and_up(sized, severity, size):
    images = sized[size][:2]
    share = PARAMETERS["pixelate"][SIZES.index(size)][severity - 1][0]
    few = int(size * share)
    found = before_saving(images, torch.arange(2), "pixelate", severity, 0).permute(0, 2, 3, 1).numpy()
    for image, pixelated in zip(images.permute(0, 2, 3, 1).numpy(), found, strict=True):
        shrunk = Image.fromarray(image).resize((few, few), Image.Resampling.BOX)
        assert (pixelated == np.asarray(shrunk.resize((size, size), Image.Resampling.BOX))).all()
        # The definition itself, up to the rounding of both passes.
        for y, x in ((0, 0), (size // 3, size // 2), (size - 1, size - 1)):
            row, column = ((at * 2 + 1) * few // (2 * size) for at in (y, x))
            ys, xs = (
                [p for p in range(size) if k * size / few < p + 0.5 <= (k + 1) * size / few]
                for k in (row, column)
            )
            assert np.abs(pixelated[y, x] - image[np.ix_(ys, xs)].mean(axis=(0, 1))).max() <= 1.01


@pytest.mark.parametrize(("severity", "quality"), by_severity(80, 65, 58, 50, 40))
def test_jpeg_has_its_quality(small, severity, quality):
    found = corrupt(small[:3], torch.arange(3), "jpeg_compression", severity, 0).permute(0, 2, 3, 1).numpy()
    for image, compressed in zip(small[:3].permute(0, 2, 3, 1).numpy(), found, strict=True):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=quality)
        assert (np.asarray(Image.open(stream)) == compressed).all()


@pytest.mark.parametrize("size", [64, 224])
@pytest.mark.parametrize("name", ["gaussian_noise", "jpeg_compression"])
def test_images_from_64_pixels_on_are_saved_as_the_published_are(large, name, size):
    """In JPEG of quality 85, also once compressed; it takes a quarter of the strongest noise away."""
    images = large[:, :, :size, :size]
    raw = before_saving(images, torch.arange(2), name, 5, 0)
    found = corrupt(images, torch.arange(2), name, 5, 0)
    for before, after in zip(raw.permute(0, 2, 3, 1).numpy(), found.permute(0, 2, 3, 1).numpy(), strict=True):
        stream = io.BytesIO()
        Image.fromarray(before).save(stream, "JPEG", quality=85, optimize=True)  # as the authors save it
        assert (np.asarray(Image.open(stream)) == after).all()
    if name == "gaussian_noise" and size == 224:
        harm = [(noisy.double() - large.double()).square().mean().sqrt().item() for noisy in (raw, found)]
        assert harm[1] < 0.8 * harm[0]
    smaller = large[:, :, :, :63]
    assert torch.equal(
        corrupt(smaller, torch.arange(2), name, 5, 0), before_saving(smaller, torch.arange(2), name, 5, 0)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_makes_the_same_images(small, name):
    indices = torch.arange(len(small))
    there = corrupt(small.cuda(), indices, name, 4, 0)
    assert there.is_cuda
    change = (there.cpu().int() - corrupt(small, indices, name, 4, 0).int()).abs().double()
    assert change.mean() < 0.01  # levels, of 255: a last bit may fall on the other side of a rounding
