"""An index of a folder of images on disk: their vectors, made once and brought up to date as files change."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from varcon.core import OnProgress
from varcon.deploy.images import FILES_AT_ONCE, find_images, read_block, read_blocks
from varcon.deploy.keeping import place_to_keep
from varcon.deploy.model import Model
from varcon.deploy.vectors import map_rows, nearest, npy_rows, unit
from varcon.files import file_digest, write_json

FOLDER, CONTENTS = "indexes", "contents.json"


class Entry(NamedTuple):
    name: str  # relative to the folder
    size: int  # bytes
    changed: int  # nanoseconds
    row: int | None  # among the vectors; None where the file cannot be read


@dataclass(frozen=True)
class Index:
    folder: Path
    entries: list[Entry]
    vectors: np.ndarray  # [N, F] of length 1, mapped from the disk
    broken: list[str]  # a sentence for each file that cannot be read

    def search(self, vectors: np.ndarray, top: int) -> list[list[tuple[float, Path]]]:
        """Of each vector the images of highest cosine, the nearest first."""
        files = [self.folder / entry.name for entry in self.entries if entry.row is not None]
        return [
            [(float(cosine), files[row]) for cosine, row in zip(cosines, rows, strict=True)]
            for cosines, rows in zip(*nearest(unit(vectors), self.vectors, top), strict=True)
        ]


def open_index(model: Model, folder: Path, progress: OnProgress | None = None) -> Index:
    """The folder's index, of which only what is new, has changed or could not be read is encoded.

    It lies with the model, in `indexes`. An interrupt keeps what is done.
    """
    folder = folder.expanduser()
    here = list(files_of(folder))
    digest = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=6).hexdigest()
    name = f"{FOLDER}/{folder.resolve().name}-{digest}"
    key = {"weights": file_digest(model.weights), "preprocessing": model.config.to_dict()["preprocessing"]}
    entries, vectors = stored(model.weights.parent / name, key, model.features)
    if [entry[:3] for entry in entries] == [entry[:3] for entry in here]:
        unread = [folder / entry.name for entry in entries if entry.row is None]
        again = list(read_blocks(unread, model.config.image_size))
        if not any(block.files for block in again):
            told = [sentence for block in again for sentence in block.broken.values()]
            return Index(folder, entries, vectors, told)
    place = place_to_keep(model.weights.parent, name)
    known = {entry[:3]: entry.row for entry in entries if entry.row is not None}
    broken: list[str] = []
    entries, file = [], place / f"{secrets.token_hex(6)}.npy"
    interrupt = None
    with npy_rows(file, model.features) as append:
        row = 0
        try:
            for start in range(0, len(here), FILES_AT_ONCE):
                part = here[start : start + FILES_AT_ONCE]
                encoded = encode([folder / one.name for one in part if one[:3] not in known], model, broken)
                rows: list[np.ndarray] = []
                for one in part:
                    old = known.get(one[:3])
                    new = encoded.get(folder / one.name) if old is None else vectors[old]
                    entries.append(one._replace(row=None if new is None else row + len(rows)))
                    rows += [] if new is None else [new]
                append(np.array(rows, np.float32).reshape(len(rows), model.features))
                row += len(rows)
                if progress:
                    progress(len(entries), len(here), f"indexing {folder.name}")
        except KeyboardInterrupt as error:
            interrupt = error
    write_json(place / CONTENTS, {"key": key, "folder": str(folder), "vectors": file.name, "images": entries})
    for left in place.glob("*.npy"):
        if left.name != file.name:
            with suppress(OSError):
                left.unlink()
    if interrupt:
        raise interrupt
    return Index(folder, entries, map_rows(file), broken)


def files_of(folder: Path) -> Iterator[Entry]:
    for file in find_images([folder]):
        facts = file.stat()
        yield Entry(str(file.relative_to(folder)), facts.st_size, facts.st_mtime_ns, None)


def encode(files: list[Path], model: Model, broken: list[str]) -> dict[Path, np.ndarray]:
    block = read_block(files, model.config.image_size)
    broken += block.broken.values()
    return dict(zip(block.files, unit(model.embed_pixels(block.pixels)), strict=True))


def stored(place: Path, key: dict[str, object], width: int) -> tuple[list[Entry], np.ndarray]:
    """What is there, if this model made it; an index that is damaged is made again."""
    try:
        contents = json.loads((place / CONTENTS).read_text(encoding="utf-8"))
        entries = [Entry(*image) for image in contents["images"]]
        vectors = map_rows(place / contents["vectors"])
        count = sum(entry.row is not None for entry in entries)
        if contents["key"] == json.loads(json.dumps(key)) and vectors.shape == (count, width):
            return entries, vectors
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        pass
    return [], np.empty((0, width), np.float32)
