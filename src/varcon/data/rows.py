"""A file of decoded images, and its index.

The file has pixels alone, uint8 [3, size, size] an image. Beside it lies the index: which image each row is,
and the sums of its pixels. By them the mean and deviation of any part are known without reading it, and also
which images are decoded already. Rows are added and never moved.
"""

from __future__ import annotations

import errno
import io
import math
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from varcon.files import replacing

ROW = np.dtype([("image", np.uint64), ("sums", np.int64, (2, 3))])  # of the index
NOT_YET = -1  # in the place of an image's sums


class Rows:
    """A file's rows of uint8, of one shape each, which several threads may read and write.

    Not by a mapping into memory: that reads page by page, which can take a hundred times as long from a
    disk, and ends the process without a word where the disk is full or gone.
    """

    def __init__(self, file: Path, shape: tuple[int, ...], mode: str = "rb") -> None:
        self.shape = shape  # of a row
        self._length = math.prod(shape)
        self._file = io.FileIO(file, mode)
        self.close = weakref.finalize(self, self._file.close)  # at the latest when nobody holds the images
        self._turn = threading.Lock()

    def read_into(self, target: np.ndarray, places: list[int]) -> None:
        for row, place in zip(target, places, strict=True):
            self._move(place, memoryview(row).cast("B"), self._file.readinto)

    def write(self, place: int, row: np.ndarray) -> None:
        self._move(place, memoryview(row.tobytes()), self._file.write)

    def flush(self) -> None:
        """What is written is on the disk."""
        os.fsync(self._file.fileno())

    def _move(self, place: int, content: memoryview, move: Callable[[memoryview], int | None]) -> None:
        try:
            with self._turn:
                self._file.seek(place * self._length)
                while content:
                    moved = move(content)
                    if not moved:
                        raise OSError(errno.EIO, "the file ends early")
                    content = content[moved:]
        except OSError as error:  # which names no file
            raise OSError(error.errno, error.strerror, str(self._file.name)) from None


def make_long(file: Path, length: int) -> None:
    """Never shorter, and never empty first: where there are no locks another process may be writing there."""
    with file.open("ab") as target:
        if target.seek(0, os.SEEK_END) < length:
            target.truncate(length)


def index_of(pixels: Path, size: int) -> np.ndarray:
    """A ROW of each image in the file. One whose pixels are lost is not decoded any more."""
    try:
        index: np.ndarray = np.load(pixels.with_suffix(".index"), allow_pickle=False)
        rows = pixels.stat().st_size // (3 * size * size)
    except (OSError, ValueError, EOFError):  # absent, or cut short
        return np.empty(0, ROW)
    if index.dtype != ROW or index.ndim != 1:
        return np.empty(0, ROW)
    index["sums"][rows:] = NOT_YET
    return index


def write_index(pixels: Path, index: np.ndarray) -> None:
    with replacing(pixels.with_suffix(".index")) as temporary, temporary.open("wb") as target:
        np.save(target, index)


def places_of(images: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where each of them is among the known ones, or -1."""
    order = np.argsort(known, kind="stable")
    places = np.append(order, -1)[np.searchsorted(known, images, sorter=order)]
    return np.where(np.append(known, np.uint64(0))[places] == images, places, -1)


def sums_of(pixels: np.ndarray) -> np.ndarray:
    """[2, 3]: of the pixels of a channel, and of their squares, from [3, H, W]."""
    channels = pixels.reshape(3, -1).astype(np.int64)
    return np.stack([channels.sum(1), np.square(channels).sum(1)])
