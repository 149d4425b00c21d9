"""Predictions as they leave the house: a line for people, JSON or a table for machines."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from varcon.core import InputError
from varcon.files import replacing

if TYPE_CHECKING:
    from varcon.deploy.commands import Predict
    from varcon.deploy.model import Prediction

Show = Callable[[Path, "Prediction | str"], Any]


@contextmanager
def writer(chosen: Predict, classes: int, console: Console) -> Iterator[Show]:
    """What takes each file and its prediction, or the sentence that says why there is none."""
    target = chosen.json or chosen.csv
    if not target:
        yield (
            lambda file, found: (
                None if isinstance(found, str) else console.out(line_of(file, found), highlight=False)
            )
        )
        return
    with opened(target, console) as stream:
        if chosen.json:
            with json_lines(stream) if Path(target).suffix != ".json" else json_list(stream) as write:
                yield lambda file, found: write(json.dumps(json_of(file, found)))
            return
        top = min(chosen.top, classes)
        table = csv.DictWriter(stream, columns(top, chosen.neighbours), lineterminator="\n")
        table.writeheader()
        yield lambda file, found: table.writerow(row_of(file, found))


@contextmanager
def json_lines(stream: Writable) -> Iterator[Callable[[str], Any]]:
    yield lambda text: stream.write(f"{text}\n")


@contextmanager
def json_list(stream: Writable) -> Iterator[Callable[[str], Any]]:
    """One JSON value in all, which every reader of .json takes; written as it comes."""
    between = itertools.chain(["[\n"], itertools.repeat(",\n"))
    yield lambda text: stream.write(next(between) + text)
    stream.write("\n]\n")


@contextmanager
def opened(target: str, console: Console) -> Iterator[Writable]:
    if target == "-":
        yield Through(console)
        return
    path = Path(target).expanduser()
    with (
        replacing(path) as temporary,
        # A file's name need not be UTF-8: its bytes are then written as they are.
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


class Writable(Protocol):
    def write(self, text: str, /) -> Any: ...


class Through:
    """Standard output by way of the console, which keeps its bar below what is written."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str, /) -> None:
        self._console.out(text, end="", highlight=False)


def line_of(file: Path, found: Prediction) -> str:
    parts = [str(file), *(f"{label} {100 * probability:.1f} %" for label, probability in found.top)]
    if found.unlike_anything_seen:
        parts.append("UNLIKE ANYTHING SEEN")
    near = ", ".join(f"{neighbour.name} {neighbour.cosine:.3f}" for neighbour in found.neighbours)
    return "  ".join([*parts, *([f"near {near}"] if near else [])])


def json_of(file: Path, found: Prediction | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"path": str(file), "error": found}
    values = dataclasses.asdict(found)
    values["top"] = [{"label": label, "probability": probability} for label, probability in found.top]
    for neighbour in values["neighbours"]:
        del neighbour["name"]
    return {"path": str(file), **values}


def columns(top: int, neighbours: int) -> list[str]:
    names = ["path", "label", "probability", "unlike_anything_seen", "likelihood"]
    names += [f"{name}_{place}" for place in range(2, top + 1) for name in ("label", "probability")]
    for place in range(1, neighbours + 1):
        names += [f"neighbour_{place}", f"neighbour_{place}_label", f"neighbour_{place}_cosine"]
    return [*names, "error"]


def row_of(file: Path, found: Prediction | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"path": file, "error": found}
    row: dict[str, Any] = {
        "path": file,
        "label": found.label,
        "probability": found.probability,
        "unlike_anything_seen": found.unlike_anything_seen,
        "likelihood": found.likelihood,
    }
    for place, (label, probability) in enumerate(found.top[1:], start=2):
        row |= {f"label_{place}": label, f"probability_{place}": probability}
    for place, neighbour in enumerate(found.neighbours, start=1):
        row |= {
            f"neighbour_{place}": neighbour.path or neighbour.index,
            f"neighbour_{place}_label": neighbour.label,
            f"neighbour_{place}_cosine": neighbour.cosine,
        }
    return row


def check_target(chosen: Predict) -> None:
    for target, suffixes in ((chosen.json, (".json", ".jsonl")), (chosen.csv, (".csv",))):
        if target and target != "-":
            check_place(Path(target).expanduser(), suffixes)


def check_place(out: Path, suffixes: Iterable[str]) -> None:
    """By its name too: the option's value may be forgotten, and the next argument is then a photograph."""
    if out.suffix not in suffixes:
        raise InputError(f"{out} should end in {' or '.join(suffixes)}")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} into")
    if out.is_dir():  # which would else be found out once all is computed
        raise InputError(f"{out} is a folder; name a file")
