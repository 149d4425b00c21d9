"""Many methods under one budget: the runs of a comparison, planned, carried out and tabulated."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from varcon import run
from varcon.augment import AugmentSettings
from varcon.core import Findings, InputError, OnProgress
from varcon.data import load
from varcon.engine.journal import read_rows
from varcon.engine.loop import Watcher
from varcon.files import write_json, write_text
from varcon.methods import METHODS
from varcon.recipe import Recipe, did_you_mean, load_recipe

Budget = Literal["images", "time"]


@dataclass(frozen=True)
class Planned:
    method: str
    seed: int
    recipe: Recipe[Any]
    folder: Path


@dataclass(frozen=True)
class Result:
    method: str
    seed: int
    scores: dict[str, float]  # accuracies in percent, effective rank, minutes, images per second


COLUMNS = {
    "kNN top-1": ("knn", "top1"),
    "linear probe, last": ("linear", "last"),
    "own classifier": ("classifier", "top1"),
    "effective rank": ("rank", "effective_rank"),
}


def plan(
    path: Path, methods: list[str], seeds: list[int], out: Path, budget: Budget, progress: OnProgress
) -> list[Planned]:
    """The runs: the recipe's data, encoder, augmentation and training for every method.

    A method's own settings and its number of views come from the recipe of its name beside `path`,
    where there is one. Its epochs are chosen so that all see equally many images, or train equally long.
    """
    base = load_recipe(path)
    for name in methods:
        if name not in METHODS:
            raise InputError(
                f"there is no method {name!r}{did_you_mean(name, METHODS)}; methods: {', '.join(METHODS)}"
            )
    own = {name: own_recipe(path, name) for name in methods}
    side = 0
    if any(recipe.augment.small_views for recipe in own.values()):
        side = load(base.data, progress).train.images.shape[-1]
    recipes = {name: under_one_budget(base, recipe, side) for name, recipe in own.items()}
    if budget == "time":
        seconds = {}
        for number, (name, recipe) in enumerate(recipes.items()):
            progress(number, len(recipes), "timing the methods")
            seconds[name] = seconds_per_epoch(recipe)
        longest = max(seconds[name] * recipe.train.epochs for name, recipe in recipes.items())
        for name, recipe in recipes.items():
            epochs = max(1, round(longest / seconds[name]))
            recipes[name] = replace(recipe, train=replace(recipe.train, epochs=epochs))
    return [
        Planned(
            name, seed, replace(recipe, train=replace(recipe.train, seed=seed)), out / f"{name}-seed{seed}"
        )
        for name, recipe in recipes.items()
        for seed in seeds
    ]


def own_recipe(path: Path, method: str) -> Recipe[Any]:
    beside = path.with_name(f"{method}.toml")
    return load_recipe(beside) if beside.exists() else Recipe(method=METHODS[method].Settings())


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
    small = augment.small_views * (augment.small_size / side) ** 2 if augment.small_views else 0
    return augment.views + small


def seconds_per_epoch(recipe: Recipe[Any]) -> float:
    """Of a second epoch: the first one also compiles and warms up."""
    two = replace(recipe, train=replace(recipe.train, epochs=2))
    with tempfile.TemporaryDirectory() as folder:
        rows = read_rows(run.train(two, Path(folder) / "run") / "metrics.jsonl")
    ends = [row["seconds"] for row in rows if row["epoch"] in (1.0, 2.0)]
    return max(ends[-1] - ends[0], 1e-3)


def carry_out(
    planned: Planned,
    watch: Watcher,
    progress: OnProgress,
    found: Callable[[str, Findings], None],
    command: str,
) -> Result:
    """Trains and judges one run, or goes on where it was left, or only reads what is there."""
    folder = planned.folder
    if not (folder / "encoder.safetensors").exists():
        run.train(planned.recipe, folder, True, watch, progress, command)
    findings = run.read_findings(folder)
    if "map2d" not in findings:  # the last that an evaluation leaves
        findings = run.evaluate(folder, planned.recipe.evaluate, progress=progress, found=found)
    rows = read_rows(folder / "metrics.jsonl")
    scores = {
        title: findings[name].scores[score] for title, (name, score) in COLUMNS.items() if name in findings
    }
    scores["minutes"] = rows[-1]["seconds"] / 60
    scores["images/s"] = statistics.median(row["images_per_second"] for row in rows)
    return Result(planned.method, planned.seed, scores)


def table(results: list[Result]) -> list[list[str]]:
    """A head and one row a method: mean, spread over the seeds, and cost."""
    head = ["method", *COLUMNS, "minutes a run", "images/s", "seeds"]
    rows = []
    for method in dict.fromkeys(result.method for result in results):
        own = [result.scores for result in results if result.method == method]
        cells = [method]
        for title in COLUMNS:
            values = [scores[title] for scores in own if title in scores]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.2f}{spread}" if values else "")
        cells.append(f"{statistics.fmean(scores['minutes'] for scores in own):.2f}")
        cells.append(f"{statistics.fmean(scores['images/s'] for scores in own):,.0f}")
        rows.append([*cells, str(len(own))])
    return [head, *rows]


def write(out: Path, results: list[Result], folders: list[Path]) -> Path:
    """compare.md, compare.json and report.html in the comparison's folder; returns the report's path."""
    head, *rows = table(results)
    lines = [head, ["---"] * len(head), *rows]
    write_text(out / "compare.md", "".join(f"| {' | '.join(line)} |\n" for line in lines))
    write_json(out / "compare.json", [{"method": r.method, "seed": r.seed, **r.scores} for r in results])
    return run.report(folders, out / "report.html")
