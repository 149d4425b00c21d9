"""Folders that memory has no room for: decoded once into a file, from which each image is read when needed.

Decoding that was stopped goes on where it was, and of a folder in which a few images were mended only those
are decoded.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from varcon.core import InputError, OnProgress
from varcon.data.assemble import Channels, statistics_of_sums
from varcon.data.decoding import decode, odd_files_allowed, write_squares
from varcon.data.rows import NOT_YET, ROW, Rows, index_of, make_long, places_of, sums_of, write_index
from varcon.engine.interrupt import Interrupted, requests_to_stop, undisturbed
from varcon.files import FORBIDDEN

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

SAMPLES = 16  # images that are looked at before a file is trusted
DIFFERENCE = 1.0  # of 255, in the mean: more than decoders of several versions leave
SECONDS_BETWEEN_SAVES = 30.0  # as long a work may have to be done again
SECONDS_BETWEEN_LOOKS = 0.5  # at what another process has decoded
LOCK = ".varcon-decoding"  # in the store: held by the process that decodes, with how far it has come


class StoredImages:
    """Some images of a file, in some order. Indexing reads them as a tensor; `only` reads nothing."""

    ndim, dtype, device = 4, torch.uint8, torch.device("cpu")

    def __init__(self, rows: Rows, index: np.ndarray, places: Tensor) -> None:
        self._rows = rows  # of all images, [3, H, W] each
        self._index = index  # a ROW of each
        self._places = places  # [N]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self._rows.shape))

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
        return StoredImages(self._rows, self._index, self._places[which])

    def mean_and_std(self) -> tuple[Channels, Channels]:
        """Of each channel, of pixels scaled to [0, 1]."""
        sums = torch.from_numpy(self._index["sums"][self._places.numpy()].sum(0)).double()
        return statistics_of_sums(sums[0], sums[1], len(self) * math.prod(self.shape[2:]))

    def digest(self) -> bytes:
        """By which these images are known again without being read."""
        images = self._index["image"][self._places.numpy()]
        return hashlib.sha256(f"{self._rows.shape}".encode() + images.tobytes()).digest()


def stored_images(
    files: Sequence[Path], root: Path, size: int, folder: Path, progress: OnProgress | None = None
) -> StoredImages:
    """The images of `files` as squares, decoded into a file in `folder` where they are not there yet.

    Several processes may ask for the same at once: one decodes and the others wait for it.
    """
    images = identities(files, root, size)
    with may_be_written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    pixels = file_with(images, files, folder, size)
    if not pixels or not is_decoded(pixels, images, size):
        with may_be_written(folder), alone(folder, progress) as (locked, report):
            pixels = file_with(images, files, folder, size)  # by another process, meanwhile
            if not pixels or not (locked or is_decoded(pixels, images, size)):
                # Its own: rows that are added where there are no locks could be two images'. By this name
                # the first rows are in this order, also where their index was lost.
                place = root.resolve()
                name = hashlib.blake2b(os.fsencode(place) + images.tobytes(), digest_size=8).hexdigest()
                pixels = folder / f"{place.name}-{size}-{name}.pixels"
            decode_into(pixels, files, images, size, report)
    index = index_of(pixels, size)
    return StoredImages(
        Rows(pixels, (3, size, size)), index, torch.from_numpy(places_of(images, index["image"]))
    )


def identities(files: Sequence[Path], root: Path, size: int) -> np.ndarray:
    """Of each file's place, size and time, and the square's: an image that is replaced is another one."""
    found = []
    for file in files:
        facts = file.stat()
        told = f"{size}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode()
        told += os.fsencode(file.relative_to(root))
        found.append(int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little"))
    return np.array(found, dtype=np.uint64)


def file_with(images: np.ndarray, files: Sequence[Path], folder: Path, size: int) -> Path | None:
    """The file that has most of these images, and half of them or of its own at least: what it has of a
    folder is known again when images of that were mended, added or removed, or when it has another name."""
    found = {}
    for path in folder.glob(f"*-{size}-*.pixels"):
        known = index_of(path, size)["image"]
        shared = int((places_of(images, known) >= 0).sum())
        if shared and 2 * shared >= min(len(images), len(known)):
            found[path] = shared
    best_first = sorted(found, key=lambda path: (-found[path], path))
    return next((path for path in best_first if looks_alike(path, images, files, size)), None)


def looks_alike(pixels: Path, images: np.ndarray, files: Sequence[Path], size: int) -> bool:
    """Whether some of the files are what the rows show: places, sizes and times of two folders may agree."""
    index = index_of(pixels, size)
    places = places_of(images, index["image"])
    there = np.flatnonzero((places >= 0) & (index["sums"][places, 0, 0] != NOT_YET))
    some = there[:: max(1, len(there) // SAMPLES)][:SAMPLES].tolist()
    shown = np.empty((len(some), 3, size, size), dtype=np.uint8)
    try:
        Rows(pixels, (3, size, size)).read_into(shown, places[some].tolist())
        with odd_files_allowed():  # and not told of again
            now = decode([files[i] for i in some], size).numpy()
    except (OSError, InputError):
        return False
    return bool((np.abs(now.astype(int) - shown).mean((1, 2, 3)) < DIFFERENCE).all())


def is_decoded(pixels: Path, images: np.ndarray, size: int) -> bool:
    index = index_of(pixels, size)
    places = places_of(images, index["image"])
    return bool((places >= 0).all() and (index["sums"][places, 0, 0] != NOT_YET).all())


def decode_into(
    pixels: Path,
    files: Sequence[Path],
    images: np.ndarray,
    size: int,
    report: Callable[[int, int, str], None],
) -> None:
    index = index_of(pixels, size)
    places = places_of(images, index["image"])
    new = np.zeros(int((places < 0).sum()), ROW)
    new["image"], new["sums"] = images[places < 0], NOT_YET
    places[places < 0] = len(index) + np.arange(len(new))
    index = np.concatenate([index, new])
    left = np.flatnonzero(index["sums"][places, 0, 0] == NOT_YET).tolist()
    if not left:
        return
    require_room(pixels.parent, len(left), size)
    write_index(pixels, index)  # before rows that were lost seem to be there again
    make_long(pixels, len(index) * 3 * size * size)
    rows = Rows(pixels, (3, size, size), "r+b")
    finished: list[tuple[int, np.ndarray]] = []  # until their pixels are known to be on the disk

    def write(i: int, square: np.ndarray) -> None:
        place = int(places[left[i]])
        rows.write(place, square)
        finished.append((place, sums_of(square)))

    def save() -> None:
        known = finished[:]  # before the pixels go to the disk: threads add others meanwhile
        rows.flush()
        for place, sums in known:
            index["sums"][place] = sums
        del finished[: len(known)]
        write_index(pixels, index)

    saved = time.monotonic()

    def watch(count: int, total: int, what: str) -> None:
        nonlocal saved
        report(len(files) - len(left) + count, len(files), what)
        if request.number:
            raise Interrupted("stopped; the images that are decoded are kept", request.number)
        if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
            save()
            saved = time.monotonic()

    report(len(files) - len(left), len(files), "decoding images")
    with requests_to_stop() as request:
        try:
            write_squares([files[i] for i in left], size, write, watch)
        finally:
            with undisturbed():
                save()
                rows.close()


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
        nowhere = isinstance(error, FileExistsError | FileNotFoundError | NotADirectoryError)
        if error.errno not in FORBIDDEN and not nowhere:
            raise
        raise InputError(
            f"data.store {folder} cannot be written ({error.strerror}): set it to a folder of yours"
        ) from None


@contextmanager
def alone(
    folder: Path, progress: OnProgress | None
) -> Iterator[tuple[bool, Callable[[int, int, str], None]]]:
    """One process at a time; the others see how far it has come. Where there are no locks, nobody waits, and
    the first that is told is False."""
    (folder / LOCK).touch()
    with (folder / LOCK).open("r+") as file:
        locked, told = False, 0.0
        while fcntl and not locked:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                file.seek(0)
                done, _, total = file.read().partition(" of ")
                if progress and done.isdigit() and total.isdigit():
                    progress(int(done), int(total), "another process decodes images")
                time.sleep(SECONDS_BETWEEN_LOOKS)
            except OSError:  # no locks here
                break

        def report(done: int, total: int, what: str) -> None:
            nonlocal told
            if progress:
                progress(done, total, what)
            if locked and time.monotonic() - told > SECONDS_BETWEEN_LOOKS:
                told = time.monotonic()
                file.seek(0)
                file.write(f"{done} of {total}")
                file.truncate()
                file.flush()

        yield locked, report
