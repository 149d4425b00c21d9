"""Image files to squares of one size: on threads, upright, in RGB."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from varcon.core import InputError, OnProgress
from varcon.data.listing import FEW_NAMED, MOST_NAMED, listed

if TYPE_CHECKING:
    from PIL import Image

Result = TypeVar("Result")

# Named, because Pillow would otherwise hand a disguised file to any reader it has, Ghostscript included.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
CHUNK = 16  # images per task: few enough to stop soon after an error
DIM = 8192  # a 16-bit image below this, an eighth of its range, may be one of 12 bits


def decode(files: list[Path], size: int, progress: OnProgress | None = None) -> Tensor:
    """All of them in memory, uint8 [N, 3, size, size]."""
    images = torch.empty((len(files), 3, size, size), dtype=torch.uint8)
    write_squares(files, size, images.numpy().__setitem__, progress)
    return images


def write_squares(
    files: list[Path],
    size: int,
    write: Callable[[int, np.ndarray], None],
    progress: OnProgress | None = None,
) -> None:
    """write(0, the first image's square [3, size, size]), ... from several threads, in any order."""
    dim: list[int] = []

    def square_of(i: int, image: Image.Image) -> np.ndarray:
        if is_dim(image):
            dim.append(i)
        return square(image, size).transpose(2, 0, 1)

    with_images(files, square_of, "decoding images", progress, write)
    warn_of_dim([str(files[i]) for i in sorted(dim)])


def with_images(
    files: list[Path],
    work: Callable[[int, Image.Image], Result],
    what: str,
    progress: OnProgress | None = None,
    put: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """work(0, the first image), ...; all files that cannot be read are named, to be mended in one go. With
    `put` results are given to it instead, whose errors say nothing against an image."""
    broken: list[tuple[int, InputError]] = []

    def one(i: int) -> Result | None:
        try:
            result = with_image(files[i], lambda image: work(i, image))
        except InputError as error:
            broken.append((i, error))
            return None
        if put is None:
            return result
        put(i, result)
        return None

    results = in_order(one, len(files), what, progress)
    if not broken:
        return results  # type: ignore[return-value]  # None only where one is broken
    (_, first), *rest = sorted(broken, key=lambda entry: entry[0])
    also = listed([str(files[i]) for i, _ in rest], MOST_NAMED)
    raise InputError(f"{first}, and also {also}" if rest else str(first)) from first


def in_order(
    work: Callable[[int], Result],
    count: int,
    what: str,
    progress: OnProgress | None = None,
) -> list[Result]:
    """work(0), work(1), ... on threads (Pillow decodes without the interpreter's lock).

    The error that escapes is the first in order, whichever thread fails first.
    """
    pool, over = ThreadPoolExecutor(), Event()

    def chunk_from(start: int) -> list[Result]:
        return [work(i) for i in range(start, min(start + CHUNK, count)) if not over.is_set()]

    with odd_files_allowed():
        try:
            chunks = [pool.submit(chunk_from, start) for start in range(0, count, CHUNK)]
            results: list[Result] = []
            for chunk in chunks:
                results += chunk.result()
                if progress:
                    progress(len(results), count, what)
            return results
        finally:
            over.set()  # after an error or an interrupt, leave the rest undone
            pool.shutdown(cancel_futures=True)


@contextmanager
def odd_files_allowed() -> Iterator[None]:
    """Pillow warns of odd but readable files. Entered before threads start: filters are global."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def with_image(file: Path, work: Callable[[Image.Image], Result]) -> Result:
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            return work(image)
    except PermissionError as error:
        raise InputError(f"{file} may not be read ({error.strerror}): change its permissions") from error
    except Exception as error:  # Pillow's readers raise a dozen kinds of errors on damaged files
        reason = str(error).rstrip(".") or type(error).__name__
        raise InputError(f"{file} cannot be read ({reason}): repair, shrink or remove it") from error


def is_dim(image: Image.Image) -> bool:
    return image.mode.startswith("I;16") and bool(np.asarray(image).max(initial=0) < DIM)


def warn_of_dim(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"{listed(names, FEW_NAMED)}: the upper 8 of 16 bits are read, and none of their values reaches "
            f"{DIM}, so that few tones are left; scale them to 0..65535 if that is not their range",
            stacklevel=3,
        )


def square(image: Image.Image, size: int) -> np.ndarray:
    """The central square of an image, upright, as [size, size, 3]."""
    from PIL import Image, ImageOps

    # A large JPEG may be decoded at 1/2, 1/4 or 1/8; twice the pixels we need are left for smoothing.
    image.draft(None, (2 * size, 2 * size))
    image.load()
    with suppress(Exception):  # a broken EXIF block says nothing against the pixels
        ImageOps.exif_transpose(image, in_place=True)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(to_rgb(image).resize((size, size), Image.Resampling.BILINEAR, box))


def to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 8 and turn nearly everything white
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits and no known range; save it with 8")
    return image.convert("RGB")
