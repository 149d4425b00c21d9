"""A run's folder: its name, who may write into it, and what is kept there.

A run is a folder: recipe.json, metrics.jsonl, samples.jsonl and .npz, last.ckpt, encoder.safetensors and its
snapshots, classifier.safetensors of a method that has one, features/, findings/, report.html, and what its
use leaves: deploy/, indexes/, serve/.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import shlex
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import varcon
from varcon import distributed
from varcon.core import Data, Findings, InputError
from varcon.data import DataSettings
from varcon.engine.claim import LOCK, claimed
from varcon.engine.journal import read_rows
from varcon.engine.precision import working_type
from varcon.engine.staging import where_images_stay
from varcon.engine.state import check_recipe
from varcon.engine.step import why_no_graph
from varcon.files import refuse_other_than_utf8, replacing, temporaries, write_json
from varcon.recipe import Recipe, load_recipe, recipe_to_dict

RUNS = Path("runs")


def run_name(recipe: Path) -> str:
    """recipes/digits/varcon.toml is digits-varcon; a recipe elsewhere is named by its file alone."""
    if recipe.name == "recipe.json":
        return f"{recipe.resolve().parent.name}-again"
    grouped = recipe.resolve().parent.parent.name == "recipes"
    return f"{recipe.resolve().parent.name}-{recipe.stem}" if grouped else recipe.stem


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
    refuse_other_than_utf8(folder)
    if not folder.exists():
        return
    # A kill before recipe.json is whole leaves its beginning, under a name of its own, and the lock.
    beginnings = {folder / LOCK, *temporaries(folder / "recipe.json")}
    if folder.is_dir() and {*folder.iterdir()} <= beginnings:
        return
    if not (folder / "recipe.json").exists():
        raise InputError(
            f"{folder} exists and is not a run; put the run elsewhere with --out FOLDER (in Python out=)"
        )
    if not resume:
        raise InputError(
            f"{folder} already holds a run: add --resume to go on with it (in Python resume=True), "
            "or --out FOLDER to put the new one elsewhere (out=)"
        )
    if not (folder / "last.ckpt").exists():
        if (folder / "encoder.safetensors").exists() or (folder / "findings").exists():
            raise InputError(
                f"{folder} holds a finished run without its checkpoint; there is nothing to resume"
            )
        check_recipe(recipe_to_dict(stored_recipe(folder)), recipe, folder)  # killed before its first save


def refuse_run_folder(folder: Path, what: str) -> None:
    """Runs are put into a folder of their own, not into one that is a run itself."""
    if (folder / "recipe.json").exists() or folder.is_file():
        raise InputError(f"{folder} is a run or a file; put the {what} elsewhere with --out FOLDER")


def is_trained_on(folder: Path, data: Data, by_labels: bool = False) -> bool:
    """Whether these are the data of the run, as far as its record tells; an encoder may be judged by labels
    that were corrected since, but has not learned from them."""
    facts = recorded_facts(folder)
    now = facts_of(data)
    # Held-out images are drawn class by class: by other labels, some of them would be trained on.
    if not by_labels and not facts["recipe"]["data"].get("held_out"):
        del now["labels"]
    return all(alike(facts.get(name, value), value) for name, value in now.items())


def recorded_facts(folder: Path) -> dict[str, Any]:
    path = folder / "recipe.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{path} cannot be read; restore it from a copy") from None
    return facts


def facts_of(data: Data) -> dict[str, Any]:
    """By which data are known again; not by pixels, which another version of a decoder makes differently."""
    return {
        "classes": data.classes,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "shape": list(data.train.images.shape[1:]),
        "mean": round(statistics.fmean(data.mean), 4),
        "std": round(statistics.fmean(data.std), 4),
        "labels": labels_digest(data),
        **({"files": names_digest(data.train.files)} if data.train.files else {}),
    }


def names_digest(files: Iterable[str]) -> str:
    """Of their own names in any order: an image that is sorted into another class stays the same image."""
    names = "\0".join(sorted(Path(file).name for file in files))
    return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]


def labels_digest(data: Data) -> str:
    labels = hashlib.sha256()
    for split in (data.train, data.test):
        labels.update(split.labels.cpu().numpy().tobytes())
    return labels.hexdigest()[:16]


def alike(before: Any, now: Any) -> bool:
    """Measured values but for what another version of a decoder does to them."""
    close = (
        isinstance(now, float)
        and isinstance(before, float)
        and math.isclose(before, now, rel_tol=0.01, abs_tol=0.005)
    )
    return close or bool(before == now)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


def describe(recipe: Recipe[Any], data: Data, device: torch.device, command: str) -> dict[str, Any]:
    kind = device_name(device)
    hindrance = why_no_graph(recipe, device, distributed.world_size())
    computed_in = working_type(recipe.train.precision, device)
    return {
        "recipe": recipe_to_dict(recipe),
        "command": command,
        "versions": {
            "varcon": varcon.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": kind if distributed.world_size() == 1 else f"{distributed.world_size()} x {kind}",
        "processes": distributed.world_size(),
        **({"threads": torch.get_num_threads()} if device.type == "cpu" else {}),
        "computed_in": str(computed_in).removeprefix("torch."),
        "steps": f"kernel by kernel ({hindrance})" if hindrance else "one CUDA graph each",
        "images_stay_on": where_images_stay(data.train.images, device),
        **facts_of(data),
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def stored_recipe(folder: Path) -> Recipe[Any]:
    path = folder / "recipe.json"
    if not path.exists():
        why = "it has no recipe.json" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder} is not a run: {why}; {runs_in(folder) or 'name a run'}")
    return load_recipe(path)


def runs_in(folder: Path) -> str:
    """Where a folder is no run and holds some: what to name in its place."""
    found = min(folder.glob("*/recipe.json"), default=None)
    return f"name a run in it, for example {found.parent}" if found else ""


def finished_weights(folder: Path) -> Path:
    """The file that a run writes last."""
    weights = folder / "encoder.safetensors"
    if not weights.exists():
        processes = recorded_facts(folder).get("processes", 1)
        several = ["torchrun", "--nproc-per-node", str(processes), "-m"] if processes > 1 else []
        command = shlex.join([*several, "varcon", "train", str(folder / "recipe.json"), "--resume"])
        raise InputError(f"{folder} has not finished training; go on with: {command}")
    return weights


def without_lost_store(folder: Path, source: DataSettings) -> DataSettings:
    """A trained run's decoded images may be gone or lie on another machine: they are read into memory."""
    trained = (folder / "encoder.safetensors").exists()
    gone = bool(source.store) and not Path(source.store).expanduser().is_dir()
    return replace(source, store="") if trained and gone else source


def learned_epsilon(folder: Path) -> float | None:
    """The half range of tau2 in the last steps of training, of a method that has one."""
    rows = read_rows(folder / "metrics.jsonl")
    return next((row["epsilon"] for row in reversed(rows) if "epsilon" in row), None)


def settings_of(evaluation: Any) -> dict[str, Any]:
    settings = getattr(evaluation, "settings", evaluation)  # of one that was given more than settings
    return dataclasses.asdict(settings) if hasattr(settings, "__dataclass_fields__") else {}


def write_findings(
    folder: Path, name: str, findings: Findings, evaluation: Any, data: Data, seconds: float
) -> None:
    target = folder / "findings"
    target.mkdir(exist_ok=True)
    if findings.arrays:
        with replacing(target / f"{name}.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **findings.arrays)  # type: ignore[arg-type]
    facts = {
        "scores": findings.scores,
        "settings": settings_of(evaluation),
        "labels": labels_digest(data),  # which may be corrected between one evaluation and the next
        "seconds": round(seconds, 3),
    }
    write_json(target / f"{name}.json", facts)
