"""Many methods under one budget: the runs of a comparison, planned, carried out and tabulated."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from varcon import run
from varcon.budget import Budget, timed_epochs, under_one_budget
from varcon.core import Data, InputError, OnProgress, RunError
from varcon.data import load
from varcon.engine.interrupt import Interrupted
from varcon.engine.journal import read_rows
from varcon.engine.loop import Watcher, check
from varcon.engine.state import check_recipe
from varcon.files import write_json, write_text
from varcon.methods import METHODS
from varcon.recipe import Recipe, did_you_mean, load_recipe, recipe_to_dict


@dataclass(frozen=True)
class Planned:
    method: str
    seed: int
    recipe: Recipe[Any]
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / "encoder.safetensors").exists()


@dataclass(frozen=True)
class Result:
    method: str
    seed: int
    scores: dict[str, float] = field(default_factory=dict)  # by the titles below, and minutes
    failed: str = ""  # why, of a run that did not come to its end


COLUMNS = {
    "kNN top-1": ("knn", "top1"),
    "linear probe, last": ("linear", "last"),
    "linear-augmented probe, last": ("linear-augmented", "last"),
    "own classifier": ("classifier", "top1"),
    "effective rank": ("rank", "effective_rank"),
}
SPEED = "data set images/s"  # not views: a method with more of them is slower by its nature


def plan(
    path: Path,
    methods: list[str],
    seeds: list[int],
    out: Path,
    budget: Budget,
    progress: OnProgress,
    data_path: Path | None = None,
    device: str | None = None,
) -> list[Planned]:
    """The runs: the recipe's data, encoder, augmentation and training for every method.

    The recipe's own method is as it says there. Another one's settings and number of views come from the
    recipe of its name beside `path`, or else are its defaults. Epochs are chosen so that all see equally many
    images, or train equally long. Finished runs of earlier calls are among the planned, so that the
    comparison keeps them. What can be known to fail is found here, before anything is trained.
    """
    if (out / "recipe.json").exists() or out.is_file():
        raise InputError(f"{out} is a run or a file; put the comparison elsewhere with --out FOLDER")
    base = load_recipe(path)
    if data_path:
        base = replace(base, data=replace(base.data, path=str(data_path)))
    base = replace(base, train=replace(base.train, device=device or base.train.device))
    kind = run.pick_device(base.train.device).split(":")[0]
    own = {name: own_recipe(base, path, name) for name in methods}
    data = load(base.data, progress)
    side = data.train.images.shape[-1]
    recipes = {name: under_one_budget(base, recipe, side) for name, recipe in own.items()}
    for name, recipe in recipes.items():
        try:
            check(run.build_method(recipe, data), recipe, data, processes=1)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    epochs = timed_epochs(recipes, out, kind, progress) if budget == "time" else {}

    def planned(recipe: Recipe[Any], seed: int) -> Planned:
        name = recipe.method_name
        train = replace(recipe.train, seed=seed, epochs=epochs.get(name, recipe.train.epochs))
        return Planned(name, seed, replace(recipe, train=train), out / f"{name}-seed{seed}")

    asked = {one.folder: one for one in (planned(r, seed) for r in recipes.values() for seed in seeds)}
    stored = [run.stored_recipe(found.parent) for found in sorted(out.glob("*-seed*/recipe.json"))]
    there = [planned(under_one_budget(base, recipe, side), recipe.train.seed) for recipe in stored]
    earlier = {one.folder: one for one in there if one.folder not in asked}
    for one in [*asked.values(), *earlier.values()]:
        check_run(one, data)
    runs = [*asked.values(), *(one for one in earlier.values() if one.finished)]
    # What is finished first: it is quickly read, and the table is then full however soon the rest is stopped.
    return sorted(runs, key=lambda one: not one.finished)


def own_recipe(base: Recipe[Any], path: Path, method: str) -> Recipe[Any]:
    if method not in METHODS:
        raise InputError(
            f"there is no method {method!r}{did_you_mean(method, METHODS)}; methods: {', '.join(METHODS)}"
        )
    beside = path.with_name(f"{method}.toml")
    if base.method_name == method:
        return base
    if not beside.exists():
        return Recipe(method=METHODS[method].Settings())
    own = load_recipe(beside)
    if own.method_name != method:
        raise InputError(
            f"{beside} holds the method {own.method_name} and would be taken for {method}'s settings; "
            "rename it, or correct its method.name"
        )
    return own


def check_run(one: Planned, data: Data) -> None:
    """What lies in the run's folder is the planned run, or nothing."""
    if not one.finished:
        run.check_folder(one.folder, one.recipe, resume=True)
        if not (one.folder / "recipe.json").exists():
            return
    check_recipe(recipe_to_dict(run.stored_recipe(one.folder)), one.recipe, one.folder)
    facts = json.loads((one.folder / "recipe.json").read_text(encoding="utf-8"))
    now = {"train_images": len(data.train), "test_images": len(data.test), "classes": data.classes}
    if any(facts.get(name, value) != value for name, value in now.items()):
        raise InputError(
            f"{one.folder} was trained on other data than lie at {one.recipe.data.path!r} now; "
            "restore those, or put the comparison elsewhere with --out FOLDER"
        )


def carry_out(planned: Planned, watch: Watcher, progress: OnProgress, command: str) -> Result:
    """Trains and judges one run, or goes on where it was left, or only reads what is there."""
    folder, recipe = planned.folder, planned.recipe
    try:
        if not planned.finished:
            run.train(recipe, folder, True, watch, progress, command)
        findings = run.read_findings(folder, recipe.evaluate)
        if not findings:
            where = recipe.data.path or None
            findings = run.evaluate(folder, recipe.evaluate, where, recipe.train.device, progress)
    except Interrupted:
        raise
    except RunError as error:  # the other runs can do without this one
        return Result(planned.method, planned.seed, failed=str(error))
    rows = read_rows(folder / "metrics.jsonl")
    scores = {
        title: findings[name].scores[score] for title, (name, score) in COLUMNS.items() if name in findings
    }
    scores["minutes"] = rows[-1]["seconds"] / 60
    scores[SPEED] = statistics.median(row["images_per_second"] for row in rows)
    return Result(planned.method, planned.seed, scores)


def table(results: list[Result]) -> list[list[str]]:
    """A head and one row a method: mean, spread over the seeds, and cost."""
    titles = [title for title in COLUMNS if any(title in result.scores for result in results)]
    rows = []
    for method in dict.fromkeys(result.method for result in results):
        own = [result.scores for result in results if result.method == method and not result.failed]
        failed = sum(result.method == method and bool(result.failed) for result in results)
        cells = [method]
        for title in titles:
            values = [scores[title] for scores in own if title in scores]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.2f}{spread}" if values else "")
        cells.append(f"{statistics.fmean(scores['minutes'] for scores in own):.2f}" if own else "")
        cells.append(f"{statistics.fmean(scores[SPEED] for scores in own):,.0f}" if own else "")
        rows.append([*cells, f"{len(own)}, {failed} failed" if failed else str(len(own))])
    return [["method", *titles, "minutes a run", SPEED, "seeds"], *rows]


def in_order(results: list[Result]) -> list[Result]:
    """As the methods are listed: the table is of the folder, whatever this call asked for first."""
    return sorted(results, key=lambda result: (list(METHODS).index(result.method), result.seed))


def write(out: Path, results: list[Result]) -> None:
    """compare.md and compare.json in the comparison's folder."""
    head, *rows = table(results)
    lines = [f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows)]
    failures = [f"\n{r.method}, seed {r.seed} failed: {r.failed}\n" for r in results if r.failed]
    out.mkdir(parents=True, exist_ok=True)  # a run that fails may leave none
    write_text(out / "compare.md", "".join(lines + failures))
    entries = [
        {"method": r.method, "seed": r.seed, **({"failed": r.failed} if r.failed else r.scores)}
        for r in results
    ]
    write_json(out / "compare.json", entries)
