"""Images as people have them, files and arrays, to the square uint8 pixels that an encoder was trained on.

Files go through the loader of training data, so that a picture looks to the encoder as it would have there.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from varcon.core import InputError
from varcon.data.decoding import in_order, is_dim, square, warn_of_dim, with_image
from varcon.data.listing import SUFFIXES, images_below, is_image

AnImage: TypeAlias = str | os.PathLike[str] | np.ndarray | Tensor | Image.Image
Images: TypeAlias = AnImage | Sequence[AnImage]  # an array or tensor may hold several

FILES_AT_ONCE = 256  # decoded before they are encoded: work for many threads, and 40 MB at 224 pixels


class Block(NamedTuple):
    """Some files, in order, and what they hold."""

    files: list[Path]  # those that could be read
    pixels: Tensor  # [files, 3, size, size] uint8
    broken: dict[Path, str]  # and the others, with a sentence each


def find_images(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files that are named, those below the folders that are named, and those that a pattern matches."""
    found: list[Path] = []
    for place in places:
        if not str(place):  # as of a shell's variable that is not set; Path would take it for the folder here
            raise InputError("one of the images has an empty name; give a file, a folder or a pattern")
        path = Path(place).expanduser()
        if path.is_dir():
            inside = images_below(path)
            if not inside:
                raise InputError(f"there is no image in {path} or below it ({' '.join(SUFFIXES)})")
            found += inside
        elif path.exists():
            found.append(path)  # whatever its name: the user says that it is an image
        elif glob.has_magic(str(path)):
            matches = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
            inside = [image for match in matches for image in (images_below(match) or [match])]
            inside = [image for image in inside if is_image(image)]
            if not inside:
                raise InputError(f"no image matches {path}")
            found += inside
        else:
            raise InputError(f"there is no file or folder {path}")
    return list(dict.fromkeys(found))


def read_blocks(files: Sequence[Path], size: int, at_once: int = FILES_AT_ONCE) -> Iterator[Block]:
    """Block after block, so that the files may be more than memory holds. A broken one stops nothing."""
    for start in range(0, len(files), at_once):
        yield read_block(files[start : start + at_once], size)


def read_block(files: Sequence[Path], size: int) -> Block:
    dim: list[str] = []

    def decode(position: int) -> np.ndarray | str:
        try:
            return square_of(files[position], size, dim)
        except InputError as error:
            return str(error)

    results = list(zip(files, in_order(decode, len(files), ""), strict=True))
    warn_of_dim(sorted(dim))
    good = [(file, result) for file, result in results if not isinstance(result, str)]
    broken = {file: result for file, result in results if isinstance(result, str)}
    return Block([file for file, _ in good], stacked([pixels for _, pixels in good], size), broken)


def pixel_blocks(images: Images, size: int) -> Iterator[Tensor]:
    """Images of any kind, some at a time: [n, 3, size, size]. A file that cannot be read is an error."""
    if isinstance(images, str | os.PathLike | np.ndarray | Tensor | Image.Image):
        images = [images]
    if not isinstance(images, Iterable):
        raise InputError(f"images are of type {type(images).__name__}; {KINDS}")
    each = iter(images)
    while block := list(islice(each, FILES_AT_ONCE)):
        yield block_pixels(block, size)


def block_pixels(images: list[Any], size: int) -> Tensor:
    dim: list[str] = []
    pixels = torch.cat(in_order(lambda place: to_pixels(images[place], size, dim), len(images), ""))
    warn_of_dim(sorted(dim))
    return pixels


def to_pixels(one: Any, size: int, dim: list[str]) -> Tensor:
    """One image, or an array of several; what is dim is noted."""
    if isinstance(one, Image.Image) and is_dim(one):
        dim.append(f"an image of mode {one.mode}")
    if not isinstance(one, str | os.PathLike):
        return resized([one] if isinstance(one, Image.Image) else as_stack(one), size)
    if not Path(one).is_file():
        raise InputError(f"there is no file {one}")
    return stacked([square_of(Path(one), size, dim)], size)


def square_of(file: Path, size: int, dim: list[str]) -> np.ndarray:
    def work(image: Image.Image) -> np.ndarray:
        if is_dim(image):
            dim.append(str(file))
        return square(image, size)

    return with_image(file, work)


KINDS = (
    "give paths, PIL images, uint8 arrays [H, W], [H, W, 3] or [N, H, W, 3], or tensors [N, 3, H, W], "
    "where 1 in place of 3 is grey"
)
FIRST, LAST = "[3, H, W] or, of grey ones, [N, 1, H, W]", "[H, W, 3] or, of grey ones, [N, H, W, 1]"


def as_stack(images: Any) -> Tensor:
    """An array, channels last, or a tensor, channels first, of one image or several: [N, 3, H, W].

    Three axes are always one image: as many grey ones, one in RGBA would be taken for its rows.
    """
    if not isinstance(images, np.ndarray | Tensor):
        raise InputError(f"an image is of type {type(images).__name__}; {KINDS}")
    shape = list(images.shape)
    if images.dtype not in (np.uint8, torch.uint8):
        raise InputError(f"images are {images.dtype} and must be uint8, with values of 0 to 255: cast them")
    first = isinstance(images, Tensor)
    stack = images.cpu() if isinstance(images, Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    if stack.ndim == 2:  # grey
        stack = stack.unsqueeze(0 if first else -1)
    if stack.ndim == 3:
        stack = stack[None]
    if stack.ndim == 4 and not first:
        stack = stack.permute(0, 3, 1, 2)
    if stack.ndim != 4 or stack.shape[1] not in (1, 3) or 0 in stack.shape[1:]:
        raise InputError(why_no_images(shape, first))
    return stack.expand(-1, 3, -1, -1)


def why_no_images(shape: list[int], first: bool) -> str:
    if len(shape) == 3:
        mine, other = (shape[0], shape[-1]) if first else (shape[-1], shape[0])
        if other in (1, 3):
            return (
                f"a tensor {shape} seems to have its channels last; give tensors {FIRST}"
                if first
                else f"an array {shape} seems to have its channels first; give arrays {LAST}"
            )
        if mine in (2, 4):
            return f"an image of the shape {shape} has {mine} channels; convert it to RGB"
    return f"images have the shape {shape}; {KINDS}"


def resized(images: Tensor | Sequence[Image.Image], size: int) -> Tensor:
    """By the way that files go; images of the right size stay as they are."""
    if isinstance(images, Tensor):
        if images.shape[2:] == (size, size):
            return images.contiguous()
        images = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).contiguous().numpy()]
    shown = []
    for position, image in enumerate(images):
        try:
            shown.append(square(image.copy(), size))  # of a copy: the loader turns an image upright in place
        except Exception as error:  # as with files: Pillow raises a dozen kinds
            raise InputError(f"image {position} cannot be used ({error}); {KINDS}") from error
    return stacked(shown, size)


def stacked(images: Sequence[np.ndarray], size: int) -> Tensor:
    """[size, size, 3] each -> [N, 3, size, size]"""
    pixels = torch.empty((len(images), 3, size, size), dtype=torch.uint8)
    for place, image in zip(pixels.numpy(), images, strict=True):
        place[...] = image.transpose(2, 0, 1)
    return pixels
