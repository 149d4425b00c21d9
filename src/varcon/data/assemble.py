"""The steps with which every loader ends: check, bring to size, measure."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from varcon.core import Data, InputError, Split

Channels = tuple[float, float, float]


def given_path(path: str, what: str) -> Path:
    if not path:
        raise InputError(f"data.path is empty: set it to {what}")
    return Path(path).expanduser()


def to_images(array: np.ndarray) -> Tensor:
    """[N, H, W, 1 or 3] -> contiguous [N, 3, H, W]; grey is repeated."""
    count, height, width, _ = array.shape
    images = torch.empty((count, 3, height, width), dtype=torch.uint8)
    images.numpy()[...] = array.transpose(0, 3, 1, 2)
    return images


def to_labels(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def check_labels(labels: np.ndarray, num_classes: int, where: str) -> None:
    if not len(labels):
        raise InputError(f"{where} are empty: give at least one image and its label")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise InputError(
            f"{where} hold {labels[wrong[0]]} at position {wrong[0]}, outside 0..{num_classes - 1}: "
            "number the classes from 0 and train on all of them"
        )


def check_classes(train_labels: np.ndarray, classes: Sequence[str], source: str) -> None:
    name, count = Counter(classes).most_common(1)[0]
    if count > 1:
        raise InputError(f"{source} names {count} classes {name!r}: give each class its own name")
    # A class that nobody can learn is nearly always a slip, such as labels that count from 1.
    missing = np.setdiff1d(np.arange(len(classes)), train_labels)
    if len(missing):
        raise InputError(
            f"{source} has no training image of class {missing[0]} ({classes[missing[0]]}): "
            "number the classes from 0 without gaps, or leave this one out"
        )


def assemble(
    train: Split,
    test: Split,
    classes: list[str],
    image_size: int,
    source: str,
    mean_and_std: tuple[Channels, Channels] | None = None,
) -> Data:
    """Check, bring to size and measure; a loader that knows its mean and deviation gives them."""
    check_classes(train.labels.numpy(), classes, source)
    train, test = (
        replace(split, images=resize(split.images, image_size)) if isinstance(split.images, Tensor) else split
        for split in (train, test)
    )
    sizes = train.images.shape[-1], test.images.shape[-1]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{source} has training images of {sizes[0]} pixels and test images of {sizes[1]}: "
            "set data.image_size to bring both to one size"
        )
    if mean_and_std is None:
        own = train.images
        mean_and_std = channel_statistics(own) if isinstance(own, Tensor) else own.mean_and_std()
    return Data(train, test, classes, *mean_and_std)


def assemble_vectors(train: Split, test: Split, classes: list[str], source: str) -> Data:
    check_classes(train.labels.numpy(), classes, source)
    widths = train.images.shape[1], test.images.shape[1]
    if widths[0] != widths[1]:
        raise InputError(
            f"{source} has training vectors of {widths[0]} features and test vectors of {widths[1]}: "
            "give both the same"
        )
    assert isinstance(train.images, Tensor)
    mean, std = feature_statistics(train.images)
    return Data(train, test, classes, mean, std)


def feature_statistics(vectors: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each feature; a constant one's is 1, so that nothing divides by zero."""
    std, mean = torch.std_mean(vectors.double(), dim=0, correction=0)
    rounding = torch.finfo(vectors.dtype).eps * vectors.abs().amax(dim=0)  # of a constant's mean
    std = torch.where(std > rounding, std, std.clamp_min(1.0))  # what varies by more is divided all the same
    return tuple(mean.tolist()), tuple(std.tolist())


def resize(images: Tensor, size: int) -> Tensor:
    if size in (0, images.shape[-1]):
        return images
    require_memory(len(images), size)
    resized = torch.empty((len(images), 3, size, size), dtype=torch.uint8)
    for start in range(0, len(images), 1024):  # in parts: interpolation needs room of its own
        part = images[start : start + 1024]
        resized[start : start + 1024] = F.interpolate(part, (size, size), mode="bilinear", antialias=True)
    return resized


def channel_statistics(images: Tensor) -> tuple[Channels, Channels]:
    """Mean and deviation of each channel, of pixels scaled to [0, 1]."""
    total, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for part in images.split(64):  # sums of whole numbers: float64 holds them exactly
        pixels = part.double()
        total += pixels.sum((0, 2, 3))
        squares += pixels.square().sum((0, 2, 3))
    return statistics_of_sums(total, squares, images.numel() // 3)


def statistics_of_sums(total: Tensor, squares: Tensor, count: int) -> tuple[Channels, Channels]:
    """The same from each channel's sums of `count` pixels and of their squares, [3] each."""
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    std = (variance.sqrt() / 255).clamp(min=1e-3)  # a constant channel must not divide by zero
    return _triple(mean / 255), _triple(std)


def _triple(values: Tensor) -> Channels:
    red, green, blue = values.tolist()
    return red, green, blue


def require_memory(count: int, size: int, otherwise: str = "") -> None:
    """Refuse before the work begins, not when the machine kills us in the middle of it."""
    processes = processes_here()
    needed, available = processes * 3 * count * size * size, available_memory()
    if available is not None and needed > available:
        fitting = math.isqrt(available // (processes * 3 * count))
        each = f" for each of {processes} processes" if processes > 1 else ""
        raise InputError(
            f"{count:,} images of {size} x {size} pixels{each} need {needed / 1e9:.2f} GB of memory and "
            f"{available / 1e9:.2f} GB are free: set data.image_size to {fitting} or less{otherwise}"
        )


def processes_here() -> int:
    """Of torchrun on this machine, each of which reads the data."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def available_memory() -> int | None:
    """Bytes that new arrays may take; None where the system does not say."""
    try:
        # Linux counts the file cache, which it gives up on demand, as used pages: a machine that has
        # just unpacked the images would look full. MemAvailable does not have this fault.
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows, not on macOS
        return None
