"""Folders of images, decoded once: into memory, or into a file that they are read from."""

from __future__ import annotations

import statistics
from pathlib import Path

import torch

from varcon.core import Data, InputError, OnProgress, Split
from varcon.data.assemble import assemble, given_path, require_memory
from varcon.data.decoding import decode, with_images
from varcon.data.listing import LAYOUT, Found, find_images, with_held_out
from varcon.data.stored import stored_images

LARGEST_DEFAULT = 224


def load_folder(path: str, image_size: int = 0, progress: OnProgress | None = None, store: str = "") -> Data:
    """With `store`, a folder, the images are decoded into a file there and stay on the disk."""
    root = given_path(path, f"a folder of images; {LAYOUT}")
    if store and Path(store).expanduser().resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"data.store {store} lies inside the folder of images {root}: set it to another place"
        )
    found = find_images(root)
    size = image_size or usual_size(found.train_files, progress)
    split = with_held_out(found, root)  # before decoding: a part of decoded images would be a second copy
    return (
        from_store(found, split, root, size, Path(store).expanduser(), progress)
        if store
        else into_memory(split, root, size, progress)
    )


def into_memory(found: Found, root: Path, size: int, progress: OnProgress | None) -> Data:
    files = found.train_files + found.test_files
    otherwise = ", or data.store to a folder on a fast disk, from which they are then read"
    require_memory(len(files), size, otherwise)
    images = decode(files, size, progress)
    count = len(found.train_files)
    places = [str(file.relative_to(root)) for file in files]
    train = Split(images[:count], torch.tensor(found.train_labels), places[:count])
    test = Split(images[count:], torch.tensor(found.test_labels), places[count:])
    return assemble(train, test, found.classes, size, str(root))


def from_store(
    found: Found, split: Found, root: Path, size: int, store: Path, progress: OnProgress | None
) -> Data:
    """The file has all images in the order of their paths, whichever are held out."""
    files = found.train_files + found.test_files
    images = stored_images(files, root, size, store, progress)
    place_of = {file: place for place, file in enumerate(files)}
    train, test = (
        Split(
            images.only(torch.tensor([place_of[file] for file in part])),
            torch.tensor(labels),
            [str(file.relative_to(root)) for file in part],
        )
        for part, labels in ((split.train_files, split.train_labels), (split.test_files, split.test_labels))
    )
    return assemble(train, test, found.classes, size, str(root))


def usual_size(
    files: list[Path], progress: OnProgress | None = None, largest: int | None = LARGEST_DEFAULT
) -> int:
    """The median short side, so that few images lose much or are blown up much."""
    sides = with_images(files, lambda _, image: min(image.size), "measuring images", progress)
    return min(statistics.median_low(sides), largest or max(sides))
