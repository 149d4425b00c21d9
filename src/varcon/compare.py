"""Many methods under one budget: the runs of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from varcon import run, run_folder
from varcon.augment import AugmentSettings
from varcon.budget import Budget, timed_epochs, under_one_budget
from varcon.core import InputError, OnProgress
from varcon.data import load
from varcon.engine.check import check
from varcon.limits import meant_or
from varcon.methods import METHODS
from varcon.recipe import Recipe, load_recipe
from varcon.runs import Planned, Result, check_run


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
    recipe of its name beside `path`; without one its settings are the defaults, and its views those of
    `path`, or as many as it needs. Epochs are chosen so that all see equally many images, or train equally
    long. Finished runs of earlier calls are among the planned, so that the comparison keeps them. What can
    be known to fail is found here, before anything is trained.
    """
    run_folder.refuse_run_folder(out, "comparison")
    base = load_recipe(path).with_data_path(data_path)
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
    stored = [run_folder.stored_recipe(found.parent) for found in sorted(out.glob("*-seed*/recipe.json"))]
    for name in {recipe.method_name for recipe in stored} - recipes.keys():
        recipes[name] = under_one_budget(base, own_recipe(base, path, name), side)
    # As the recipes have them now: what was trained by others is refused, not averaged with the rest.
    there = [planned(recipes[recipe.method_name], recipe.train.seed) for recipe in stored]
    earlier = {one.folder: one for one in there if one.folder not in asked}
    for one in [*asked.values(), *earlier.values()]:
        check_run(one, data)
    runs = [*asked.values(), *(one for one in earlier.values() if one.finished)]
    # What is finished first: it is quickly read, and the table is then full however soon the rest is stopped.
    return sorted(runs, key=lambda one: not one.finished)


def own_recipe(base: Recipe[Any], path: Path, method: str) -> Recipe[Any]:
    if method not in METHODS:
        raise InputError(
            f"there is no method {method!r}{meant_or(method, METHODS)} methods: {', '.join(METHODS)}"
        )
    beside = path.with_name(f"{method}.toml")
    if base.method_name == method:
        return base
    if not beside.exists():
        kind = METHODS[method]
        views = min(max(kind.least_views, base.augment.views), kind.most_views or base.augment.views)
        return Recipe(method=kind.Settings(), augment=AugmentSettings(views=views))
    own = load_recipe(beside)
    if own.method_name != method:
        raise InputError(
            f"{beside} holds the method {own.method_name} and would be taken for {method}'s settings; "
            "rename it, or correct its method.name"
        )
    return own


def by_default(path: Path, methods: list[str]) -> list[str]:
    """Those that have no recipe beside this one, whose own needs none."""
    own = load_recipe(path).method_name
    return [name for name in methods if name != own and not path.with_name(f"{name}.toml").exists()]


def in_order(results: list[Result]) -> list[Result]:
    """As the methods are listed: the table is of the folder, whatever this call asked for first."""
    return sorted(results, key=lambda result: (list(METHODS).index(result.label), result.seed))
