from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest
import torch
from references import augment as reference

from varcon.augment import POLICIES, AugmentSettings, augment, draw_views, prepare
from varcon.core import InputError

torch.set_num_threads(1)

ZERO, ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # a mean and a std that leave the view in [0, 1]
MEAN, STD = (0.49, 0.48, 0.45), (0.20, 0.21, 0.22)
EVERY_POLICY = [
    AugmentSettings(policy="none"),
    AugmentSettings(policy="crop-flip"),
    AugmentSettings(blur=0.5),
    AugmentSettings(policy="auto", crop_area=(1, 1)),
    AugmentSettings(policy="rand"),
    AugmentSettings(policy="stacked-rand", blur=0.5),
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=seeded(seed))


@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
def test_indices_name_the_batch_and_a_dtype_rounds_the_views(settings):
    images, indices = noise(20, 12, 12), torch.tensor([3, 17, 3, 0])
    views = draw_views(images, settings, MEAN, STD, seeded(3), indices)
    expected = draw_views(images[indices], settings, MEAN, STD, seeded(3))
    assert len(views) == 2 and all(torch.equal(*pair) for pair in zip(views, expected, strict=True))
    halves = draw_views(images, settings, MEAN, STD, seeded(3), indices, dtype=torch.bfloat16)
    assert all(torch.equal(half, view.bfloat16()) for half, view in zip(halves, views, strict=True))
    assert all(half.is_contiguous(memory_format=torch.channels_last) for half in halves)


@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (20, 28), (224, 224)])
def test_views_are_float32_in_range_in_channels_last_and_the_input_stays(settings, height, width):
    images = noise(3, height, width)
    before = images.clone()
    view = augment(images, settings, ZERO, ONE, seeded())
    assert torch.equal(images, before)
    assert view.shape == images.shape and view.dtype == torch.float32
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert view.min() >= 0 and view.max() <= 1
    normalised = augment(images, settings, MEAN, STD, seeded())
    expected = (view - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(normalised, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
def test_the_layout_of_the_input_does_not_matter(settings):
    images = noise(4, 20, 28)
    other = images.contiguous(memory_format=torch.channels_last)
    views = [augment(pixels, settings, MEAN, STD, seeded()) for pixels in (images, other)]
    torch.testing.assert_close(*views, atol=1e-6, rtol=0)


def test_none_and_prepare_are_the_image_itself():
    images = noise(5, 32, 32)
    view = augment(images, AugmentSettings(policy="none"), ZERO, ONE, seeded())
    assert torch.equal((view * 255).round().byte(), images)
    assert torch.equal(view, images / 255)
    assert torch.equal(
        prepare(images, MEAN, STD), augment(images, AugmentSettings(policy="none"), MEAN, STD, seeded())
    )


def test_crop_flip_makes_each_shifted_image_equally_often():
    n, shift = 10_000, 2
    image = noise(1, 8, 8)
    settings = AugmentSettings(policy="crop-flip", shift=shift)
    views = augment(image.expand(n, -1, -1, -1), settings, ZERO, ONE, seeded(3))
    found, counts = views.flatten(1).unique(dim=0, return_counts=True)
    expected = {
        reference.shifted(image[0].numpy(), down, right, shift, flip).tobytes()
        for down in range(-shift, shift + 1)
        for right in range(-shift, shift + 1)
        for flip in (False, True)
    }
    assert {(255 * view).round().byte().numpy().tobytes() for view in found} == expected
    assert len(expected) == 50
    assert (counts - n / 50).abs().max() < 4 * (n / 50) ** 0.5


@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
def test_randomness_comes_from_the_generator_alone(settings):
    images = noise(16, 32, 32)
    before = torch.get_rng_state()
    first = augment(images, settings, MEAN, STD, seeded(7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(123)
    generator = seeded(7)
    assert torch.equal(augment(images, settings, MEAN, STD, generator), first)
    again = augment(images, settings, MEAN, STD, generator)
    assert torch.equal(again, first) == (settings.policy == "none")


@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
def test_mixed_precision_around_it_changes_nothing(settings):
    images = noise(4, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = augment(images, settings, MEAN, STD, seeded(8))
    assert torch.equal(inside, augment(images, settings, MEAN, STD, seeded(8)))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.gpu
@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
def test_on_a_gpu_without_waiting_for_it(settings):
    images = noise(16, 32, 32).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    augment(images, settings, MEAN, STD, generator)  # libraries load, constants are sent
    torch.cuda.set_sync_debug_mode("error")
    try:
        generator.manual_seed(9)
        view = augment(images, settings, MEAN, STD, generator)
        generator.manual_seed(9)
        again = augment(images, settings, MEAN, STD, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert view.is_cuda and torch.equal(view, again)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"policy": "simm"},
            "augment.policy is 'simm'; did you mean 'sim'. choose one of none, crop-flip, sim",
        ),
        ({"views": 0}, "augment.views is 0; it must be at least 1"),
        ({"views": 2.5}, "augment.views is 2.5; it must be a whole number"),
        ({"crop_area": (0.0, 1.0)}, "augment.crop_area"),
        ({"crop_area": (0.9, 0.2)}, "in that order"),
        ({"crop_area": (0.2, 1.1)}, "at most 1"),
        ({"flip": 1.5}, "augment.flip is 1.5"),
        ({"jitter_probability": -0.1}, "augment.jitter_probability"),
        ({"grey": float("nan")}, "augment.grey"),
        ({"blur": 2}, "augment.blur"),
        ({"jitter": (0.4, 0.4, 0.4)}, "augment.jitter is"),
        ({"jitter": (float("nan"), 0.4, 0.4, 0.1)}, "four strengths"),
        ({"jitter": (-0.4, 0.4, 0.4, 0.1)}, "at least 0"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "at most 0.5"),
        ({"shift": -1}, "augment.shift is -1"),
        ({"auto": "svhn"}, "augment.auto is 'svhn'; choose one of cifar10, imagenet"),
        ({"rand_operations": 0}, "rand_operations is 0"),
        ({"rand_magnitude": 9}, r"rand_magnitude is 9.0; it must lie in \[0, 1\]"),
        ({"cutout": -2}, "augment.cutout is -2; it must be at least 0"),
    ],
)
def test_settings_that_cannot_be_used(wrong, message):
    with pytest.raises(InputError, match=message):
        AugmentSettings(**wrong)


def test_images_that_cannot_be_used():
    with pytest.raises(
        InputError, match=r"images are torch.float32 \[2, 3, 8, 8\]; pass them as torch.uint8"
    ):
        augment(torch.zeros(2, 3, 8, 8), AugmentSettings(), MEAN, STD, seeded())
    with pytest.raises(InputError, match=r"\[2, 1, 8, 8\]"):
        prepare(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), MEAN, STD)
    with pytest.raises(InputError, match="set it to at most 7"):
        augment(noise(2, 8, 8), AugmentSettings(policy="crop-flip", shift=8), MEAN, STD, seeded())


@pytest.mark.parametrize("settings", EVERY_POLICY, ids=lambda settings: settings.policy)
def test_a_batch_of_no_images(settings):
    for images, indices in ((noise(0, 8, 8), None), (noise(3, 8, 8), torch.tensor([], dtype=torch.int64))):
        with pytest.raises(InputError, match=r"^the batch is empty; give at least one sample\.$"):
            draw_views(images, settings, MEAN, STD, seeded(), indices)


def test_every_policy_is_tested_here():
    assert {settings.policy for settings in EVERY_POLICY} == set(POLICIES) - {"vectors"}  # test_vectors.py


OPERATED = ("auto", "rand", "stacked-rand")
ACTS = {  # another value of a setting, and the policies in which it changes the views
    "crop_area": ((0.9, 1.0), ("sim", *OPERATED)),
    "flip": (0.0, ("crop-flip", "sim", *OPERATED)),
    "jitter": ((0.8, 0.8, 0.8, 0.2), ("sim", "stacked-rand")),
    "jitter_probability": (0.0, ("sim", "stacked-rand")),
    "grey": (1.0, ("sim", "stacked-rand")),
    "blur": (1.0, ("sim", "stacked-rand")),
    "shift": (2, ("crop-flip",)),
    "auto": ("imagenet", ("auto",)),
    "rand_operations": (3, ("rand", "stacked-rand")),
    "rand_magnitude": (0.9, ("rand", "stacked-rand")),
    "cutout": (4, OPERATED),
}


def said_of(setting: str) -> str:
    """The comment of a setting, or the words below it: what --help and the documentation show."""
    source = inspect.getsource(AugmentSettings)
    after = source[source.index(f"\n    {setting}: ") :]
    found = re.search(r"#(.*)", after.splitlines()[1]) or re.search('"""(.*?)"""', after, re.DOTALL)
    assert found
    return " ".join(found[1].split())


@pytest.mark.parametrize("setting", ACTS)
def test_a_setting_acts_where_its_words_say(setting):
    images = noise(40, 12, 12)
    value, acts_in = ACTS[setting]
    for policy in ("none", "crop-flip", "sim", *OPERATED):
        plain = AugmentSettings(policy=policy)
        if setting in ("blur", "cutout") and policy not in acts_in:
            *others, last = map(repr, acts_in)
            needed = f"^augment.{setting} needs the policy {', '.join(others)} or {last}, not {policy!r}; set"
            with pytest.raises(InputError, match=needed):
                replace(plain, **{setting: value})
            continue
        changed = replace(plain, **{setting: value})
        views = [
            torch.stack(draw_views(images, settings, ZERO, ONE, seeded())) for settings in (plain, changed)
        ]
        assert torch.equal(*views) == (policy not in acts_in), policy
        may_act = policy in acts_in or (setting == "shift" and policy in OPERATED)  # where nothing is cropped
        assert changed.without_effect() == ([] if may_act else [setting])
    listed = "all but none, vectors" if setting == "flip" else ", ".join(acts_in)
    assert f"({listed}" in said_of(setting)


def test_where_nothing_is_cropped_the_image_is_shifted_as_the_words_say():
    assert said_of("crop_area").endswith(f"(1, 1): a shift instead ({', '.join(OPERATED)})")
    assert said_of("shift").endswith(f"{', '.join(OPERATED)} where crop_area is (1, 1))")
    images = noise(40, 12, 12)
    still = {"crop_area": (1, 1), "flip": 0.0, "jitter_probability": 0.0, "grey": 0.0, "rand_magnitude": 0.0}
    for policy in ("sim", *OPERATED):
        views = [
            augment(images, AugmentSettings(policy, shift=shift, **still), ZERO, ONE, seeded())
            for shift in (0, 4)
        ]
        assert torch.equal(*views) == (policy == "sim")
    unmoved = augment(images, AugmentSettings("sim", **still), ZERO, ONE, seeded())
    torch.testing.assert_close(unmoved, images / 255, atol=1e-6, rtol=0)


def test_small_views_come_last_and_show_less(generator):
    """A horizontal ramp: the spread of values in a view tells how much of the image it shows."""
    ramp = torch.arange(32, dtype=torch.uint8).mul(8).expand(64, 3, 32, 32).contiguous()
    still = {"flip": 0.0, "jitter_probability": 0.0, "grey": 0.0}
    settings = AugmentSettings(small_views=3, small_size=12, crop_area=(0.8, 1.0), **still)
    views = draw_views(ramp, settings, (0.0,) * 3, (1.0,) * 3, generator)
    assert [tuple(view.shape) for view in views] == [(64, 3, 32, 32)] * 2 + [(64, 3, 12, 12)] * 3
    shown = [(view.amax((1, 2, 3)) - view.amin((1, 2, 3))).mean() for view in views]
    assert min(shown[:2]) > 0.8
    assert 0.1 < max(shown[2:]) < 0.45
    assert not torch.equal(views[2], views[3])


def test_small_views_need_sim():
    with pytest.raises(InputError, match="small_views need the policy 'sim'"):
        AugmentSettings(policy="crop-flip", small_views=2)
    with pytest.raises(InputError, match="small_crop_area"):
        AugmentSettings(small_crop_area=(0.5, 0.1))
