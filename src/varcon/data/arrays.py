"""Images or vectors that are arrays already: scikit-learn's digits and .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varcon.core import Data, InputError, OnProgress, Split
from varcon.data.assemble import assemble, assemble_vectors, check_labels, given_path, to_images, to_labels

KEYS = ("train_images", "train_labels", "test_images", "test_labels")  # of an .npz file


def load_digits(path: str = "", image_size: int = 0, progress: OnProgress | None = None) -> Data:
    """1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn; always the same split."""
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    if path:  # whoever gives one means other data
        raise InputError(
            f"data.path is {path}, but data.name is digits, which come with scikit-learn; other data "
            "need a recipe whose data.name is folder, npz, cifar10 or cifar100"
        )
    pixels, labels = sklearn_digits(return_X_y=True)  # [1797, 64] in 0..16
    grey = np.rint(pixels * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    split = train_test_split(np.arange(len(labels)), test_size=500, random_state=0, stratify=labels)
    train, test = (Split(to_images(grey[part]), to_labels(labels[part])) for part in split)
    return assemble(train, test, [str(digit) for digit in range(10)], image_size, "the digits")


def load_npz(path: str, image_size: int = 0, progress: OnProgress | None = None) -> Data:
    """Arrays train_images, train_labels, test_images, test_labels and, if given, classes.

    Two dimensions instead of an image's three or four make them vectors [N, d]. Without both test arrays
    there are no test images: data.held_out has to take some of the training images.
    """
    file = given_path(path, "the .npz file")
    arrays = read_npz(file)
    parts = ("train", "test") if "test_images" in arrays else ("train",)
    labels = {part: npz_labels(arrays, part, file) for part in parts}
    of_vectors = arrays["train_images"].ndim == 2
    read = npz_vectors if of_vectors else npz_images
    images = {part: read(arrays, part, file) for part in parts}
    if "classes" in arrays:
        classes = npz_classes(arrays["classes"], file)
    else:  # a stray label must not make a billion names: there are no more classes than images
        count = len(labels["train"])
        highest = int(labels["train"].max()) if count else 0
        classes = [str(label) for label in range(min(highest + 1, count))]
    for part, values in labels.items():
        if len(values) != len(images[part]):
            raise InputError(
                f"{file} has {len(images[part])} {part}_images but {len(values)} {part}_labels: "
                "give each image one label"
            )
        check_labels(values, len(classes), f"{part}_labels of {file}")
    if of_vectors and image_size:
        raise InputError(
            f"{file} holds vectors, and images of {image_size} pixels a side are asked for: give images, or "
            "leave data.image_size at 0"
        )
    to_samples = torch.from_numpy if of_vectors else to_images
    train, *tests = (Split(to_samples(images[part]), to_labels(labels[part])) for part in parts)
    test = tests[0] if tests else Split(train.images[:0], train.labels[:0])
    if of_vectors:
        return assemble_vectors(train, test, classes, str(file))
    return assemble(train, test, classes, image_size, str(file))


def read_npz(file: Path) -> dict[str, np.ndarray]:
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InputError(f"{file} cannot be opened ({error.strerror}): correct data.path") from error
    # Numpy, zipfile and zlib raise a dozen kinds of errors on damaged files, hence the wide nets.
    with stream:
        try:
            archive = np.load(stream, allow_pickle=False)
        except Exception as error:
            raise InputError(f"{file} is not a readable .npz file: write it anew with numpy.savez") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{file} holds a single array: write all of {', '.join(KEYS)} with numpy.savez")
        keys = KEYS if any(key in archive for key in KEYS[2:]) else KEYS[:2]
        missing = [key for key in keys if key not in archive]
        if missing:
            found = ", ".join(archive) or "nothing"
            raise InputError(f"{file} has no array {missing[0]!r}, only {found}: it needs {', '.join(KEYS)}")
        arrays = {}
        for key in (*keys, "classes") if "classes" in archive else keys:
            try:
                arrays[key] = archive[key]
            except Exception as error:
                raise InputError(
                    f"{key} of {file} cannot be read ({error}): write it anew with numpy.savez, "
                    "as a plain array without Python objects"
                ) from error
    return arrays


def npz_images(arrays: dict[str, np.ndarray], part: str, file: Path) -> np.ndarray:
    images, where = arrays[f"{part}_images"], f"{part}_images of {file}"
    if images.dtype != np.uint8:
        cure = (
            "multiply values in 0..1 by 255, round and cast them to uint8"
            if images.dtype.kind == "f"
            else "cast values in 0..255 to uint8"
        )
        raise InputError(f"{where} are {images.dtype} and must be uint8: {cure}")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise InputError(
            f"{where} have the shape {list(arrays[f'{part}_images'].shape)} "
            "and must have [N, H, W], [N, H, W, 1] or [N, H, W, 3]: put the channels last"
        )
    height, width = images.shape[1:3]
    if height != width or height == 0:
        raise InputError(f"{where} are {height} x {width} pixels and must be square: crop or pad them")
    return images  # [N, S, S, 1 or 3]


def any_images(array: Any) -> Tensor:
    """uint8 [N, 3, H, W] from [N, H, W], [N, H, W, 1 or 3] or [N, 1 or 3, H, W]."""
    images = np.asarray(array)
    if images.dtype != np.uint8:
        raise InputError(
            f"images are {images.dtype} and must be uint8: bring their values to 0..255 and cast them"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim == 4 and images.shape[-1] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not images.size:
        raise InputError(
            f"images have the shape {list(np.shape(array))} and must have [N, H, W], [N, H, W, 3] or "
            "[N, 3, H, W], none of them 0"
        )
    return to_images(images)


def npz_vectors(arrays: dict[str, np.ndarray], part: str, file: Path) -> np.ndarray:
    vectors, where = arrays[f"{part}_images"], f"{part}_images of {file}"
    if vectors.dtype.kind not in "fiub":
        raise InputError(f"{where} are {vectors.dtype}: give numbers, [N, d]")
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise InputError(f"{where} have the shape {list(vectors.shape)}: give vectors, [N, d], in both parts")
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused below
        vectors = vectors.astype(np.float32)
    if not np.isfinite(vectors).all():
        row = np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0]
        raise InputError(f"{where} hold NaN, infinity or what float32 cannot in row {row}: fill or drop it")
    return vectors


def npz_labels(arrays: dict[str, np.ndarray], part: str, file: Path) -> np.ndarray:
    labels, where = arrays[f"{part}_labels"], f"{part}_labels of {file}"
    if labels.ndim != 1:
        raise InputError(f"{where} have the shape {list(labels.shape)}: give one whole number per image, [N]")
    if labels.dtype.kind not in "iu":
        raise InputError(f"{where} are {labels.dtype} and must be whole numbers: cast them to int64")
    return labels


def npz_classes(names: np.ndarray, file: Path) -> list[str]:
    if names.ndim != 1 or not names.size or names.dtype.kind not in "US":
        raise InputError(
            f"classes of {file} are {names.dtype} of shape {list(names.shape)}: give a list of names"
        )
    if names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8", "replace")
    return [str(name) for name in names]
