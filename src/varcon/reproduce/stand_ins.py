"""What takes the place of data that a user may not have, made from his own; a table that uses it says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from varcon.core import Data, InputError, Split
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.knn import KNN
from varcon.files import replacing, write_json
from varcon.reproduce.setup import Setup

TARGETS = (
    "No --target was given: the runs were trained on the first half of the classes, and 'other classes' is "
    "the other half of the same data. It shows the machinery and is no transfer to another data set."
)
LABELS = (
    "No --real-labels were given: acceptable labels of an image are its own and the class that its nearest "
    "training images by raw pixels have. They show the machinery; nobody has looked at the images."
)


def write_halves(setup: Setup, data: Data) -> None:
    """The first half of the classes and the second, as two data sets."""
    middle = len(data.classes) // 2
    for which, wanted in (("first", range(middle)), ("second", range(middle, len(data.classes)))):
        path = Path(setup.half_data(which).path)
        arrays = {"classes": np.array([data.classes[label] for label in wanted])}
        for part, split in (("train", data.train), ("test", data.test)):
            arrays |= part_of(split, part, wanted)
        if path.exists():
            with np.load(path) as there:
                check_same(path, all(np.array_equal(there[name], array) for name, array in arrays.items()))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def part_of(split: Split, part: str, wanted: range) -> dict[str, np.ndarray]:
    chosen = (split.labels >= wanted.start) & (split.labels < wanted.stop)
    return {
        f"{part}_images": split.images[chosen].permute(0, 2, 3, 1).numpy(),
        f"{part}_labels": (split.labels[chosen] - wanted.start).numpy(),
    }


def write_acceptable(setup: Setup, data: Data) -> None:
    path = Path(setup.further(setup.base).real.labels)
    by_pixels = KNN(k=min(5, len(data.train)), also=())(raw_pixels(data, torch.device("cpu")), data)
    guesses = by_pixels.arrays["predictions"].tolist()
    own = data.test.labels.tolist()
    acceptable = [sorted({mine, guess}) for mine, guess in zip(own, guesses, strict=True)]
    if path.exists():
        check_same(path, json.loads(path.read_text(encoding="utf-8")) == acceptable)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, acceptable)


def check_same(path: Path, same: bool) -> None:
    if not same:
        raise InputError(f"{path} was made from other data; put these tables elsewhere with --out FOLDER")
