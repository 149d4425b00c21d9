"""Decoded images in a file, for folders that memory has no room for: each is read when it is asked for.

The file is numpy's, uint8 [N, 3, size, size]. Beside it lie the sums of each image's pixels. By them the mean
and deviation of any part are known without reading it, and also which images are decoded already: decoding
that was stopped goes on where it was.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from varcon.core import InputError, OnProgress
from varcon.data.assemble import Channels, statistics_of_sums
from varcon.data.decoding import write_squares
from varcon.files import FORBIDDEN, naming, replacing

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

NOT_YET = -1  # in the place of an image's sums
IMAGES_BETWEEN_SAVES = 50_000  # as many may have to be decoded again
SECONDS_BETWEEN_LOOKS = 0.5  # at what another process has decoded


class Rows:
    """A file's rows of uint8, of one shape each, which several threads may read and write.

    Not by a mapping into memory: that reads page by page, which can take a hundred times as long from a
    disk, and ends the process without a word where the disk is full or gone.
    """

    def __init__(self, file: Path, mode: str = "rb") -> None:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        self.shape = tuple(array.shape)
        self._begin, self._length = int(array.offset), math.prod(self.shape[1:])
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
        with self._turn:
            self._file.seek(self._begin + place * self._length)
            while content:
                moved = move(content)
                if not moved:
                    raise OSError(errno.EIO, "the file ends early", str(self._file.name))
                content = content[moved:]


class StoredImages:
    """Some images of a file, in some order. Indexing reads them as a tensor; `only` reads nothing."""

    ndim, dtype, device = 4, torch.uint8, torch.device("cpu")

    def __init__(self, rows: Rows, sums: np.ndarray, name: str, places: Tensor) -> None:
        self._rows = rows  # of all images, [3, H, W] each
        self._sums = sums  # int64 [all images, 2, 3]: of each channel's pixels, and of their squares
        self._name = name  # by which all of them are known again
        self._places = places  # [N]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self._rows.shape[1:]))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        part = self.only(which)
        images = torch.empty(part.shape, dtype=self.dtype)
        part.read_into(images)
        return images

    def read_into(self, target: Tensor) -> None:
        self._rows.read_into(target.numpy(), self._places.tolist())

    def split(self, size: int) -> Iterator[Tensor]:
        return (self[start : start + size] for start in range(0, len(self), size))

    def only(self, which: slice | Tensor) -> StoredImages:
        return StoredImages(self._rows, self._sums, self._name, self._places[which])

    def mean_and_std(self) -> tuple[Channels, Channels]:
        """Of each channel, of pixels scaled to [0, 1]."""
        sums = torch.from_numpy(self._sums[self._places.numpy()].sum(0)).double()
        return statistics_of_sums(sums[0], sums[1], len(self) * math.prod(self.shape[2:]))

    def digest(self) -> bytes:
        """By which these images are known again without being read."""
        return hashlib.sha256(self._name.encode() + self._places.numpy().tobytes()).digest()


def stored_images(
    files: Sequence[Path], root: Path, size: int, folder: Path, progress: OnProgress | None = None
) -> StoredImages:
    """The images of `files` as squares, decoded into a file in `folder` where they are not there yet.

    Several processes may ask for the same at once: one decodes and the others wait for it.
    """
    name = f"{root.resolve().name}-{size}-{listing_digest(files, root)}"
    with may_be_written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    images, sums = folder / f"{name}.npy", folder / f"{name}-sums.npy"
    if not is_complete(images, sums, len(files), size):
        with may_be_written(folder), alone(folder, sums, len(files), progress):
            if not is_complete(images, sums, len(files), size):  # by another process, meanwhile
                decode_into(images, sums, files, size, progress)
    return StoredImages(Rows(images), np.load(sums, allow_pickle=False), name, torch.arange(len(files)))


def listing_digest(files: Sequence[Path], root: Path) -> str:
    """Of each file's place, size and time: an image that is replaced is decoded again."""
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        facts = file.stat()
        digest.update(os.fsencode(file.relative_to(root)))
        digest.update(f"\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def decode_into(
    images: Path, sums: Path, files: Sequence[Path], size: int, progress: OnProgress | None
) -> None:
    found = sums_so_far(sums, len(files))
    if found is None or not has_all_rows(images, len(files), size):
        require_room(images.parent, len(files), size)
        found = np.full((len(files), 2, 3), NOT_YET, dtype=np.int64)
        np.lib.format.open_memmap(images, "w+", np.uint8, (len(files), 3, size, size))  # empty, and as long
    left = np.flatnonzero(found[:, 0, 0] == NOT_YET).tolist()
    done = len(files) - len(left)
    finished = np.full_like(found, NOT_YET)  # in memory, until their pixels are known to be on the disk
    with naming(images), closing(Rows(images, "r+b")) as rows:

        def write(i: int, pixels: np.ndarray) -> None:
            rows.write(left[i], pixels)
            finished[left[i]] = sums_of(pixels)

        def save() -> None:
            known = finished.copy()  # before the pixels go to the disk: others are added meanwhile
            rows.flush()
            np.copyto(found, known, where=known != NOT_YET)
            with replacing(sums) as temporary, temporary.open("wb") as target:
                np.save(target, found)

        saved = 0

        def watch(count: int, total: int, what: str) -> None:
            nonlocal saved
            if progress:
                progress(done + count, len(files), what)
            if count - saved >= IMAGES_BETWEEN_SAVES:
                save()
                saved = count

        try:
            write_squares([files[i] for i in left], size, write, watch)
        finally:
            save()


def sums_of(pixels: np.ndarray) -> np.ndarray:
    """[2, 3]: of the pixels of a channel, and of their squares, from [3, H, W]."""
    channels = pixels.reshape(3, -1).astype(np.int64)
    return np.stack([channels.sum(1), np.square(channels).sum(1)])


def sums_so_far(sums: Path, count: int) -> np.ndarray | None:
    try:
        found: np.ndarray = np.load(sums, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # absent, or cut short
        return None
    return found if found.shape == (count, 2, 3) else None


def is_complete(images: Path, sums: Path, count: int, size: int) -> bool:
    found = sums_so_far(sums, count)
    decoded = found is not None and bool((found[:, 0, 0] != NOT_YET).all())
    return decoded and has_all_rows(images, count, size)


def has_all_rows(images: Path, count: int, size: int) -> bool:
    try:
        rows = np.load(images, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # absent, or cut short
        return False
    return bool(rows.shape == (count, 3, size, size))


def require_room(folder: Path, count: int, size: int) -> None:
    needed, free = 3 * count * size * size, shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{count:,} images of {size} x {size} pixels need {needed / 1e9:.2f} GB and {folder} has "
            f"{free / 1e9:.2f} GB free: set data.store to a folder with more room, or data.image_size to "
            f"{math.isqrt(free // (3 * count))} or less"
        )


@contextmanager
def may_be_written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FORBIDDEN and not isinstance(error, FileExistsError | NotADirectoryError):
            raise
        raise InputError(
            f"data.store {folder} cannot be written ({error.strerror}): set it to a folder of yours"
        ) from None


@contextmanager
def alone(folder: Path, sums: Path, count: int, progress: OnProgress | None) -> Iterator[None]:
    """One process at a time; the others see how far it has come. Where there are no locks, nobody waits."""
    with (folder / ".varcon-lock").open("ab") as file:
        while fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                found = sums_so_far(sums, count)
                done = 0 if found is None else int((found[:, 0, 0] != NOT_YET).sum())
                if progress:
                    progress(done, count, "another process decodes images")
                time.sleep(SECONDS_BETWEEN_LOOKS)
            except OSError:  # no locks here
                break
        yield
