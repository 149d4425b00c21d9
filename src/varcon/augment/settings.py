"""What a recipe says about the views of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from varcon.core import InputError
from varcon.limits import at_least, declared, share

Policy = Literal["none", "crop-flip", "sim", "auto", "rand", "stacked-rand", "vectors"]
ACTS_IN = {  # the policies that look at a setting, of those that not all do
    "crop_area": ("sim", "auto", "rand", "stacked-rand"),
    "flip": ("crop-flip", "sim", "auto", "rand", "stacked-rand"),
    "jitter": ("sim", "stacked-rand"),
    "jitter_probability": ("sim", "stacked-rand"),
    "grey": ("sim", "stacked-rand"),
    "blur": ("sim", "stacked-rand"),
    "shift": ("crop-flip", "auto", "rand", "stacked-rand"),
    "auto": ("auto",),
    "rand_operations": ("rand", "stacked-rand"),
    "rand_magnitude": ("rand", "stacked-rand"),
    "cutout": ("auto", "rand", "stacked-rand"),
    "swap": ("vectors",),
}


@dataclass(frozen=True)
class AugmentSettings:
    policy: Policy = "sim"
    """sim is SimCLR's; crop-flip suits cross-entropy; auto and rand are AutoAugment and RandAugment,
    stacked-rand is RandAugment with sim's colours and blur; vectors is for data that are not images"""
    views: int = 2  # differently augmented copies of each image in a batch
    crop_area: tuple[float, float] = (0.2, 1.0)
    """least and greatest share of the image kept (sim, auto, rand, stacked-rand);
    (1, 1): a shift instead (auto, rand, stacked-rand)"""
    flip: float = 0.5  # probability of a mirror image; 0 for digits and text (all but none, vectors)
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """strength of brightness, contrast, saturation and hue jitter (sim, stacked-rand)"""
    jitter_probability: float = 0.8  # probability of jittering an image's colours (sim, stacked-rand)
    grey: float = 0.2  # probability of a grey image (sim, stacked-rand)
    blur: float = 0.0  # probability of a blurred image; 0.5 for ImageNet (sim, stacked-rand)
    shift: int = 4
    """greatest shift in pixels; the gap is filled with the mirrored image, in which all but crop-flip repeat
    the outermost pixel (crop-flip; auto, rand, stacked-rand where crop_area is (1, 1))"""
    auto: Literal["cifar10", "imagenet"] = "cifar10"  # whose policy (auto)
    rand_operations: int = 2  # for each image (rand, stacked-rand)
    rand_magnitude: float = 0.3  # of the strongest (rand, stacked-rand)
    cutout: int = 0  # side in pixels of a square that is hidden (auto, rand, stacked-rand)
    swap: float = 0.2  # probability that a feature takes another sample's value (vectors)
    small_views: int = 0  # further views of less of the image and fewer pixels (sim; SwAV's multi-crop)
    small_size: int = 16  # their side in pixels
    small_crop_area: tuple[float, float] = (0.05, 0.2)  # least and greatest share of the image in them

    def __post_init__(self) -> None:
        declared(self, of="augment")
        at_least(1, self, "views", "small_size", "rand_operations", of="augment")
        at_least(0, self, "small_views", "shift", "cutout", of="augment")
        share(self, "flip", "jitter_probability", "grey", "blur", "rand_magnitude", "swap", of="augment")
        for name in ("crop_area", "small_crop_area"):
            least, greatest = getattr(self, name)
            if not 0 < least <= greatest <= 1:
                raise InputError(
                    f"augment.{name} is {(least, greatest)}; give the least and the greatest share of the "
                    "image, in that order, each above 0 and at most 1."
                )
        if self.small_views and self.policy != "sim":
            raise InputError(f"augment.small_views need the policy 'sim', not {self.policy!r}.")
        for name in ("blur", "cutout"):
            if getattr(self, name) > 0 and self.policy not in ACTS_IN[name]:
                *others, last = map(repr, ACTS_IN[name])
                raise InputError(
                    f"augment.{name} needs the policy {', '.join(others)} or {last}, "
                    f"not {self.policy!r}; set it to 0."
                )
        if not all(strength >= 0 for strength in self.jitter) or self.jitter[3] > 0.5:
            raise InputError(
                f"augment.jitter is {self.jitter}; give four strengths of at least 0 for brightness, "
                "contrast, saturation and hue, the last in turns and at most 0.5."
            )

    def without_effect(self) -> list[str]:
        """The settings that were changed and that this policy does not look at."""
        return [
            name
            for name, policies in ACTS_IN.items()
            if self.policy not in policies and getattr(self, name) != getattr(AugmentSettings, name)
        ]
