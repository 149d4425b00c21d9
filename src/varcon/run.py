"""The verbs: train, evaluate, report, demo. Each reads as what it does; the rooms do the work.

A run is a folder: recipe.json, metrics.jsonl, last.ckpt, encoder.safetensors, findings/, report.html.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import varcon
from varcon.core import Data, Evaluation, Findings, InputError, Method, OnProgress, Progress
from varcon.data import load
from varcon.engine import distributed
from varcon.engine.checkpoint import load_encoder, replacing, save_encoder, write_json
from varcon.engine.loop import Watcher, check_batch, fit
from varcon.evaluations import EvaluateSettings
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
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
    if not resume:
        refuse_to_overwrite(folder)
    with distributed.process_group(pick_device(recipe.train.device)) as device:
        data = load(recipe.data, progress)
        check_batch(recipe.train.batch_size, len(data.train), distributed.world_size())
        method = build_method(recipe, data)
        if distributed.is_main():
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "last.ckpt").exists():
                command = command or f"varcon train {folder / 'recipe.json'} --out {folder}-again"
                write_json(folder / "recipe.json", describe(recipe, data, device, command))
        distributed.barrier()
        fit(method, data, recipe, folder, device, resume and (folder / "last.ckpt").exists(), watch)
        if distributed.is_main():
            save_encoder(folder / "encoder.safetensors", method.encoder)
        distributed.barrier()
    return folder


def evaluate(
    folder: str | Path,
    settings: EvaluateSettings | None = None,
    progress: OnProgress | None = None,
    device: str = "auto",
    data_path: str | Path | None = None,
) -> Iterator[tuple[str, Findings]]:
    """Judges a finished run, yielding each evaluation's name and findings as they are written.

    `data_path` says where the data lie now, if not where the recipe has them.
    """
    folder = Path(folder)
    recipe = stored_recipe(folder)
    settings = settings or recipe.evaluate
    weights = folder / "encoder.safetensors"
    if not weights.exists():
        raise InputError(
            f"{folder} has not finished training; finish it with varcon train ... --resume first"
        )
    source = dataclasses.replace(recipe.data, path=str(data_path)) if data_path else recipe.data
    data = load(source, progress)
    where = torch.device(pick_device(device))
    with torch.device("meta"):  # no first weights: the trained ones take their place
        encoder = recipe.encoder.build()
    load_encoder(weights, encoder)
    frozen, pixels = FrozenEncoder(encoder, data, where, progress), raw_pixels(data, where)
    tasks: dict[str, tuple[Evaluation, FrozenEncoder]] = {
        "pixels": (settings.knn, pixels),
        "knn": (settings.knn, frozen),
        "linear": (settings.linear, frozen),
        "map2d": (settings.map2d, frozen),
    }
    for name, (evaluation, what) in tasks.items():
        began = time.perf_counter()
        findings = evaluation(what, data)
        write_findings(folder, name, findings, evaluation, time.perf_counter() - began)
        yield name, findings


def report(folders: list[str | Path], out: str | Path | None = None) -> Path:
    """Writes one HTML file about one run or several and returns its path."""
    from varcon.reports import write_report

    paths = [Path(folder) for folder in folders]
    if not paths:
        raise InputError("a report needs at least one run folder")
    beside = paths[0] if len(paths) == 1 else paths[0].parent
    return write_report(paths, Path(out) if out else beside / "report.html")


def build_method(recipe: Recipe[Any], data: Data) -> Method:
    """The recipe's method around its encoder, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        return METHODS[recipe.method_name](recipe.encoder.build(), recipe.method, len(data.classes))


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
        raise InputError(f"there is no device {name!r}; {cure}") from None
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"{name!r} is asked for and {torch.cuda.device_count()} CUDA devices are here; {cure}"
        )
    return name


def refuse_to_overwrite(folder: Path) -> None:
    # Under torchrun the first process makes the folder while others still start; it alone looks.
    if os.environ.get("RANK", "0") != "0" or not folder.exists():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if (folder / "recipe.json").exists():
        raise InputError(
            f"{folder} already holds a run: add --resume to go on with it, "
            "or --out FOLDER to put the new one elsewhere"
        )
    raise InputError(f"{folder} exists and is not a run; put the run elsewhere with --out FOLDER")


def describe(recipe: Recipe[Any], data: Data, device: torch.device, command: str) -> dict[str, Any]:
    kind = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads"
    )
    return {
        "recipe": recipe_to_dict(recipe),
        "command": command,
        "versions": {
            "varcon": varcon.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": kind if distributed.world_size() == 1 else f"{distributed.world_size()} x {kind}",
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


def write_findings(folder: Path, name: str, findings: Findings, settings: Any, seconds: float) -> None:
    target = folder / "findings"
    target.mkdir(exist_ok=True)
    if findings.arrays:
        with replacing(target / f"{name}.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **findings.arrays)  # type: ignore[arg-type]
    facts = {
        "scores": findings.scores,
        "settings": dataclasses.asdict(settings),
        "seconds": round(seconds, 3),
    }
    write_json(target / f"{name}.json", facts)
