import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pictures import write_recipe

from varcon import InputError, run
from varcon.cli import main
from varcon.recipe import load_recipe
from varcon.sweep import combinations, folder_name, parse_grid

DIGITS = Path(__file__).parents[1] / "recipes/digits/varcon.toml"


def test_values_are_read_as_a_recipe_reads_them():
    grid = parse_grid(
        [
            "method.temperature=0.05, 1e-1",
            "method.references=batch,ema",
            "augment.crop_area=[0.2,1.0],[0.5,1.0]",
        ]
    )
    assert grid == {
        "method.temperature": [0.05, 0.1],
        "method.references": ["batch", "ema"],
        "augment.crop_area": [[0.2, 1.0], [0.5, 1.0]],
    }


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("'a b','c,d'", ["a b", "c,d"]),
        ('"si,m",auto', ["si,m", "auto"]),
        ("don't,won't", ["don't", "won't"]),
        ('["a,b","c"],["d]"]', [["a,b", "c"], ["d]"]]),
    ],
)
def test_a_comma_in_quotes_belongs_to_the_value(text, values):
    assert parse_grid([f"data.path={text}"]) == {"data.path": values}


def test_every_combination_has_its_recipe_and_label():
    grid = parse_grid(["method.temperature=0.05,0.2", "train.epochs=1,3"])
    recipes = combinations(load_recipe(DIGITS), grid)
    got = {label: (recipe.method.temperature, recipe.train.epochs) for label, recipe in recipes.items()}
    assert got == {
        "temperature 0.05, epochs 1": (0.05, 1),
        "temperature 0.05, epochs 3": (0.05, 3),
        "temperature 0.2, epochs 1": (0.2, 1),
        "temperature 0.2, epochs 3": (0.2, 3),
    }
    assert all(recipe.data == load_recipe(DIGITS).data for recipe in recipes.values())
    assert folder_name("temperature 0.05, epochs 1") == "temperature-0.05-epochs-1"


def test_a_setting_without_its_section_is_suggested_with_it():
    for name, meant in (
        ("temperature", "method.temperature"),
        ("epochs", "train.epochs or evaluate.linear.epochs"),
    ):
        with pytest.raises(InputError, match=rf"no setting '{name}'; did you mean .*{meant}"):
            combinations(load_recipe(DIGITS), {name: [1, 2]})
    with pytest.raises(InputError, match="a recipe has no setting 'nonsense'; settings: "):
        combinations(load_recipe(DIGITS), {"nonsense": [1, 2]})


def test_values_that_differ_in_the_seventh_digit_are_two():
    recipes = combinations(load_recipe(DIGITS), parse_grid(["train.learning_rate=0.1234567,0.1234568,1e-5"]))
    assert {label: recipe.train.learning_rate for label, recipe in recipes.items()} == {
        "learning_rate 0.1234567": 0.1234567,
        "learning_rate 0.1234568": 0.1234568,
        "learning_rate 1e-05": 1e-5,
    }


def test_settings_of_one_name_are_told_apart():
    grid = parse_grid(["method.temperature=0.1", "evaluate.knn.temperature=0.2"])
    (label,) = combinations(load_recipe(DIGITS), grid)
    assert label == "method.temperature 0.1, evaluate.knn.temperature 0.2"


def test_from_one_command_and_on_where_it_stopped(tmp_path, capsys):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    command = ["sweep", str(recipe), "--set", "method.temperature=0.1,0.2", "--set", "train.epochs=1"]
    command += ["--seeds", "0,1", "--out", str(out)]
    assert main(command) == 0
    assert "temperature 0.1, epochs 1" in capsys.readouterr().out
    results = json.loads((out / "sweep.json").read_text())
    assert [(r["settings"], r["seed"]) for r in results] == [
        (f"temperature {t}, epochs 1", seed) for t in (0.1, 0.2) for seed in (0, 1)
    ]
    stored = json.loads((out / "temperature-0.2-epochs-1-seed1/recipe.json").read_text())["recipe"]
    assert (stored["method"]["temperature"], stored["train"]["epochs"], stored["train"]["seed"]) == (
        0.2,
        1,
        1,
    )
    assert "| temperature 0.1, epochs 1 | 100.00 ± 0.00 |" in (out / "sweep.md").read_text()
    assert "with --set data.held_out=0.1" in (out / "sweep.md").read_text()
    assert (out / "report.html").exists()
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}
    assert main(command) == 0
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}


def test_further_values_join_the_table(tmp_path, capsys):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    command = ["sweep", str(recipe), "--only", "knn", "--out", str(out), "--set"]
    assert main([*command, "method.temperature=0.1,0.2"]) == 0
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}
    assert main([*command, "method.temperature=0.5", "--seeds", "0,1"]) == 0
    rows = json.loads((out / "sweep.json").read_text())
    assert [(row["settings"], row["seed"]) for row in rows] == [
        ("temperature 0.1", 0),
        ("temperature 0.2", 0),
        ("temperature 0.5", 0),
        ("temperature 0.5", 1),
    ]
    assert "temperature 0.1" in (out / "report.html").read_text()
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    capsys.readouterr()
    longer = ["method.temperature=0.3", "--set", "train.epochs=3"]
    assert main([*command, *longer]) == 0  # whose labels tell the difference
    recipe.write_text(recipe.read_text().replace("epochs = 2", "epochs = 4"))
    assert main([*command, "method.temperature=0.6"]) == 2
    assert "temperature-0.1-seed0 was begun with train.epochs = 2" in capsys.readouterr().err
    (out / "sweep.json").write_text("[{")
    assert main([*command, "method.temperature=0.6"]) == 0
    assert [row["settings"] for row in json.loads((out / "sweep.json").read_text())] == ["temperature 0.6"]


def test_a_stop_loses_no_run_of_the_table(tmp_path, monkeypatch):
    """Those of earlier calls that had still to be judged are in the next call's."""
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    command = ["sweep", str(recipe), "--out", str(out), "--only"]
    assert main([*command, "knn", "--set", "method.temperature=0.05,0.1"]) == 0
    judge, judged = run.evaluate, []

    def first_alone(folder, *given, **settings):
        judged.append(folder.name)
        if len(judged) > 1:
            raise KeyboardInterrupt
        return judge(folder, *given, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(run, "evaluate", first_alone)
        assert main([*command, "knn,centroid", "--set", "method.temperature=0.2"]) == 130
    assert main([*command, "knn", "--set", "method.temperature=0.2"]) == 0
    rows = json.loads((out / "sweep.json").read_text())
    assert [row["settings"] for row in rows] == [f"temperature {value}" for value in (0.05, 0.1, 0.2)]
    assert all("kNN top-1" in row for row in rows)


def test_runs_of_other_data_or_settings_do_not_join(tmp_path, capsys):
    """Also a setting whose last name is that of the one that varies."""
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    command = ["sweep", str(recipe), "--only", "linear", "--out", str(out), "--set"]
    assert main([*command, "train.epochs=1"]) == 0
    text = recipe.read_text()
    recipe.write_text(text.replace("[evaluate.linear]\nepochs = 2", "[evaluate.linear]\nepochs = 3"))
    assert main([*command, "train.epochs=2"]) == 0
    for name in ("epochs-1-seed0", "epochs-2-seed0"):
        stored = json.loads((out / name / "findings/linear.json").read_text())
        assert stored["settings"]["epochs"] == 3
    arrays = dict(np.load(tmp_path / "few.npz"))
    np.savez(tmp_path / "other.npz", **arrays | {"train_images": 255 - arrays["train_images"]})
    capsys.readouterr()
    elsewhere = ["--data.path", str(tmp_path / "other.npz")]
    assert main([*command, "train.epochs=3", *elsewhere]) == 2
    assert "epochs-1-seed0 was trained on other data" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ["metrics.jsonl", "findings/knn.json", "findings"])
def test_a_run_that_is_damaged_does_not_stop_the_others(tmp_path, capsys, damaged):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    command = ["sweep", str(recipe), "--set", "train.epochs=1,2", "--only", "knn", "--out", str(out)]
    assert main(command) == 0
    place = out / "epochs-1-seed0" / damaged
    if place.is_dir():  # a file in the place of a folder
        shutil.rmtree(place)
    place.write_bytes(bytes(range(255, 0, -1)))
    assert main(command) == 1
    assert "1 of 2 runs failed (epochs 1, seed 0)" in capsys.readouterr().err
    assert json.loads((out / "sweep.json").read_text())[1]["kNN top-1"] == 100.0


@pytest.mark.parametrize("left", [None, "", '{"step": 1, "ep'], ids=["none", "empty", "cut off"])
def test_a_run_without_its_metrics_is_listed_and_the_rest_is_there(tmp_path, capsys, left):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    recipe.write_text(recipe.read_text().replace("[data]\n", "[data]\nheld_out = 0.2\n"))
    command = ["sweep", str(recipe), "--set", "train.epochs=1,2", "--only", "knn", "--out", str(out)]
    assert main(command) == 0
    assert "--set data.held_out" not in (out / "sweep.md").read_text()
    assert "training images that were held out, not on the test images" in (out / "sweep.md").read_text()
    journal = out / "epochs-1-seed0/metrics.jsonl"
    journal.unlink() if left is None else journal.write_text(left)
    capsys.readouterr()
    assert main(command) == 1
    assert "1 of 2 runs failed (epochs 1, seed 0)" in capsys.readouterr().err
    assert "metrics.jsonl has no row; restore it, or delete" in (out / "sweep.md").read_text()
    first, second = json.loads((out / "sweep.json").read_text())
    assert "failed" in first
    assert second["kNN top-1"] == 100.0
    assert (out / "epochs-1-seed0/encoder.safetensors").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "temperature"], "--set is 'temperature'; write it as SETTING=VALUE,VALUE"),
        (
            ["--set", "method.tempreture=1"],
            "method varcon has no setting 'tempreture'; did you mean 'temperature'",
        ),
        (["--set", "methods.temperature=1"], "there is no setting 'methods.temperature'"),
        (["--set", "train.epochs=two"], "train.epochs"),
        (["--set", "method.name=varcon,ce"], "several side by side: varcon compare"),
        (
            ["--set", "train.batch_size=16,4800"],
            "batch_size 4800: train.batch_size is 4800 but there are only 48",
        ),
        (["--set", "train.epochs=1", "--set", "train.epochs=2"], "--set names train.epochs twice"),
        (["--set", "train.seed=0,1"], "--set names train.seed, which --seeds gives: write --seeds 0,1,2"),
        (["--set", "train.epochs=1,2,1"], "--set gives epochs 1 twice; give each value once"),
        (
            ["--set", "data.path=/d/a/b,/d/a-b"],
            "'path /d/a/b' and 'path /d/a-b' would share the folder path-d-a-b; sweep them one after",
        ),
        (["--set", "data.path=/d/a,/d/A"], "would share the folder path-d-A"),
        (["--seeds", "0,x"], "--seeds is '0,x'"),
        ([], "sweep needs settings to vary, for example: --set train.epochs=50,100"),
    ],
)
def test_mistakes(flags, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sweep", str(write_recipe(tmp_path)), "--out", str(out), *flags]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_combination_that_is_no_recipe():
    with pytest.raises(InputError, match="temperature"):
        combinations(load_recipe(DIGITS), parse_grid(["method.temperature=-1"]))
