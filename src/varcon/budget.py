"""What makes a comparison fair: epochs for every method, by the images it sees or by the time it takes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from varcon import run
from varcon.augment import AugmentSettings
from varcon.core import InputError, OnProgress, RunError
from varcon.engine.interrupt import Interrupted
from varcon.engine.journal import read_rows
from varcon.engine.state import check_recipe
from varcon.files import write_json
from varcon.recipe import Recipe, recipe_to_dict

Budget = Literal["images", "time"]


def under_one_budget(base: Recipe[Any], own: Recipe[Any], side: int) -> Recipe[Any]:
    """`own`'s method and views, for as many epochs as show it as many images of `side` pixels as `base`."""
    views = {
        "views": own.augment.views,
        "small_views": own.augment.small_views,
        "small_size": own.augment.small_size,
        "small_crop_area": own.augment.small_crop_area,
    }
    epochs = max(1, round(base.train.epochs * full_views(base.augment, side) / full_views(own.augment, side)))
    augment = replace(base.augment, **views)  # type: ignore[arg-type]
    return replace(base, method=own.method, augment=augment, train=replace(base.train, epochs=epochs))


def full_views(augment: AugmentSettings, side: int) -> float:
    """How many full images a step encodes for each of the batch; a small view counts by its pixels."""
    return augment.views + augment.small_views * (augment.small_size / side) ** 2


def timed_epochs(
    recipes: dict[str, Recipe[Any]], out: Path, device: str, progress: OnProgress
) -> dict[str, int]:
    """Epochs that take every method as long as the slowest needs for its own.

    They are timed once and kept in plan.json: another timing gives other numbers, with which no run that
    was begun could go on.
    """
    path = out / "plan.json"
    if path.exists():
        return stored_epochs(path, recipes, device)
    if any(out.glob("*-seed*")):
        raise InputError(
            f"{out} holds runs of a comparison that was not timed; put this one elsewhere with --out FOLDER"
        )
    seconds = {}
    for number, (name, recipe) in enumerate(recipes.items()):
        progress(number, len(recipes), "timing the methods")
        try:
            seconds[name] = seconds_per_epoch(recipe)
        except Interrupted as error:
            raise Interrupted("stopped while timing the methods", error.signal) from None
        except RunError as error:
            raise RunError(f"{name} cannot be timed, leave it out with --methods: {error}") from None
    longest = max(seconds[name] * recipe.train.epochs for name, recipe in recipes.items())
    epochs = {name: max(1, round(longest / each)) for name, each in seconds.items()}
    out.mkdir(parents=True, exist_ok=True)
    untimed = {name: recipe_to_dict(recipe) for name, recipe in recipes.items()}
    write_json(path, {"device": device, "epochs": epochs, "recipes": untimed})
    return epochs


def stored_epochs(path: Path, recipes: dict[str, Recipe[Any]], device: str) -> dict[str, int]:
    """Of a plan that was made for these recipes on this kind of device."""
    elsewhere = "put the comparison elsewhere with --out FOLDER"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        timed, epochs, timed_on = stored["recipes"], dict(stored["epochs"]), stored["device"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} cannot be read; restore it, or {elsewhere}") from None
    if timed_on != device:
        raise InputError(f"{path.parent} was timed on {timed_on}, not on {device}; go back, or {elsewhere}")
    for name, recipe in recipes.items():
        if name not in timed:
            raise InputError(
                f"{path.parent} was timed for {', '.join(timed)} and not for {name}; "
                f"leave it out, or {elsewhere}"
            )
        check_recipe(timed[name], recipe, path.parent)
    return epochs


def seconds_per_epoch(recipe: Recipe[Any]) -> float:
    """Of a second epoch: the first one also compiles and warms up."""
    two = replace(recipe, train=replace(recipe.train, epochs=2, snapshots=(), track="none"))
    with tempfile.TemporaryDirectory() as folder:
        rows = read_rows(run.train(two, Path(folder) / "run") / "metrics.jsonl")
    ends = [row["seconds"] for row in rows if row["epoch"] in (1.0, 2.0)]
    return max(ends[-1] - ends[0], 1e-3)
