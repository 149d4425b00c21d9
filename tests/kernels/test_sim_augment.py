"""The kernel against its plain-torch twin: in Triton's interpreter here, on the GPU where there is one."""

from __future__ import annotations

import pytest
import torch
from references.kernels import COMPILED, pictures, run_with_compiler, seeded

from varcon.augment import AugmentSettings, draw_views
from varcon.augment.ops import Normalisation
from varcon.augment.sim import sim_views, uniforms_per_view

pytest.importorskip("triton")
from varcon.kernels import sim_augment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN, STD = (0.49, 0.48, 0.45), (0.20, 0.21, 0.22)
TO = Normalisation(MEAN, STD)
TOLERANCE = 5e-5  # of normalised values: 1e-5 of the range 0 to 1


def uniforms(views: int, settings: AugmentSettings, seed: int = 3) -> torch.Tensor:
    return torch.rand(views * uniforms_per_view(settings), generator=seeded(seed)).to(DEVICE)


def both(images, settings, size, views=6, indices=None):
    given = (images, indices, uniforms(views, settings), settings, size, TO)
    assert sim_augment.handles(images, settings, size)
    return sim_augment.sim_views(*given), sim_views(*given)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (24, 24), (32, 32), (20, 44), (44, 20), (1, 5)])
def test_equals_the_plain_views(height, width):
    images = pictures(3, height, width)
    ours, theirs = both(images, AugmentSettings(), (height, width))
    assert ours.shape == (6, 3, height, width) and ours.dtype == torch.float32
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"flip": 0.0},
        {"flip": 1.0},
        {"jitter_probability": 0.0},
        {"jitter_probability": 1.0, "jitter": (0.8, 0.8, 1.5, 0.5)},
        {"grey": 1.0},
        {"crop_area": (1.0, 1.0)},
        {"crop_area": (1e-4, 1e-4)},  # less than a pixel: every attempt fails
        {"crop_area": (0.01, 0.05)},
    ],
    ids=str,
)
def test_equals_the_plain_views_under_any_settings(settings):
    ours, theirs = both(pictures(4, 24, 24), AugmentSettings(**settings), (24, 24), views=4)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(8, 40), (40, 8)])
def test_the_central_crop_where_nothing_fits(height, width):
    images = pictures(2, height, width)
    ours, theirs = both(images, AugmentSettings(crop_area=(0.9, 1.0)), (height, width), views=2)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("side", "small", "area"), [(32, 16, (0.05, 0.2)), (32, 12, (0.8, 1.0)), (20, 30, None)]
)
def test_views_of_another_size(side, small, area):
    settings = AugmentSettings(crop_area=area or (0.2, 1.0))
    ours, theirs = both(pictures(2, side, side), settings, (small, small), views=4)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


def test_reads_a_batch_by_its_indices_and_in_any_layout():
    images, indices = pictures(9, 8, 8), torch.tensor([7, 0, 0, 8], device=DEVICE)
    ours, theirs = both(images, AugmentSettings(), (8, 8), views=8, indices=indices)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)
    other = images.contiguous(memory_format=torch.channels_last)
    every_other = torch.stack([indices, indices + 1], dim=1)[:, 0]
    again = both(other, AugmentSettings(), (8, 8), views=8, indices=every_other)[0]
    assert torch.equal(again, ours)


def test_the_same_uniforms_make_the_same_views():
    images = pictures(2, 8, 8)
    first, second = (both(images, AugmentSettings(), (8, 8), views=4)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_writes_half_precision_when_asked():
    images, settings = pictures(2, 8, 8), AugmentSettings()
    given = (images, None, uniforms(4, settings), settings, (8, 8))
    ours = sim_augment.sim_views(*given, Normalisation(MEAN, STD, torch.bfloat16))
    assert ours.is_contiguous(memory_format=torch.channels_last)
    # A GPU rounds to the nearest; the interpreter cuts off.
    torch.testing.assert_close(ours.float(), sim_augment.sim_views(*given, TO), rtol=2**-7, atol=0)


def test_what_it_leaves_to_the_plain_path():
    images = torch.empty(2, 3, 32, 32, dtype=torch.uint8, device="meta")
    assert sim_augment.handles(images, AugmentSettings(), (32, 32))
    assert not sim_augment.handles(images, AugmentSettings(blur=0.5), (32, 32))
    assert not sim_augment.handles(images, AugmentSettings(), (4, 4))
    large = torch.empty(2, 3, 65, 32, dtype=torch.uint8, device="meta")
    assert not sim_augment.handles(large, AugmentSettings(), (65, 32))


SMALLER = """
from varcon.kernels import sim_augment

compile(sim_augment._sim_kernel, sim_augment.compiled_in((32, 32), AugmentSettings(), (16, 16), LEVELS))
"""


def test_compiles_for_a_gpu_where_there_is_none(tmp_path):
    """The interpreter takes what the compiler refuses."""
    assert run_with_compiler(COMPILED + SMALLER, tmp_path) == "['cubin', 'ptx']\n"


# On the device itself


def on_gpu(seed: int = 0) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


@pytest.mark.gpu
def test_a_training_batch_equals_the_plain_views():
    images, settings = pictures(512, 32, 32), AugmentSettings(small_views=2)
    views = draw_views(images, settings, MEAN, STD, on_gpu())
    again = draw_views(images, settings, MEAN, STD, on_gpu())
    assert all(torch.equal(*pair) for pair in zip(views, again, strict=True))
    per_view = uniforms_per_view(settings)
    drawn = torch.rand(4 * 512 * per_view, device="cuda", generator=on_gpu())
    large, small = drawn.split(2 * 512 * per_view)
    close = AugmentSettings(crop_area=settings.small_crop_area)
    plain = sim_views(images, None, large, settings, (32, 32), TO)
    torch.testing.assert_close(torch.cat(views[:2]), plain, atol=TOLERANCE, rtol=0)
    plain = sim_views(images, None, small, close, (16, 16), TO)
    torch.testing.assert_close(torch.cat(views[2:]), plain, atol=TOLERANCE, rtol=0)


@pytest.mark.filterwarnings("ignore")  # the profiler's own
@pytest.mark.gpu
def test_a_batch_is_two_launches():
    images, settings, indices = pictures(64, 32, 32), AugmentSettings(), torch.arange(32, device="cuda")
    generator = on_gpu()
    draw_views(images, settings, MEAN, STD, generator, indices)  # compiles
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profile:
        draw_views(images, settings, MEAN, STD, generator, indices)
        torch.cuda.synchronize()
    assert sum(event.count for event in profile.key_averages() if event.self_device_time_total > 0) == 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [AugmentSettings(small_views=1), AugmentSettings(blur=0.5), AugmentSettings(policy="auto")],
    ids=str,
)
def test_a_cuda_graph_draws_anew_at_each_replay(settings):
    """Also the plain path, which blurred views take, and the other kernel."""
    images, indices = pictures(64, 32, 32), torch.arange(32, device="cuda")
    generator = on_gpu(5)
    draw_views(images, settings, MEAN, STD, generator, indices)  # compiles and sends the constants
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = draw_views(images, settings, MEAN, STD, generator, indices)
    generator.manual_seed(6)
    eager = on_gpu(6)
    replayed = []
    for _ in range(2):
        graph.replay()
        expected = draw_views(images, settings, MEAN, STD, eager, indices)
        assert all(torch.equal(*pair) for pair in zip(captured, expected, strict=True))
        replayed.append(captured[0].clone())
    assert not torch.equal(*replayed)
