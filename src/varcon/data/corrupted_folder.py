"""Corrupted test sets as published: CIFAR-10-C and CIFAR-100-C (.npy files), ImageNet-C (folders)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from varcon.core import Data, InputError
from varcon.data.assemble import check_labels, resize, to_images, to_labels
from varcon.data.decoding import decode
from varcon.data.listing import class_folders, list_images

SEVERITIES = 5  # all in one .npy file, one after the other
LAYOUT = "NAME.npy beside labels.npy, as in CIFAR-10-C, or NAME/SEVERITY/CLASS/*.jpg, as in ImageNet-C"


class CorruptedSplit(NamedTuple):
    """The test images under one corruption at one severity; what `read` does not name stays on disk."""

    labels: Tensor  # [N] int64
    read: Callable[[Tensor], Tensor]  # positions [M] to images [M, 3, S, S] uint8, of the size of the data


def locate(path: str, name: str, severity: int) -> Path:
    """The .npy file, or the folder of classes, that holds a corruption; what is missing is named."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise InputError(f"there is no folder {root} of corrupted images: it should hold {LAYOUT}")
    if (root / "labels.npy").is_file() or (root / f"{name}.npy").is_file():
        for file in (root / f"{name}.npy", root / "labels.npy"):
            if not file.is_file():
                raise InputError(f"there is no file {file}: {root} should hold {LAYOUT}")
        return root / f"{name}.npy"
    # ImageNet-C comes in four archives, whose folders (noise, blur, weather, digital) may still be there.
    for folder in (root / name, *sorted(root.glob(f"*/{name}"))):
        if folder.is_dir():
            if not (folder / str(severity)).is_dir():
                raise InputError(f"there is no folder {folder / str(severity)}: {root} should hold {LAYOUT}")
            return folder / str(severity)
    raise InputError(f"{root} holds neither {name}.npy nor a folder {name}: it should hold {LAYOUT}")


def open_corrupted(path: str, name: str, severity: int, data: Data) -> CorruptedSplit:
    place = locate(path, name, severity)
    found = _open_folder(place, data) if place.is_dir() else _open_array(place, severity, data)
    if len(found.labels) != len(data.test):  # the clean accuracy would be that of other images
        raise InputError(
            f"{place} holds {len(found.labels)} images of a severity, and the run has {len(data.test)} test "
            "images: they must be the same ones, corrupted (those of data.held_out have no such copies)"
        )
    return found


def _open_array(file: Path, severity: int, data: Data) -> CorruptedSplit:
    images, labels = _read_array(file), _read_array(file.with_name("labels.npy"))
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(images) % SEVERITIES:
        raise InputError(
            f"{file} holds {images.dtype} {list(images.shape)}: it should hold the images of five "
            "severities one after the other, uint8 [5 N, H, W, 3]"
        )
    where = f"labels of {file.with_name('labels.npy')}"
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise InputError(
            f"{where} are {labels.dtype} {list(labels.shape)}: they should be whole numbers, "
            f"one for each of the {len(images)} images of {file.name}"
        )
    count = len(images) // SEVERITIES
    part = slice((severity - 1) * count, severity * count)
    check_labels(labels[part], len(data.classes), where)
    chosen = to_labels(labels[part])
    # The images are the test images in their order; otherwise these labels are those of other data.
    if count == len(data.test) and not torch.equal(chosen, data.test.labels.cpu()):
        raise InputError(
            f"{where} differ from those of the test images: "
            "give the corrupted images of the data set that the run was trained on"
        )
    size = data.test.images.shape[-1]

    def read(positions: Tensor) -> Tensor:
        return resize(to_images(images[part][positions.numpy()]), size)

    return CorruptedSplit(chosen, read)


def _read_array(file: Path) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises several kinds of errors on damaged files
        raise InputError(f"{file} is not a readable .npy file ({error}): download it again") from error


def _open_folder(folder: Path, data: Data) -> CorruptedSplit:
    if not class_folders(folder):
        raise InputError(f"{folder} holds no folder per class: it should hold CLASS/*.jpg, as in ImageNet-C")
    files, labels = list_images(folder, data.classes)
    size = data.test.images.shape[-1]

    def read(positions: Tensor) -> Tensor:
        return decode([files[i] for i in positions.tolist()], size)

    return CorruptedSplit(torch.tensor(labels), read)
