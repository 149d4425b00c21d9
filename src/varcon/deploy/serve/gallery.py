"""The images that the page shows, each by its number: vector, class, picture and place on a map.

They are a run's training images, or those of a folder. A number is all that a visitor can ask for.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from varcon.core import OnProgress
from varcon.data.decoding import odd_files_allowed, to_rgb, with_image
from varcon.data.subset import choose
from varcon.deploy import learned
from varcon.deploy.index import open_index
from varcon.deploy.keeping import place_to_keep
from varcon.deploy.model import Model
from varcon.deploy.vectors import map_rows, nearest
from varcon.evaluations.map2d import LEAST_POINTS, Map2D, Projector
from varcon.files import replacing
from varcon.run_folder import stored_recipe

KEPT = "serve"  # in the model's folder: the map, and pictures that are not files of their own
SIDE = 256  # pixels, the longer side of a thumbnail
SMALL = 64  # up to this side a picture is sent as it is
THUMBNAILS = 1000  # in memory, some 10 MB
AROUND = 3  # images of the map that say where a new one lies


class Picture(NamedTuple):
    content: bytes
    kind: str  # as browsers name it


@dataclass(frozen=True)
class Map:
    ids: np.ndarray  # [M] of the gallery's images, all or a random part
    points: np.ndarray  # [M, 2]
    vectors: np.ndarray  # [M, F] of length 1

    def place(self, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where an image belongs: between its nearest images, the closer the likelier; and which they are."""
        cosines, rows = nearest(direction[None], self.vectors, AROUND)
        weights = 1 / np.maximum(1 - cosines[0].astype(np.float64), 1e-6)
        return weights @ self.points[rows[0]] / weights.sum(), self.ids[rows[0]]


@dataclass(frozen=True)
class Gallery:
    title: str  # "training images", or whose they are
    vectors: np.ndarray  # [N, F] of length 1, mapped from the disk
    labels_of: Callable[[np.ndarray], np.ndarray]  # numbers of images to those of their classes
    labels_are: str  # given, or predicted
    name_of: Callable[[int], str]
    picture_of: Callable[[int], Image.Image]
    map: Map | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def around(self, directions: np.ndarray, count: int) -> list[list[tuple[int, float]]]:
        """Number and cosine of the nearest images of each."""
        return [
            [(int(row), float(cosine)) for row, cosine in zip(rows, cosines, strict=True)]
            for cosines, rows in zip(*nearest(directions, self.vectors, count), strict=True)
        ]


def open_gallery(
    model: Model, index: Path | None, data_path: Path | None, progress: OnProgress
) -> tuple[Gallery | None, list[str]]:
    """The folder's images, or the training images, of which an exported model has none; and what is amiss."""
    if index:
        gallery, broken = of_folder(model, index, progress)
        place = hashlib.blake2b(os.fsencode(index.expanduser().resolve()), digest_size=6).hexdigest()
    elif training := model.training:
        gallery, broken = of_training(model, training, data_path, progress)
        place = "training"
    else:
        return None, []
    kept = model.weights.parent / KEPT / f"map-{place}.npz"
    return replace(gallery, map=map_of(gallery.vectors, kept, progress)), broken


def of_folder(model: Model, folder: Path, progress: OnProgress) -> tuple[Gallery, list[str]]:
    index = open_index(model, folder, progress)
    names = [entry.name for entry in index.entries if entry.row is not None]
    gallery = Gallery(
        f"images of {folder.expanduser().resolve().name}",
        index.vectors,
        lambda ids: model.config.scores(index.vectors[ids]).argmax(1),
        "predicted",
        lambda number: names[number],
        lambda number: picture_of_file(index.folder / names[number]),
    )
    return gallery, index.broken


def of_training(
    model: Model, training: learned.Training, data_path: Path | None, progress: OnProgress
) -> tuple[Gallery, list[str]]:
    labels, files, root = np.array(training.labels), training.files, Path(training.root)
    described = "training images", training.vectors, labels.__getitem__, "given"
    if files is None:
        pixels = pixels_of(model, data_path, progress)  # [N, H, W, 3]
        return Gallery(*described, str, lambda number: Image.fromarray(pixels[number])), []
    amiss = f"there is no folder {root} now, so training images are not shown; say where with --data.path"
    return (
        Gallery(*described, files.__getitem__, lambda number: picture_of_file(root / files[number])),
        [] if root.is_dir() else [amiss],
    )


def pixels_of(model: Model, data_path: Path | None, progress: OnProgress) -> np.ndarray:
    """The training images of data that are no folder, copied once so that the server starts without them."""
    run = model.weights.parent
    kept = run / KEPT / "pixels.npy"
    count = model.config.origin["train_images"]
    with suppress(OSError, ValueError, EOFError):
        pixels = np.load(kept, mmap_mode="r", allow_pickle=False)
        if len(pixels) == count:
            return pixels
    source = stored_recipe(run).with_data_path(data_path).data
    images = learned.data_of(run, source, progress).train.images
    assert isinstance(images, torch.Tensor)
    kept = place_to_keep(run, KEPT) / kept.name
    with replacing(kept) as temporary, temporary.open("wb") as file:
        np.save(file, np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy()))
    return map_rows(kept)


def map_of(vectors: np.ndarray, kept: Path, progress: OnProgress) -> Map | None:
    """By t-SNE, of a random part if there are many; drawn once, and again when the images have changed."""
    how = Map2D()
    if len(vectors) < LEAST_POINTS:
        return None
    ids = choose(len(vectors), how.points, how.seed).numpy()
    chosen = np.ascontiguousarray(vectors[ids])
    digest = hashlib.blake2b(chosen.data, digest_size=16).hexdigest()
    with suppress(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile), np.load(kept) as found:
        if str(found["digest"]) == digest:
            return Map(ids, found["points"], chosen)
    progress(0, 1, f"drawing a map of {len(ids):,} images")
    points = Projector(how.method, how.perplexity, how.seed)(torch.from_numpy(chosen))
    kept = place_to_keep(kept.parent.parent, KEPT) / kept.name
    with replacing(kept) as temporary, temporary.open("wb") as file:
        np.savez(file, points=points, digest=digest)
    progress(1, 1, f"drawing a map of {len(ids):,} images")
    return Map(ids, points, chosen)


def picture_of_file(file: Path) -> Image.Image:
    """Whole and upright, no larger than it is shown."""

    def read(image: Image.Image) -> Image.Image:
        image.draft(None, (2 * SIDE, 2 * SIDE))  # a large JPEG is decoded at a fraction of its size
        image.load()
        with suppress(Exception):  # a broken EXIF block says nothing against the pixels
            ImageOps.exif_transpose(image, in_place=True)
        picture = to_rgb(image)
        picture.thumbnail((SIDE, SIDE))
        return picture

    with odd_files_allowed():
        return with_image(file, read)


def thumbnails(gallery: Gallery) -> Callable[[int], Picture]:
    """Encoded for the browser, the last ones asked for being kept."""

    @lru_cache(THUMBNAILS)
    def thumbnail(number: int) -> Picture:
        picture, stream = gallery.picture_of(number), io.BytesIO()
        if max(picture.size) <= SMALL:
            picture.save(stream, "PNG")
            return Picture(stream.getvalue(), "image/png")
        picture.thumbnail((SIDE, SIDE))
        picture.save(stream, "JPEG", quality=85)
        return Picture(stream.getvalue(), "image/jpeg")

    return thumbnail
