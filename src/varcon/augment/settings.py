"""What a recipe says about the views of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from varcon.augment import auto
from varcon.core import InputError

Policy = Literal["none", "crop-flip", "sim", "auto", "rand", "stacked-rand", "vectors"]
BLURRED = ("sim", "stacked-rand")  # the policies that can blur an image
CUT_OUT = ("auto", "rand", "stacked-rand")  # those that can hide a square of it


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
    """greatest shift in pixels, edges reflected
    (crop-flip; auto, rand, stacked-rand where crop_area is (1, 1))"""
    auto: Literal["cifar10", "imagenet"] = "cifar10"  # whose policy (auto)
    rand_operations: int = 2  # for each image (rand, stacked-rand)
    rand_magnitude: float = 0.3  # of the strongest (rand, stacked-rand)
    cutout: int = 0  # side in pixels of a square that is hidden (auto, rand, stacked-rand)
    swap: float = 0.2  # probability that a feature takes another sample's value (vectors)
    small_views: int = 0  # further views of less of the image and fewer pixels (sim; SwAV's multi-crop)
    small_size: int = 16  # their side in pixels
    small_crop_area: tuple[float, float] = (0.05, 0.2)  # least and greatest share of the image in them

    def __post_init__(self) -> None:
        policies = get_args(Policy)
        if self.policy not in policies:
            raise InputError(f"augment has no policy {self.policy!r}; choose one of {', '.join(policies)}.")
        if self.views < 1:
            raise InputError(f"augment.views is {self.views}, but a batch needs a view; set it to 1 or more.")
        for name in ("crop_area", "small_crop_area"):
            least, greatest = getattr(self, name)
            if not 0 < least <= greatest <= 1:
                raise InputError(
                    f"augment.{name} is {(least, greatest)}; give the least and the greatest share of the "
                    "image, in that order, each above 0 and at most 1."
                )
        if self.small_views < 0 or self.small_size < 1:
            raise InputError(
                f"augment.small_views is {self.small_views} and small_size {self.small_size}; "
                "neither may be negative, and the size counts pixels."
            )
        if self.small_views and self.policy != "sim":
            raise InputError(f"augment.small_views need the policy 'sim', not {self.policy!r}.")
        for name, acts_in in (("blur", BLURRED), ("cutout", CUT_OUT)):
            if getattr(self, name) > 0 and self.policy not in acts_in:
                *others, last = map(repr, acts_in)
                raise InputError(
                    f"augment.{name} needs the policy {', '.join(others)} or {last}, "
                    f"not {self.policy!r}; set it to 0."
                )
        for name in ("flip", "jitter_probability", "grey", "blur", "swap"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"augment.{name} is {getattr(self, name)}, but it is a probability; set it within 0 to 1."
                )
        if len(self.jitter) != 4 or not all(s >= 0 for s in self.jitter) or self.jitter[3] > 0.5:
            raise InputError(
                f"augment.jitter is {self.jitter}; give four strengths of at least 0 for brightness, "
                "contrast, saturation and hue, the last in turns and at most 0.5."
            )
        if self.auto not in auto.POLICIES:
            raise InputError(f"augment.auto is {self.auto!r}; choose one of {', '.join(auto.POLICIES)}.")
        if self.rand_operations < 1 or self.cutout < 0:
            raise InputError(
                f"augment.rand_operations is {self.rand_operations} and cutout {self.cutout}; "
                "the first must be at least 1, the second not negative."
            )
        if not 0 <= self.rand_magnitude <= 1:
            raise InputError(
                f"augment.rand_magnitude is {self.rand_magnitude}; set it within 0 to 1, the strongest."
            )
        if self.shift < 0:
            raise InputError(f"augment.shift is {self.shift}, but it counts pixels; set it to 0 or more.")
