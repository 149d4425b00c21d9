"""Runs put together by their recipes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports.test_collect import add_finding, make_run

from varcon.reports.collect import read_runs
from varcon.reports.groups import (
    Spread,
    differing_settings,
    group_by_recipe,
    looks,
    marks_of,
    spread,
    told_apart,
)


def test_spread_is_that_of_a_sample() -> None:
    values = [97.4, 97.0, 98.2]
    found = spread(values)
    assert found is not None
    assert found.mean == np.mean(values)
    assert found.deviation == np.std(values, ddof=1)
    assert found.count == 3


def test_scores_of_other_settings_have_no_mean(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), seed=seed) for seed in range(2)]
    for place, folder in enumerate(folders):
        record = {"scores": {"top1": 50.0 + place}, "settings": {"k": 5, "seed": place}}
        (folder / "findings/knn.json").write_text(json.dumps(record))
        record = {"scores": {"last": 50.0 + place}, "settings": {"epochs": 1 + place}}
        (folder / "findings/linear.json").write_text(json.dumps(record))
    (group,) = group_by_recipe(read_runs(folders))
    assert group.spread("knn", "top1") == Spread(50.5, pytest.approx(0.5**0.5), 2)
    assert group.spread("linear", "last") is None
    record = {"scores": {"top1": 51.0}, "settings": {"k": 5}, "labels": "aa"}
    (folders[1] / "findings/knn.json").write_text(json.dumps(record))
    (group,) = group_by_recipe(read_runs(folders))
    assert group.spread("knn", "top1").count == 2
    (folders[0] / "findings/knn.json").write_text(json.dumps(record | {"labels": "bb"}))
    (group,) = group_by_recipe(read_runs(folders))
    assert group.spread("knn", "top1") is None
    assert group.spread("pixels", "top1") is None


def test_images_drawn_for_each_seed_have_labels_of_their_own(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), seed=seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        record = json.loads((folder / "recipe.json").read_text())
        record["recipe"].setdefault("data", {}).update(per_class=5, per_class_seed=seed)
        (folder / "recipe.json").write_text(json.dumps(record))
        finding = {"scores": {"top1": 50.0 + seed}, "settings": {"k": 5}, "labels": str(seed)}
        (folder / "findings/knn.json").write_text(json.dumps(finding))
    (group,) = group_by_recipe(read_runs(folders))
    found = group.spread("knn", "top1")
    assert found is not None and found.mean == 50.5


def test_one_value_has_no_spread_and_none_no_mean() -> None:
    found = spread([97.4])
    assert found is not None
    assert (found.mean, found.deviation) == (97.4, None)
    assert spread([]) is None


def test_runs_group_by_recipe_without_the_seed(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"cold-{seed}", seed) for seed in (0, 1, 2)]
    folders += [make_run(tmp_path / f"hot-{seed}", seed, temperature=0.2) for seed in (0, 1)]
    for folder, top1 in zip(folders, (90.0, 92.0, None, 80.0, 81.0), strict=True):
        if top1 is not None:
            add_finding(folder, "knn", {"top1": top1})
    cold, hot = group_by_recipe(read_runs([folders[0], folders[3], *folders[1:3], folders[4]]))
    assert [run.name for run in cold.runs] == ["cold-0", "cold-1", "cold-2"]
    assert [run.name for run in hot.runs] == ["hot-0", "hot-1"]
    assert (cold.label, hot.label) == ("temperature 0.1", "temperature 0.2")
    assert (cold.seeds, hot.seeds) == (3, 2)
    found = cold.spread("knn", "top1")
    assert found is not None
    assert (found.mean, found.count) == (91.0, 2)  # one run is not evaluated yet
    assert cold.spread("linear", "last") is None


def test_a_setting_that_is_none_is_as_one_that_there_was_not_yet(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "before"), make_run(tmp_path / "since", 1, start_temperature=None)]
    (group,) = group_by_recipe(read_runs(folders))
    assert group.seeds == 2


@pytest.mark.parametrize(
    ("section", "changed", "groups"),
    [
        ("train", {"snapshots": [1, 2]}, 1),
        ("train", {"device": "cuda:1", "compile": True, "cuda_graph": False, "track": "wandb"}, 1),
        ("train", {"checkpoint_seconds": 60.0}, 1),
        ("data", {"per_class": 5, "per_class_seed": 7}, 1),
        ("data", {"name": "cifar100", "path": "elsewhere"}, 1),
        ("data", {"name": "folder", "path": "elsewhere"}, 2),
        ("data", {"name": "npz", "path": "elsewhere.npz"}, 2),
        ("evaluate", {"k": 20}, 2),
    ],
)
def test_how_a_run_is_carried_out_makes_no_other_recipe(
    tmp_path: Path, section: str, changed: dict[str, Any], groups: int
) -> None:
    """Both runs have all that is changed, but the first with other values of what may differ."""
    folders = [make_run(tmp_path / f"run-{seed}", seed) for seed in (0, 1)]
    alike = {"name", "per_class"}
    for folder, values in (
        (folders[0], {name: value if name in alike else 0 for name, value in changed.items()}),
        (folders[1], changed),
    ):
        path = folder / "recipe.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        record["recipe"].setdefault(section, {}).update(values)
        path.write_text(json.dumps(record), encoding="utf-8")
    runs = read_runs(folders)
    found = group_by_recipe(runs)
    assert [len(group.runs) for group in found] == [2 // groups] * groups
    assert len(differing_settings(runs)) == groups - 1


def test_a_lone_recipe_is_labelled_by_method_and_data(tmp_path: Path) -> None:
    (group,) = group_by_recipe(read_runs([make_run(tmp_path / "run")]))
    assert group.label == "varcon on digits"


def test_labels_begin_with_the_method_and_say_no_more_than_they_must(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b", name="supcon", temperature=0.3)]
    assert [group.label for group in group_by_recipe(read_runs(folders))] == ["varcon", "supcon"]
    folders.append(make_run(tmp_path / "c", temperature=0.2))
    assert [group.label for group in group_by_recipe(read_runs(folders))] == [
        "varcon, temperature 0.1",
        "supcon, temperature 0.3",
        "varcon, temperature 0.2",
    ]


def labels(folder: Path, *recipes: dict[str, dict[str, Any]]) -> list[str]:
    """Of runs with these settings beside those that `make_run` gives them."""
    folders = [make_run(folder / f"run-{place}") for place in range(len(recipes))]
    for run, recipe in zip(folders, recipes, strict=True):
        record = json.loads((run / "recipe.json").read_text())
        for section, settings in recipe.items():
            record["recipe"][section] = record["recipe"].get(section, {}) | settings
        (run / "recipe.json").write_text(json.dumps(record))
    return [group.label for group in group_by_recipe(read_runs(folders))]


def test_labels_say_what_tells_runs_apart_that_differ_in_much(tmp_path: Path) -> None:
    digits = {"data": {"image_size": 0}, "augment": {"flip": 0.0}}
    folder = {"data": {"name": "folder", "image_size": 32}, "augment": {"flip": 0.5}, "train": {"epochs": 5}}
    assert labels(tmp_path / "mixed", digits, digits | {"train": {"epochs": 40}}, folder) == [
        "digits, epochs 2",
        "digits, epochs 40",
        "folder, epochs 5",
    ]
    grid = [(rate, flip) for rate in (0.1, 0.2, 0.3) for flip in (0.0, 0.5)]
    recipes = [
        {"train": {"large": rate > 0.1, "rate": rate}, "augment": {"flip": flip}} for rate, flip in grid
    ]
    assert labels(tmp_path / "grid", *recipes) == [f"rate {rate}, flip {flip}" for rate, flip in grid]


def test_labels_show_no_number_that_stands_for_something_else(tmp_path: Path) -> None:
    """Where another setting splits as well it is shown; else the number is put into words."""
    sizes = [{"data": {"image_size": size}} for size in (0, 32)]
    flips = [size | {"augment": {"flip": flip}} for size, flip in zip(sizes, (0.0, 0.5), strict=True)]
    assert labels(tmp_path / "both", *flips) == ["flip 0.0", "flip 0.5"]
    assert labels(tmp_path / "size", *sizes) == ["image_size own", "image_size 32"]
    parts = [{"data": {"per_class": count}} for count in (0, 5)]
    assert labels(tmp_path / "part", *parts) == ["per_class all", "per_class 5"]
    weights = [{"encoder": {"weights": path}} for path in ("", "a.safetensors")]
    assert labels(tmp_path / "weights", *weights) == ["weights none", "weights a.safetensors"]


def test_labels_name_the_section_where_two_settings_share_a_name(tmp_path: Path) -> None:
    recipes = [
        {"train": {"epochs": epochs}, "evaluate": {"linear": {"epochs": probe}}}
        for epochs in (2, 4)
        for probe in (10, 20)
    ]
    assert labels(tmp_path, *recipes) == [
        f"train.epochs {epochs}, evaluate.linear.epochs {probe}" for epochs in (2, 4) for probe in (10, 20)
    ]


def test_recipes_that_read_alike_all_bear_the_names_of_their_runs(tmp_path: Path) -> None:
    equal = [{"train": {"rate": rate}} for rate in (1, 1.0)]  # and yet written otherwise
    assert labels(tmp_path, *equal) == ["varcon on digits (run-0)", "varcon on digits (run-1)"]


def test_means_and_deviations_are_nan_where_there_are_none(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"run-{seed}", seed) for seed in range(3)]
    for folder, ari in zip(folders, (0.5, 0.6, 0.9), strict=True):
        add_finding(folder, "clustering", {"ari": ari, **({"nmi": 0.7} if ari == 0.5 else {})})
    (marks,) = marks_of(group_by_recipe(read_runs(folders)), "clustering", ["ari", "nmi", "purity"])
    np.testing.assert_allclose(marks.values, [np.mean([0.5, 0.6, 0.9]), 0.7, np.nan])
    np.testing.assert_allclose(marks.spread, [np.std([0.5, 0.6, 0.9], ddof=1), np.nan, np.nan])


def test_runs_of_one_recipe_look_alike_beside_other_recipes_and_differ_alone(tmp_path: Path) -> None:
    cold = [make_run(tmp_path / f"cold-{seed}", seed) for seed in range(2)]
    hot = make_run(tmp_path / "hot", temperature=0.2)
    together = [(look.style, look.label) for look in looks(group_by_recipe(read_runs([*cold, hot])))]
    assert together == [(0, "temperature 0.1 (2 runs)")] * 2 + [(1, "temperature 0.2")]
    single = group_by_recipe(read_runs([cold[0], hot]))
    assert [(look.style, look.label) for look in looks(single)] == [
        (0, "temperature 0.1"),
        (1, "temperature 0.2"),
    ]
    alone = group_by_recipe(read_runs(cold))
    assert [(look.style, look.label) for look in looks(alone)] == [(0, "cold-0"), (1, "cold-1")]
    assert [group.label for group in told_apart(alone)] == ["cold-0", "cold-1"]
