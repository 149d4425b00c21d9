"""Labelled images as uint8, whole in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from varcon.core import Data, InputError, OnProgress
from varcon.data.arrays import load_digits, load_npz
from varcon.data.cifar import load_cifar10, load_cifar100
from varcon.data.folder import load_folder
from varcon.data.subset import few_per_class, set_apart
from varcon.limits import at_least, below_one, declared, seed


@dataclass(frozen=True)
class DataSettings:
    name: Literal["digits", "cifar10", "cifar100", "folder", "npz"] = "digits"  # which data to read
    path: str = ""  # where it lies: a folder, or the .npz file; digits need none
    image_size: int = 0  # side in pixels; 0: the data's own (folder: the median short side, at most 224)
    store: str = ""
    """a folder on a fast disk, in which the decoded images of a folder are kept and from which they are read
    step by step, where memory has no room for them; empty: memory"""
    per_class: int = 0  # training images of each class, drawn at random; 0: all. Test images stay as they are
    per_class_seed: int = 0  # of one seed, the images of a smaller per_class are among those of a larger
    held_out: float = 0.0
    """share of the training images that stand in for the test images, to choose settings by; 0: none"""

    def __post_init__(self) -> None:
        declared(self, of="data")
        at_least(0, self, "image_size", "per_class", of="data")
        seed(self, "per_class_seed", of="data")
        below_one(self, "held_out", of="data")
        if self.store and self.name != "folder":
            raise InputError(
                f"data.store is for data.name folder, not {self.name}, which is read whole; leave it out"
            )


# Each takes (path, image_size, progress).
DATASETS: dict[str, Callable[[str, int, OnProgress | None], Data]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "folder": load_folder,
    "npz": load_npz,
}


def load(settings: DataSettings, progress: OnProgress | None = None) -> Data:
    read = partial(load_folder, store=settings.store) if settings.store else DATASETS[settings.name]
    return part(read(settings.path, settings.image_size, progress), settings)


def part(data: Data, settings: DataSettings) -> Data:
    """What is left of all images when some are held out, or few of each class are wanted.

    The memory of `data` is used anew.
    """
    if settings.held_out:
        train, test = set_apart(data.train, settings.held_out, seed=0)
        if not len(test):
            raise InputError(
                f"data.held_out is {settings.held_out} and there is one training image of each class, which "
                "training needs: add images, or set it to 0"
            )
        data = replace(data, train=train, test=test)
    if not len(data.test):
        raise InputError(
            f"{settings.path} has no array 'test_images': add it and test_labels, or set data.held_out to "
            "the share of the training images to judge by, such as 0.2"
        )
    if not settings.per_class:
        return data
    try:
        # Mean and deviation stay those of all images: they tell no label, and every part is then seen alike.
        return replace(data, train=few_per_class(data.train, settings.per_class, settings.per_class_seed))
    except InputError as error:
        raise InputError(f"data.per_class: {error}") from None
