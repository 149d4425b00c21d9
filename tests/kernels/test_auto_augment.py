"""The kernel against its plain-torch twin: in Triton's interpreter here, on the GPU where there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from references.kernels import COMPILED, pictures, run_with_compiler, seeded

from varcon.augment import AugmentSettings, auto, draw_views
from varcon.augment.operated import draws, operated_views, parts_of
from varcon.augment.ops import Normalisation

pytest.importorskip("triton")
from varcon.kernels import auto_augment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LEVELS = Normalisation((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))  # views as levels from 0 to 255
AUTO = AugmentSettings(policy="auto", crop_area=(1.0, 1.0))
RAND = AugmentSettings(policy="rand", crop_area=(1.0, 1.0), rand_magnitude=0.5)
MOVES = [auto.OPERATIONS.index(name) for name in auto.GEOMETRY]


def uniforms(views: int, settings: AugmentSettings, seed: int = 3) -> torch.Tensor:
    return torch.rand(views * sum(draws(settings).values()), generator=seeded(seed)).to(DEVICE)


def both(images, settings, views, indices=None):
    """The kernel's views, the twin's, and which of them an operation has moved."""
    given = (images, indices, uniforms(views, settings), settings, LEVELS)
    assert auto_augment.handles(images, settings)
    drawn = parts_of(given[2], settings)
    if settings.policy == "auto":
        chosen = auto.draw_auto(drawn["auto"], settings.auto)
    else:
        chosen = auto.draw_rand(drawn["rand"].view(2, -1, views), settings.rand_magnitude)
    moved = torch.isin(chosen.operations, torch.tensor(MOVES, device=DEVICE)).any(0)
    return auto_augment.operated_views(*given), operated_views(*given), moved


def assert_equal(ours, theirs, moved):
    """Where nothing moves, levels are equal. Where something does, a level may lie just between two whole
    numbers, and the tones take it from there; so few pixels differ, if not always by little."""
    levels = ours.round()
    torch.testing.assert_close(ours, levels, atol=1e-3, rtol=0)
    assert torch.equal(levels[~moved], theirs[~moved].round())
    assert (levels != theirs.round()).float().mean() < 2e-3


@pytest.mark.parametrize("settings", [AUTO, replace(AUTO, auto="imagenet"), RAND], ids=lambda s: s.policy)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 44), (9, 5), (1, 5)])
def test_equals_the_plain_views(settings, height, width):
    images = pictures(32, height, width)
    settings = replace(settings, shift=min(4, height - 1, width - 1))
    ours, theirs, moved = both(images, settings, views=64)
    assert ours.shape == (64, 3, height, width) and ours.dtype == torch.float32
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert 0 < moved.sum() < 64
    assert_equal(ours, theirs, moved)


@pytest.mark.parametrize("operation", range(len(auto.RAND_OPERATIONS)), ids=auto.RAND_OPERATIONS)
def test_each_operation(operation):
    """All views have the one, half of them in either direction, in all kinds of pictures: noise, a few
    levels, one level."""
    images = pictures(16, 24, 24)
    images[4:8] = images[4:8] // 64 * 64
    images[8:12] = images[8:12] % 8 + 100
    images[12:14] = images[12:14, :, :1, :1]
    images[14:] = torch.randint(0, 256, images[14:].shape, generator=seeded(5)).byte().to(DEVICE)
    settings = replace(RAND, rand_operations=1, rand_magnitude=0.9, flip=0.0, shift=0)
    given = uniforms(16, settings)
    parts_of(given, settings)["rand"][0] = (operation + 0.5) / len(auto.RAND_OPERATIONS)
    ours = auto_augment.operated_views(images, None, given, settings, LEVELS).round()
    theirs = operated_views(images, None, given, settings, LEVELS).round()
    name = auto.RAND_OPERATIONS[operation]
    assert torch.equal(theirs, images.float()) == (name == "identity")
    off = (ours - theirs).abs()
    if name in auto.GEOMETRY:
        assert off.max() <= 1 and (off > 0).float().mean() < 1e-3
    else:
        assert off.max() == 0


def test_invert():
    """Which only AutoAugment has, and seldom."""
    pairs = auto.POLICIES["cifar10"]
    last = next(place for place, pair in enumerate(pairs) if pair[1][0] == "invert" and pair[1][1] > 0)
    images, settings = pictures(4, 8, 8), replace(AUTO, flip=0.0, shift=0)
    given = uniforms(4, settings)
    drawn = parts_of(given, settings)["auto"]
    drawn[0], drawn[1], drawn[2] = (last + 0.5) / len(pairs), 0.99, 0.0  # not the first, but the second
    ours = auto_augment.operated_views(images, None, given, settings, LEVELS).round()
    assert torch.equal(ours, 255 - images.float())


@pytest.mark.parametrize(
    "changes",
    [
        {"flip": 0.0},
        {"flip": 1.0},
        {"shift": 0},
        {"shift": 11},
        {"cutout": 7},
        {"cutout": 40},
        {"rand_operations": 1},
        {"rand_operations": 4},
        {"rand_magnitude": 0.0},
        {"rand_magnitude": 1.0},
        {"crop_area": (0.2, 1.0)},
        {"crop_area": (1e-4, 1e-4)},  # less than a pixel: every attempt fails
    ],
    ids=str,
)
def test_equals_the_plain_views_under_any_settings(changes):
    settings = replace(RAND, **changes)
    ours, theirs, moved = both(pictures(16, 16, 16), settings, views=16)
    if "crop_area" in changes:  # resampled too
        moved = torch.ones_like(moved)
    assert_equal(ours, theirs, moved)


def test_reads_a_batch_by_its_indices_and_in_any_layout():
    images, indices = pictures(9, 8, 8), torch.tensor([7, 0, 0, 8], device=DEVICE)
    ours, theirs, moved = both(images, AUTO, views=8, indices=indices)
    assert_equal(ours, theirs, moved)
    other = images.contiguous(memory_format=torch.channels_last)
    every_other = torch.stack([indices, indices + 1], dim=1)[:, 0]
    assert torch.equal(both(other, AUTO, views=8, indices=every_other)[0], ours)


def test_writes_half_precision_when_asked():
    images, mean, std = pictures(4, 8, 8), (0.49, 0.48, 0.45), (0.20, 0.21, 0.22)
    given = (images, None, uniforms(4, AUTO), AUTO)
    short = auto_augment.operated_views(*given, Normalisation(mean, std, torch.bfloat16))
    exact = auto_augment.operated_views(*given, Normalisation(mean, std))
    assert short.dtype == torch.bfloat16
    # A GPU rounds to the nearest; the interpreter cuts off.
    torch.testing.assert_close(short.float(), exact, rtol=2**-7, atol=0)
    torch.testing.assert_close(exact, operated_views(*given, Normalisation(mean, std)), atol=1e-5, rtol=0)


def test_what_it_leaves_to_the_plain_path():
    images = torch.empty(2, 3, 32, 32, dtype=torch.uint8, device="meta")
    assert auto_augment.handles(images, AUTO) and auto_augment.handles(images, RAND)
    assert not auto_augment.handles(images, AugmentSettings(policy="stacked-rand"))
    assert not auto_augment.handles(torch.empty(2, 3, 65, 32, device="meta"), AUTO)


BOTH = """
from varcon.kernels import auto_augment

for options in ({"policy": "auto", "crop_area": (1.0, 1.0)}, {"policy": "rand", "cutout": 8}):
    constants = auto_augment.compiled_in((24, 24), AugmentSettings(**options), LEVELS)
    compile(auto_augment._auto_kernel, constants)
"""


def test_compiles_for_a_gpu_where_there_is_none(tmp_path):
    """The interpreter takes what the compiler refuses."""
    assert run_with_compiler(COMPILED + BOTH, tmp_path) == "['cubin', 'ptx']\n" * 2


# On the device itself


def on_gpu(seed: int = 0) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [AUTO, replace(RAND, cutout=8)], ids=lambda s: s.policy)
def test_a_training_batch_equals_the_plain_views(settings):
    images = pictures(512, 32, 32)
    views = draw_views(images, settings, LEVELS.mean, LEVELS.std, on_gpu())
    again = draw_views(images, settings, LEVELS.mean, LEVELS.std, on_gpu())
    assert all(torch.equal(*pair) for pair in zip(views, again, strict=True))
    drawn = torch.rand(1024 * sum(draws(settings).values()), device="cuda", generator=on_gpu())
    plain = operated_views(images, None, drawn, settings, LEVELS)
    assert (torch.cat(views).round() != plain.round()).float().mean() < 2e-3


@pytest.mark.filterwarnings("ignore")  # the profiler's own
@pytest.mark.gpu
def test_a_batch_is_two_launches():
    images, generator = pictures(64, 32, 32), on_gpu()
    draw_views(images, AUTO, LEVELS.mean, LEVELS.std, generator)  # compiles
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profile:
        draw_views(images, AUTO, LEVELS.mean, LEVELS.std, generator)
        torch.cuda.synchronize()
    assert sum(event.count for event in profile.key_averages() if event.self_device_time_total > 0) == 2
