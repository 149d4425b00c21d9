"""Run folders, read into plain values; what is written there is all that a report knows."""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from varcon.core import InputError
from varcon.reports.shapes import fault
from varcon.run_folder import runs_in


@dataclass(frozen=True)
class Finding:
    """What one evaluation left in findings/: numbers to quote and arrays to draw."""

    scores: dict[str, Any]
    settings: dict[str, Any]
    labels: str  # a digest of those that it was judged by
    seconds: float | None
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class Samples:
    """How a value within [0, 1] was spread over the training images, epoch by epoch."""

    epoch: np.ndarray  # [E]
    mean: np.ndarray  # [E]
    quantiles: np.ndarray  # [E, 7], of the shares 0, 5, 25, 50, 75, 95 and 100 %
    density: np.ndarray  # [E, bins]


@dataclass(frozen=True)
class Run:
    name: str
    folder: Path
    recipe: dict[str, dict[str, Any]]
    command: str
    versions: dict[str, str]
    device: str
    classes: list[str]
    train_images: int | None
    test_images: int | None
    started: str
    metrics: dict[str, np.ndarray]  # one array a column, NaN where a row lacks it
    samples: dict[str, Samples]  # what a method said of each image, by its name
    findings: dict[str, Finding]

    @property
    def method(self) -> str:
        return str(self.setting("method.name") or "unnamed method")

    @property
    def data(self) -> str:
        """The data's name, which of a user's own folder or file is the folder's or the file's."""
        name = str(self.setting("data.name") or "unnamed data")
        own = Path(str(self.setting("data.path") or "")) if name in ("folder", "npz") else Path()
        return own.name.removesuffix(".npz") or name

    @property
    def seed(self) -> Any:
        return self.setting("train.seed")

    @property
    def tau1(self) -> float | np.ndarray | None:
        """The temperature that τ₂ moves around; PaCo's own is another one. Where it moves too: row by row."""
        if "tau1" in self.metrics:
            return self.metrics["tau1"]
        own = self.setting("method.varcon_temperature")
        return number(self.setting("method.temperature") if own is None else own)

    @property
    def judged_on(self) -> str:
        return "held-out training images" if self.setting("data.held_out") else "test images"

    def by_the_same_labels(self, *names: str) -> bool:
        """Whether these findings were; labels may have been corrected between one evaluation and the next."""
        return len({self.findings[name].labels for name in names if name in self.findings} - {""}) <= 1

    def setting(self, place: str) -> Any:
        """The value of `section.name`, or None where this recipe has no such setting."""
        section, name = place.split(".")
        return self.recipe.get(section, {}).get(name)

    def score(self, finding: str, name: str) -> float | None:
        found = self.findings.get(finding)
        return number(found.scores.get(name)) if found else None

    def array(self, finding: str, name: str) -> np.ndarray | None:
        found = self.findings.get(finding)
        return found.arrays.get(name) if found else None

    def accuracy_by_k(self, finding: str) -> dict[int, float]:
        """Top-1 accuracy for each number of neighbours, from the scores named top1@K."""
        scores = self.findings[finding].scores if finding in self.findings else {}
        found = {name[5:]: number(value) for name, value in scores.items() if name.startswith("top1@")}
        by_k = {int(k): value for k, value in found.items() if k.isdecimal() and int(k) and value is not None}
        return dict(sorted(by_k.items()))

    def class_names(self, size: int) -> list[str]:
        """At least `size` of them; a class without a name goes by its number."""
        return self.classes + [str(label) for label in range(len(self.classes), size)]

    def names_of(self, *labels: np.ndarray | None) -> dict[int, str]:
        """The names of the classes that occur; one without a name goes by its number."""
        found = {int(label) for several in labels if several is not None for label in np.unique(several)}
        return {
            label: self.classes[label] if label < len(self.classes) else str(label) for label in sorted(found)
        }

    def confused_pairs(self) -> list[tuple[str, str, int, float]]:
        """(true class, taken for, images, percent of the true class), the most frequent first."""
        counts = self.array("knn", "confusion")
        if counts is None:
            return []
        names = self.class_names(len(counts))
        percent = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        pairs = [(row, column) for row, column in np.argwhere(counts) if row != column]
        pairs.sort(key=lambda pair: -counts[pair])
        return [(names[pair[0]], names[pair[1]], int(counts[pair]), float(percent[pair])) for pair in pairs]

    @property
    def training_seconds(self) -> float | None:
        clock = self.metrics.get("seconds")
        return None if clock is None else float(np.nanmax(clock))

    @property
    def images_per_second(self) -> float | None:
        """The median, which the slow first steps do not move."""
        speed = self.metrics.get("images_per_second")
        return None if speed is None else float(np.nanmedian(speed))


def number(value: Any) -> float | None:
    """A finite number, or None for anything else that a file may hold."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if plain else None


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def read_runs(folders: list[Path]) -> list[Run]:
    """Each folder once; runs whose folders have the same name go by their whole paths. Files beside them are
    passed over: `runs/*` means the recipes and pages there too."""
    folders = [folder for folder in folders if not folder.is_file()] or folders
    if not folders:
        raise InputError("there is nothing to report on; name at least one run folder")
    resolved = [folder.resolve() for folder in folders]
    once = [folder for place, folder in enumerate(folders) if resolved.index(resolved[place]) == place]
    names = [folder.resolve().name for folder in once]
    return [
        read_run(folder, name if names.count(name) == 1 else str(folder))
        for folder, name in zip(once, names, strict=True)
    ]


def read_run(folder: Path, name: str) -> Run:
    path = folder / "recipe.json"
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise InputError(f"{what}; give the folder of a run, as `varcon train` printed it")
    if not path.exists():
        cure = runs_in(folder) or "give a folder that `varcon train` made"
        raise InputError(f"{folder} is not a run, for it has no recipe.json; {cure}")
    cure = "restore the file, or train the run again"
    record = _read_object(path, cure)
    recipe = record.get("recipe")
    if not isinstance(recipe, dict) or not all(isinstance(section, dict) for section in recipe.values()):
        raise InputError(f"{path} holds no recipe of nested sections; {cure}")
    versions, classes = record.get("versions"), record.get("classes")
    train_images, test_images = number(record.get("train_images")), number(record.get("test_images"))
    return Run(
        name=name,
        folder=folder,
        recipe=recipe,
        command=str(record.get("command") or ""),
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        device=str(record.get("device") or ""),
        classes=[str(label) for label in classes] if isinstance(classes, list) else [],
        train_images=None if train_images is None else int(train_images),
        test_images=None if test_images is None else int(test_images),
        started=str(record.get("started") or ""),
        metrics=_read_metrics(folder / "metrics.jsonl"),
        samples=_read_samples(folder / "samples.jsonl"),
        findings={found.stem: _read_finding(found) for found in sorted(folder.glob("findings/*.json"))},
    )


def _read_rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    rows: list[dict[str, Any]] = []
    for place, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif place < len(lines):  # a last line cut short by a kill is no error
            raise InputError(f"line {place} of {path} is not a JSON object; delete that line")
    return rows


def _read_metrics(path: Path) -> dict[str, np.ndarray]:
    rows = _read_rows(path)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [number(row.get(name)) for row in rows] for name in names}
    return {
        name: np.array([math.nan if value is None else value for value in column])
        for name, column in columns.items()
        if any(value is not None for value in column)
    }


def _read_samples(path: Path) -> dict[str, Samples]:
    rows = _read_rows(path)
    names = dict.fromkeys(name for row in rows for name in row if isinstance(row[name], dict))
    found = {}
    for name in names:
        having = [row for row in rows if name in row]
        try:
            columns = [np.array([row["epoch"] for row in having], float)]
            columns += [
                np.array([row[name][key] for row in having], float)
                for key in ("mean", "quantiles", "density")
            ]
            fits = [column.ndim for column in columns] == [1, 1, 2, 2] and columns[2].shape[1] == 7
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits or not all(np.isfinite(column).all() for column in columns):
            raise InputError(
                f"{path} does not hold mean, quantiles and density of {name!r} in every line; "
                "delete the lines that differ, or the file"
            )
        found[name] = Samples(*columns)
    return found


def _read_finding(path: Path) -> Finding:
    cure = f"delete it and run `varcon evaluate {path.parents[1]}`"
    record = _read_object(path, cure)
    scores, settings = record.get("scores"), record.get("settings") or {}
    if not isinstance(scores, dict) or not isinstance(settings, dict):
        raise InputError(f"{path} holds no table of scores; {cure}")
    arrays: dict[str, np.ndarray] = {}
    stored = path.with_suffix(".npz")
    if stored.exists():
        try:
            with stored.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise InputError(f"{stored} cannot be read ({error}); {cure}") from None
    arrays = {name: values for name, values in arrays.items() if values.size}  # none is as good as missing
    wrong = fault(path.stem, arrays)
    if wrong:
        raise InputError(f"{stored} does not fit together: {wrong}; {cure}")
    return Finding(scores, settings, str(record.get("labels", "")), number(record.get("seconds")), arrays)


def _read_object(path: Path, cure: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); {cure}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} does not hold a JSON object; {cure}")
    return value
