"""A grid of settings: one run for every combination and seed."""

from __future__ import annotations

import itertools
import json
import tomllib
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from varcon import run
from varcon.core import InputError, OnProgress
from varcon.data import load
from varcon.engine.check import check
from varcon.engine.state import check_recipe
from varcon.recipe import Recipe, differences, recipe_from_dict, recipe_to_dict
from varcon.run_folder import refuse_run_folder, stored_recipe
from varcon.runs import Planned, check_run

Grid = dict[str, list[Any]]  # dotted names of settings, and the values that each takes


def parse_grid(texts: list[str]) -> Grid:
    """From `method.temperature=0.05,0.1`, each value read as TOML reads it, or else as it stands."""
    grid: Grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise InputError(
                f"--set is {text!r}; write it as SETTING=VALUE,VALUE, for example train.epochs=50,100"
            )
        if name.strip() in grid:
            raise InputError(f"--set names {name.strip()} twice; give all its values at once")
        grid[name.strip()] = [read_value(value.strip()) for value in split_values(values)]
    return grid


def split_values(text: str) -> list[str]:
    """At the commas, but for those inside brackets or quotes: a setting may itself be a list."""
    depth, parts, quote = 0, [""], ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (depth or not parts[-1].strip()):  # not within a word, such as don't
            quote = letter
        if quote:
            parts[-1] += letter
            continue
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def read_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def combinations(base: Recipe[Any], grid: Grid) -> dict[str, Recipe[Any]]:
    """The recipe of each combination, under a label of the settings that vary."""
    recipes = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        settings = recipe_to_dict(base)
        for name, value in chosen.items():
            refuse_bare_name(name, settings)
            place = settings
            *sections, last = name.split(".")
            for section in sections:
                if not isinstance(place.get(section), dict):
                    raise InputError(
                        f"there is no setting {name!r}; settings are named as in a recipe, section.name"
                    )
                place = place[section]
            place[last] = value
        # One's own words for a setting are its last name; the section only where two would be alike.
        label = ", ".join(f"{short(name, grid)} {plain(value)}" for name, value in chosen.items())
        if label in recipes:
            raise InputError(f"--set gives {label} twice; give each value once")
        recipes[label or base.method_name] = recipe_from_dict(settings)
    return recipes


def refuse_bare_name(name: str, settings: dict[str, Any]) -> None:
    """A setting without its section, where some section has one of this name."""
    meant = [place for place in dotted_names(settings) if place.endswith(f".{name}")]
    if name not in settings and "." not in name and meant:
        raise InputError(f"there is no setting {name!r}; did you mean {' or '.join(meant)}?")


def dotted_names(settings: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        place
        for name, value in settings.items()
        for place in (
            dotted_names(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
        )
    ]


def short(name: str, grid: Grid) -> str:
    last = name.split(".")[-1]
    return last if [other.split(".")[-1] for other in grid].count(last) == 1 else name


def plain(value: Any) -> str:
    """In six digits where these are all, so that different values never look alike."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def plan(base: Recipe[Any], grid: Grid, seeds: list[int], out: Path, progress: OnProgress) -> list[Planned]:
    """The runs, and those that the folder's table has from calls with other values; what can be known to fail
    is found here, before anything is trained."""
    refuse_run_folder(out, "sweep")
    if "train.seed" in grid:
        raise InputError("--set names train.seed, which --seeds gives: write --seeds 0,1,2")
    if not grid and len(seeds) < 2:
        raise InputError(
            "sweep needs settings to vary, for example: --set train.epochs=50,100; or several --seeds"
        )
    data = {}  # by its settings: few sweeps change them
    planned = []
    recipes = combinations(base, grid)
    refuse_shared_folders(list(recipes))
    for label, recipe in recipes.items():
        if recipe.data not in data:
            data[recipe.data] = load(recipe.data, progress)
        try:
            check(run.build_method(recipe, data[recipe.data]), recipe, data[recipe.data], processes=1)
        except InputError as error:
            raise InputError(f"{label}: {error}") from None
        for seed in seeds:
            seeded = replace(recipe, train=replace(recipe.train, seed=seed))
            planned.append(Planned(label, seed, seeded, out / f"{folder_name(label)}-seed{seed}"))
            check_run(planned[-1], data[recipe.data])
    there = earlier(base, out, {one.folder for one in planned})
    for one in there:  # as check_run refuses for those asked for: of other data
        if one.recipe.data not in data:
            data[one.recipe.data] = load(one.recipe.data, progress)
        check_run(one, data[one.recipe.data])
    return [*there, *planned]


def earlier(base: Recipe[Any], out: Path, asked: set[Path]) -> list[Planned]:
    """The finished runs of the folder's table that are not asked for; what else than the settings of their
    labels was other when they were trained is refused."""
    try:
        rows = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
        trained = [(row["settings"], row["seed"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or cut off by a kill
        trained = []
    found = []
    for label, seed in trained:
        seeded = replace(base, train=replace(base.train, seed=seed))
        one = Planned(label, seed, seeded, out / f"{folder_name(label)}-seed{seed}")
        if one.folder in asked or not one.finished:
            continue
        stored, settings = recipe_to_dict(stored_recipe(one.folder)), recipe_to_dict(seeded)
        for name, (_, value) in differences(settings, stored).items():
            *sections, last = name.split(".")
            # With its value: others have the same last name, such as evaluate.linear.epochs.
            if any(f", {called} {plain(value)}, " in f", {label}, " for called in (name, last)):
                reduce(dict.__getitem__, sections, settings)[last] = value
        found.append(replace(one, recipe=recipe_from_dict(settings)))
        check_recipe(stored, found[-1].recipe, one.folder)
    return found


def refuse_shared_folders(labels: list[str]) -> None:
    found: dict[str, str] = {}
    for label in labels:
        other = found.setdefault(folder_name(label).casefold(), label)  # some disks take A and a for one
        if other != label:
            raise InputError(
                f"{other!r} and {label!r} would share the folder {folder_name(label)}; sweep them one after "
                "the other, each with an --out of its own"
            )


def folder_name(label: str) -> str:
    """A label as a name that every file system and shell takes."""
    return "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in label).replace(
        "--", "-"
    )
