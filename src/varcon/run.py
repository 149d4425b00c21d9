"""The verbs: train, evaluate, report. Each reads as what it does; the rooms do the work.

A run is a folder: recipe.json, metrics.jsonl, last.ckpt, encoder.safetensors and its snapshots, features/,
findings/ and report.html.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import varcon
from varcon.core import (
    Data,
    Encoder,
    Evaluation,
    Findings,
    InputError,
    Method,
    OnProgress,
    Progress,
    RunError,
)
from varcon.data import load
from varcon.encoders.pretrained import start_from
from varcon.engine import distributed
from varcon.engine.checkpoint import load_weights, save_weights, snapshot_path
from varcon.engine.claim import LOCK, claimed
from varcon.engine.journal import read_rows
from varcon.engine.loop import Watcher, check, fit
from varcon.engine.state import check_recipe
from varcon.engine.step import why_no_graph
from varcon.evaluations import FOR_IMAGES, FURTHER, STANDARD, EvaluateSettings, FurtherSettings
from varcon.evaluations.calibration import ClassifierCalibration
from varcon.evaluations.classifier import OwnClassifier
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.maps import SnapshotMaps
from varcon.evaluations.rank import Rank
from varcon.evaluations.real import RealAccuracy
from varcon.evaluations.store import FeatureStore
from varcon.files import replacing, temporaries, write_json
from varcon.methods import METHODS
from varcon.recipe import Recipe, load_recipe, recipe_to_dict

RUNS = Path("runs")


def no_watcher(progress: Progress, row: dict[str, float] | None) -> None: ...


def train(
    recipe: Recipe[Any] | str | Path,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watcher = no_watcher,
    progress: OnProgress | None = None,
    command: str | None = None,
) -> Path:
    """Trains what the recipe says and returns the run's folder.

    `out` is the folder, by default runs/ and the recipe's name; one that holds a run is never written
    over. `resume` goes on with the run in it, or begins it where there is none. `watch` is called after
    every step, `progress` while data are read. `command` is noted in the folder as what repeats the run.
    """
    name = "run" if isinstance(recipe, Recipe) else run_name(Path(recipe))
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    folder = Path(out) if out else RUNS / name
    with (
        own_folder(folder, recipe, resume),
        distributed.process_group(pick_device(recipe.train.device)) as device,
        memory_errors(),
    ):
        data = load(recipe.data, progress)
        begun = (folder / "last.ckpt").exists()
        method = build_method(recipe, data, first_weights=not begun)
        check(method, recipe, data, distributed.world_size())
        if distributed.is_main() and not begun:
            again = ["varcon", "train", str(folder / "recipe.json"), "--out", f"{folder}-again"]
            command = command or shlex.join(again)
            write_json(folder / "recipe.json", describe(recipe, data, device, command))
        distributed.barrier()
        fit(method, data, recipe, folder, device, begun, watch)
        if distributed.is_main():
            if method.classifier is not None:
                save_weights(folder / "classifier.safetensors", method.classifier)
            save_weights(folder / "encoder.safetensors", method.encoder)  # last: it marks the run as finished
        distributed.barrier()
    return folder


def evaluate(
    folder: str | Path,
    settings: EvaluateSettings | None = None,
    data_path: str | Path | None = None,
    device: str = "auto",
    progress: OnProgress | None = None,
    found: Callable[[str, Findings], None] = lambda name, findings: None,
    only: Sequence[str] = STANDARD,
    further: FurtherSettings | None = None,
) -> dict[str, Findings]:
    """Judges a finished run and writes what it finds into the run's folder.

    `data_path` says where the data lie now, if not where the recipe has them; `found` is called with
    each evaluation's name and findings as they come. `only` names the evaluations, `further` sets those
    that a recipe does not. The features are encoded once and kept in the folder.
    """
    folder = Path(folder)
    recipe = stored_recipe(folder)
    settings = settings or recipe.evaluate
    further = further or FurtherSettings().at_temperature(recipe.method, learned_epsilon(folder))
    weights = finished_weights(folder)
    where = torch.device(pick_device(device))
    source = dataclasses.replace(recipe.data, path=str(data_path)) if data_path else recipe.data
    data = load(source, progress)
    if not is_trained_on(folder, data):
        command = shlex.join(
            ["varcon", "evaluate", str(folder), "--only", "transfer", "--target", "NAME=PATH"]
        )
        raise InputError(
            f"{folder} was trained on other data than lie at {source.path!r} now; restore those, or judge it "
            f"on another data set: {command}"
        )
    if data.train.images.ndim == 2 and (unfit := [name for name in only if name in FOR_IMAGES]):
        raise InputError(f"{unfit[0]} is an evaluation of images and the data of {folder} are vectors")
    encoder = load_encoder(recipe, weights, data)
    frozen = FrozenEncoder(encoder, data, where, progress, FeatureStore(folder / "features", weights, data))
    tasks: dict[str, tuple[Evaluation, FrozenEncoder]] = {
        "pixels": (settings.knn, raw_pixels(data, where)),
        "knn": (settings.knn, frozen),
        settings.linear.name: (settings.linear, frozen),
        "rank": (Rank(), frozen),
    }
    if (folder / "classifier.safetensors").exists():
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, encoder.features, len(data.classes))
        load_weights(folder / "classifier.safetensors", layer)
        layer = layer.to(where)
        tasks["classifier"] = (OwnClassifier(layer), frozen)
        tasks["classifier-calibration"] = (ClassifierCalibration(layer, further.calibration), frozen)
    results: dict[str, Findings] = {}

    def once(name: str) -> Evaluation:
        """An evaluation of those above, which is not made again where it has just been."""
        return lambda encoder, data: results[name] if name in results else tasks[name][0](encoder, data)

    classifiers = {name: once(name) for name in ("knn", settings.linear.name, "classifier") if name in tasks}
    fine_tunings = further.fine_tunings()
    asked = {name: getattr(further, name) for name in FURTHER if name != "finetune"} | fine_tunings
    tasks |= {name: (evaluation, frozen) for name, evaluation in asked.items()}
    tasks["real"] = (RealAccuracy(further.real, classifiers), frozen)
    earlier = {
        epoch: partial(open_snapshot, folder, epoch, recipe, data, where, progress)
        for epoch in sorted({*recipe.train.snapshots} - {recipe.train.epochs})  # which the encoder is
    }
    tasks["maps"] = (SnapshotMaps(further.maps, earlier, recipe.train.epochs), frozen)
    tasks["map2d"] = (settings.map2d, frozen)  # the slowest last: the numbers are there before the picture
    also = {"linear": [settings.linear.name], "calibration": ["classifier-calibration"]}
    also["finetune"] = list(fine_tunings)
    wanted = {*only, *(finding for name in only for finding in also.get(name, ()))}
    for name, (evaluation, what) in tasks.items():
        if name in wanted:
            began = time.perf_counter()
            with memory_errors():
                results[name] = evaluation(what, data)
            write_findings(folder, name, results[name], evaluation, time.perf_counter() - began)
            found(name, results[name])
    return results


def report(folders: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes one HTML file about one run or several and returns its path."""
    from varcon.reports import write_report

    several = [folders] if isinstance(folders, str | Path) else list(folders)
    if not several:
        raise InputError("a report needs at least one run folder")
    if out and Path(out).suffix not in (".html", ".htm"):  # a slip must not replace a script or a picture
        raise InputError(f"the report {out} should end in .html or .htm")
    paths = [Path(folder) for folder in several]
    beside = paths[0] if len(paths) == 1 else paths[0].parent
    return write_report(paths, Path(out) if out else beside / "report.html")


def build_method(recipe: Recipe[Any], data: Data, first_weights: bool = True) -> Method:
    """The recipe's method around its encoder, with weights that depend on the seed alone, or the encoder's on
    a file; `first_weights` spares reading that where others will take their place."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.train.seed)
        encoder = recipe.encoder.build(data.train.images.shape[1:])
        if recipe.encoder.weights and first_weights:
            start_from(encoder, Path(recipe.encoder.weights).expanduser())
        method = METHODS[recipe.method_name](encoder, recipe.method, len(data.classes))
    method.meet_classes(data.classes)
    return method


def load_encoder(recipe: Recipe[Any], weights: Path, data: Data) -> Encoder:
    with torch.device("meta"):  # no first weights: the trained ones take their place
        encoder = recipe.encoder.build(data.train.images.shape[1:])
    load_weights(weights, encoder)
    return encoder


def open_snapshot(
    folder: Path,
    epoch: int,
    recipe: Recipe[Any],
    data: Data,
    device: torch.device,
    progress: OnProgress | None,
) -> FrozenEncoder:
    """The encoder as it was after this epoch; its features are not kept, of which there would be many."""
    return FrozenEncoder(load_encoder(recipe, snapshot_path(folder, epoch), data), data, device, progress)


def run_name(recipe: Path) -> str:
    """recipes/digits/varcon.toml is digits-varcon; a recipe elsewhere is named by its file alone."""
    if recipe.name == "recipe.json":
        return f"{recipe.resolve().parent.name}-again"
    grouped = recipe.resolve().parent.parent.name == "recipes"
    return f"{recipe.resolve().parent.name}-{recipe.stem}" if grouped else recipe.stem


def pick_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    cure = "choose auto, cpu, cuda or one of several as cuda:0, cuda:1, ..."
    try:
        kind = torch.device(name)
    except RuntimeError:
        kind = None
    if kind is None or kind.type not in ("cpu", "cuda"):
        raise InputError(f"there is no device {name!r}; {cure}")
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"{name!r} is asked for and {torch.cuda.device_count()} CUDA devices are here; {cure}"
        )
    return name


@contextmanager
def memory_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise RunError(
            "the device ran out of memory: lower train.batch_size, choose a smaller encoder or smaller "
            "images, or train in bf16"
        ) from None


@contextmanager
def own_folder(folder: Path, recipe: Recipe[Any], resume: bool) -> Iterator[None]:
    """The folder is there, is fit for the run, and no other process trains in it."""
    if not distributed.will_be_main():  # the first of several processes looks after it for all of them
        yield
        return
    check_folder(folder, recipe, resume)  # before anything is written there
    with claimed(folder):
        check_folder(folder, recipe, resume)  # another process may have trained there in between
        yield


def check_folder(folder: Path, recipe: Recipe[Any], resume: bool) -> None:
    """Nothing that is there may be lost."""
    if not folder.exists():
        return
    # A kill before recipe.json is whole leaves its beginning, under a name of its own, and the lock.
    beginnings = {folder / LOCK, *temporaries(folder / "recipe.json")}
    if folder.is_dir() and {*folder.iterdir()} <= beginnings:
        return
    if not (folder / "recipe.json").exists():
        raise InputError(f"{folder} exists and is not a run; put the run elsewhere with --out FOLDER")
    if not resume:
        raise InputError(
            f"{folder} already holds a run: add --resume to go on with it, "
            "or --out FOLDER to put the new one elsewhere"
        )
    if not (folder / "last.ckpt").exists():
        if (folder / "encoder.safetensors").exists() or (folder / "findings").exists():
            raise InputError(
                f"{folder} holds a finished run without its checkpoint; there is nothing to resume"
            )
        check_recipe(recipe_to_dict(stored_recipe(folder)), recipe, folder)  # killed before its first save


def is_trained_on(folder: Path, data: Data) -> bool:
    """Whether these are the data of the run, as far as its record tells."""
    facts = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    now = {"train_images": len(data.train), "test_images": len(data.test), "classes": data.classes}
    return all(facts.get(name, value) == value for name, value in now.items())


def describe(recipe: Recipe[Any], data: Data, device: torch.device, command: str) -> dict[str, Any]:
    kind = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads"
    )
    hindrance = why_no_graph(recipe, device, distributed.world_size())
    return {
        "recipe": recipe_to_dict(recipe),
        "command": command,
        "versions": {
            "varcon": varcon.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": kind if distributed.world_size() == 1 else f"{distributed.world_size()} x {kind}",
        "steps": f"kernel by kernel ({hindrance})" if hindrance else "one CUDA graph each",
        "classes": data.classes,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def stored_recipe(folder: Path) -> Recipe[Any]:
    path = folder / "recipe.json"
    if not path.exists():
        raise InputError(
            f"{folder} is not a run: it has no recipe.json; name a folder that varcon train has made"
        )
    return load_recipe(path)


def finished_weights(folder: Path) -> Path:
    """The file that a run writes last."""
    weights = folder / "encoder.safetensors"
    if not weights.exists():
        command = shlex.join(["varcon", "train", str(folder / "recipe.json"), "--resume"])
        raise InputError(f"{folder} has not finished training; go on with: {command}")
    return weights


def learned_epsilon(folder: Path) -> float | None:
    """Where training left the half range of tau2, of a method that has one."""
    rows = read_rows(folder / "metrics.jsonl")
    return next((row["epsilon"] for row in reversed(rows) if "epsilon" in row), None)


def settings_of(evaluation: Any) -> dict[str, Any]:
    settings = getattr(evaluation, "settings", evaluation)  # of one that was given more than settings
    return dataclasses.asdict(settings) if hasattr(settings, "__dataclass_fields__") else {}


def write_findings(folder: Path, name: str, findings: Findings, evaluation: Any, seconds: float) -> None:
    target = folder / "findings"
    target.mkdir(exist_ok=True)
    if findings.arrays:
        with replacing(target / f"{name}.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **findings.arrays)  # type: ignore[arg-type]
    facts = {
        "scores": findings.scores,
        "settings": settings_of(evaluation),
        "seconds": round(seconds, 3),
    }
    write_json(target / f"{name}.json", facts)
