"""VOC2007 as its authors publish it: photographs that show several classes each, which only mAP can judge."""

from __future__ import annotations

from pathlib import Path

import torch

from varcon.core import Data, InputError, OnProgress, Split
from varcon.data.assemble import channel_statistics, require_memory
from varcon.data.decoding import decode
from varcon.data.folder import usual_size

LAYOUT = "JPEGImages/*.jpg and ImageSets/Main/<class>_trainval.txt and <class>_test.txt"
# As its lists write it, and as the measures of several classes an image take it.
SHOWN = {"1": 1, "-1": 0, "0": -1}  # 0 in a list: difficult to see, which counts neither way


def load_voc(path: str, image_size: int = 0, progress: OnProgress | None = None) -> Data:
    """Labels [N, classes]: 1 where an image shows the class, 0 where not, -1 where that does not count."""
    root = find_root(Path(path).expanduser())
    lists = root / "ImageSets" / "Main"
    classes = sorted(file.stem.removesuffix("_trainval") for file in lists.glob("*_trainval.txt"))
    if not classes:
        raise InputError(f"{lists} has no list <class>_trainval.txt; the layout is {LAYOUT}")
    (train_files, train_labels), (test_files, test_labels) = (
        read_lists(root, classes, part) for part in ("trainval", "test")
    )
    files = train_files + test_files
    size = image_size or usual_size(train_files, progress)
    require_memory(len(files), size)
    images = decode(files, size, progress)
    train = Split(images[: len(train_files)], train_labels)
    test = Split(images[len(train_files) :], test_labels)
    return Data(train, test, classes, *channel_statistics(images[: len(train_files)]))


def find_root(path: Path) -> Path:
    """The folder of the year's lists, or one above it, as the archive unpacks."""
    for root in (path, path / "VOC2007", path / "VOCdevkit" / "VOC2007"):
        if (root / "ImageSets" / "Main").is_dir():
            return root
    raise InputError(f"{path} has no folder ImageSets/Main; the layout is {LAYOUT}")


def read_lists(root: Path, classes: list[str], part: str) -> tuple[list[Path], torch.Tensor]:
    """The images that the classes' lists name, and what each shows."""
    columns = [read_list(root / "ImageSets" / "Main" / f"{name}_{part}.txt") for name in classes]
    names = list(columns[0])
    for name, column in zip(classes, columns, strict=True):
        if column.keys() != columns[0].keys():
            raise InputError(
                f"{name}_{part}.txt names other images than {classes[0]}_{part}.txt; unpack anew"
            )
    files = [root / "JPEGImages" / f"{name}.jpg" for name in names]
    return files, torch.tensor([[column[name] for column in columns] for name in names])


def read_list(file: Path) -> dict[str, int]:
    if not file.exists():
        raise InputError(f"there is no {file}; unpack the archives of both trainval and test into one folder")
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        match line.split():
            case []:
                continue
            case [name, shown] if shown in SHOWN:
                found[name] = SHOWN[shown]
            case _:
                raise InputError(f"{file}, line {number}, is not an image's name and 1, -1 or 0; unpack anew")
    if not found:
        raise InputError(f"{file} names no image; unpack anew")
    return found
