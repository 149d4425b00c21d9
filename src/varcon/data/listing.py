"""Where the images of a folder lie: train and test, the folder of each class, and what is no image.

Where there are no test images, or only path/<class>/*, a share of each class is held out in their place.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from varcon.core import InputError
from varcon.data.subset import hold_out
from varcon.files import refuse_other_than_utf8

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
# In any case of letters; of several test folders the first of these is read.
TRAIN_NAMES = ("train", "training", "train_set", "training_set")
TEST_NAMES = ("test", "testing", "test_set", "val", "valid", "validation")
LAYOUT = "the layout is <class>/*.jpg, or train/<class>/*.jpg and test/<class>/*.jpg"
HELD_OUT = 0.2  # share of each class that stands in for test images where there are none
MOST_NAMED = 20  # of the files that cannot be read
FEW_NAMED = 3  # of folders, and of files that can be read but are odd


class Found(NamedTuple):
    classes: list[str]
    train_files: list[Path]
    train_labels: list[int]
    test_files: list[Path]  # none: some of the others are to be held out
    test_labels: list[int]


def find_images(root: Path) -> Found:
    train_folder, test_folder = find_splits(root)
    classes = [folder.name for folder in class_folders(train_folder)]
    if not classes:
        raise InputError(f"{train_folder} has no folder per class: {LAYOUT}")
    for name in classes:
        refuse_other_than_utf8(Path(name))
    if train_folder == root:
        refuse_unknown_splits(root)
    if test_folder and not class_folders(test_folder) and holds_images(test_folder):
        name = test_folder.name
        raise InputError(
            f"{test_folder} holds images and no folder per class: sort them into {name}/<class>/, or move "
            f"{name} out of {root}; some training images are then held out in its place"
        )
    tests: tuple[list[Path], list[int]] = list_images(test_folder, classes) if test_folder else ([], [])
    return Found(classes, *list_images(train_folder, classes), *tests)


def with_held_out(found: Found, root: Path) -> Found:
    """Some of the training files in the place of test files, where there are none."""
    if found.test_files:
        return found
    kept, held = (places.tolist() for places in hold_out(torch.tensor(found.train_labels), HELD_OUT, seed=0))
    if not held:
        raise InputError(f"{root} has one image of each class, and none to judge by: add some")
    files, labels = found.train_files, found.train_labels
    return Found(
        found.classes,
        [files[i] for i in kept],
        [labels[i] for i in kept],
        [files[i] for i in held],
        [labels[i] for i in held],
    )


def find_splits(root: Path) -> tuple[Path, Path | None]:
    if root.is_file():
        raise InputError(f"data.path {root} is a file, and data.name folder takes a folder: {LAYOUT}")
    if not root.is_dir():
        raise InputError(f"there is no folder {root}: correct data.path, and unpack the images if need be")
    folders = class_folders(root)
    trains, tests = (
        [folder for name in names for folder in folders if folder.name.lower() == name]
        for names in (TRAIN_NAMES, TEST_NAMES)
    )
    if len(trains) > 1:
        several = listed(sorted(folder.name for folder in trains), FEW_NAMED)
        raise InputError(
            f"{root} has the folders {several}: keep the one to train on and move the others away"
        )
    if trains:
        return trains[0], tests[0] if tests else None
    if tests:
        raise InputError(f"{root} has a folder {tests[0].name} and no folder train: {LAYOUT}")
    return root, None


def refuse_unknown_splits(root: Path) -> None:
    """Folders that all hold the same folders, and no image beside them, are hardly classes."""
    folders = class_folders(root)
    if len(folders) < 2 or any(holds_images(folder) for folder in folders):
        return
    inside = {tuple(entry.name for entry in class_folders(folder)) for folder in folders}
    names = inside.pop()
    if names and not inside:
        raise InputError(
            f"{root}: its folders {listed([folder.name for folder in folders], FEW_NAMED)} hold no image of "
            f"their own, but each the same folders, {listed(list(names), FEW_NAMED)}: name two of them train "
            "and test, or, if they are the classes, move them into a folder train"
        )


def class_folders(split: Path) -> list[Path]:
    """But hidden ones, what a Mac adds to its archives, and links to a folder that they lie in."""
    above = {split.resolve(), *split.resolve().parents}
    return sorted(
        entry
        for entry in split.iterdir()
        if entry.is_dir()
        and not entry.name.startswith(".")
        and entry.name != "__MACOSX"
        and entry.resolve() not in above
    )


def list_images(split: Path, classes: list[str]) -> tuple[list[Path], list[int]]:
    """The images of a split, in the order of their paths, and the class of each."""
    files: list[Path] = []
    labels: list[int] = []
    empty: list[str] = []
    for folder in class_folders(split):
        if folder.name not in classes:
            raise InputError(f"{folder} is a class without training images: add them to train, or remove it")
        found = images_below(folder)
        if not found:
            empty.append(str(folder))
        files += found
        labels += [classes.index(folder.name)] * len(found)
    if empty:
        raise InputError(
            f"{listed(empty, MOST_NAMED)} {'hold' if len(empty) > 1 else 'holds'} no image "
            f"({' '.join(SUFFIXES)}): add some or remove {'them' if len(empty) > 1 else 'it'}"
        )
    return files, labels


def class_of(file: Path, root: Path) -> str:
    """By its place in a folder of images, as training reads it; none for an image beside the classes."""
    parts = file.relative_to(root).parts[:-1]
    if len(parts) > 1 and parts[0].lower() in (*TRAIN_NAMES, *TEST_NAMES):
        parts = parts[1:]
    return parts[0] if parts else ""


def left_out(root: Path) -> list[str]:
    """Sentences on the files among or beside the images that are not read."""
    splits = [split for split in find_splits(root) if split]
    folders = [folder for split in splits for folder in class_folders(split)]
    kinds = Counter(
        file.suffix.lower() or "without a suffix"
        for folder in folders
        for file in files_below(folder)
        if not is_image(file)
    )
    sentences = []
    if count := kinds.total():
        named = listed([f"{number:,} {kind}" for kind, number in kinds.most_common()], MOST_NAMED)
        sentences.append(f"{count:,} file{'s are' if count > 1 else ' is'} left out: {named}.")
    beside = sum(is_image(entry) for place in {root, *splits} for entry in place.iterdir())
    if beside:
        lie = (
            "s lie outside the class folders and are"
            if beside > 1
            else " lies outside the class folders and is"
        )
        sentences.append(f"{beside:,} image{lie} left out.")
    return sentences


def images_below(folder: Path) -> list[Path]:
    """In the order of their paths."""
    return sorted(file for file in files_below(folder) if is_image(file))


def files_below(folder: Path) -> Iterator[Path]:
    """Links to folders are followed, but none upwards, and no folder is looked into twice. What is hidden is
    left out: programs keep small copies there."""
    seen = {*folder.resolve().parents}
    for place, folders, names in os.walk(folder, followlinks=True):
        real = Path(place).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in names if not name.startswith("."))


def holds_images(folder: Path) -> bool:
    return any(is_image(entry) for entry in folder.iterdir())


def is_image(entry: Path) -> bool:
    return entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".") and entry.is_file()


def listed(names: list[str], most: int) -> str:
    """In words, and counted beyond so many."""
    shown = names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
