"""The command, on a few made-up images: every table and figure, once."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from varcon import reproduce, run
from varcon.cli import main
from varcon.data import DataSettings
from varcon.evaluations import EvaluateSettings
from varcon.evaluations.knn import KNN
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.map2d import Map2D
from varcon.reproduce import memory, setup
from varcon.reproduce.setup import Runs
from varcon.runs import Planned


def write_images(path, classes=4, of_each=24):
    """Classes of brightness."""
    chance = np.random.default_rng(0)
    labels = np.arange(classes * of_each) % classes
    images = (chance.integers(0, 40, (len(labels), 8, 8)) + 50 * labels[:, None, None]).astype(np.uint8)
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return path


@pytest.fixture(scope="module")
def quick():
    """The smoke scale cut to four epochs and few steps of the probe, without reports."""
    with pytest.MonkeyPatch.context() as patch:
        scale = setup.SCALES["smoke"]
        evaluate = EvaluateSettings(KNN(k=5, also=(1, 5, 10)), LinearProbe(epochs=2), Map2D(points=40))
        train = replace(scale.base.train, epochs=4, batch_size=48, warmup_epochs=0)
        base = replace(scale.base, train=train, evaluate=evaluate)
        patch.setitem(setup.SCALES, "smoke", replace(scale, base=base))
        patch.setitem(memory.SIZES, "smoke", ((64, 128), (10, 20), 64))
        patch.setattr(memory, "REPEATS", 1)
        patch.setattr(run, "report", lambda folders, page: page.write_text(str(len(folders))))
        yield


@pytest.fixture(scope="module")
def made(quick, tmp_path_factory):
    """The folder of all of them."""
    folder = tmp_path_factory.mktemp("reproduced")
    data = write_images(folder / "few.npz")
    command = ["reproduce", "all", "--data", f"npz={data}", "--out", str(folder / "out"), "--devices", "cpu"]
    assert main(command) == 0
    return folder / "out"


def entries(made, name):
    found = json.loads((made / name / "table.json").read_text())["entries"]
    return {(entry["row"], entry["column"]): entry for entry in found}


@pytest.mark.parametrize("name", list(reproduce.ARTIFACTS))
def test_every_name_has_its_files(made, name):
    folder, artifact = made / name, reproduce.ARTIFACTS[name]
    assert {"table.md", "table.tex", "table.json"} <= {path.name for path in folder.iterdir()}
    assert (folder / "figure.svg").exists() == (artifact.figure is not None)
    assert (folder / "report.html").exists() == (not artifact.measured)
    text = (folder / "table.md").read_text()
    assert f"Paper: {artifact.setting} ({artifact.place})." in text
    assert "failed" not in text
    ours = [entry for entry in entries(made, name).values() if "ours" in entry]
    assert ours
    for entry in ours:
        assert all((folder / run / "encoder.safetensors").exists() for run in entry["ours"]["runs"])
        assert artifact.measured or entry["ours"]["runs"]


@pytest.mark.parametrize("name", [n for n, one in reproduce.ARTIFACTS.items() if one.figure])
def test_figures_stand_alone(made, name):
    text = (made / name / "figure.svg").read_text()
    assert text.startswith("<svg")
    assert 'width="' in text[: text.index(">")]
    assert "var(--" not in text


def test_it_is_said_what_judges(made):
    by_probe = "Ours are the linear probe's at its last epoch"
    assert by_probe in (made / "temperature/table.md").read_text()
    assert by_probe not in (made / "tau2/table.md").read_text()


def test_names_share_their_runs(made):
    runs = [path.name for path in (made / "runs").iterdir()]
    assert len(runs) == len(set(runs))
    tables = [entries(made, name) for name in ("table1", "temperature", "epochs", "batch-size")]
    rows = [("VarCon", "linear probe top-1"), ("temperature 0.1", "VarCon")]
    used = [table[row]["ours"]["runs"] for table, row in zip(tables, rows, strict=False)]
    assert used[0] == used[1] == ["../runs/varcon-seed0"]
    stored = json.loads((made / "runs/varcon-seed0/recipe.json").read_text())["recipe"]
    assert stored["train"]["snapshots"] == [1, 2, 3]


def test_numbers_are_those_of_the_findings(made):
    found = json.loads((made / "runs/supcon-seed0/findings/linear.json").read_text())["scores"]
    assert entries(made, "table1")["SupCon", "linear probe top-1"]["ours"]["mean"] == found["last"]
    votes = json.loads((made / "runs/varcon-seed0/findings/knn.json").read_text())["scores"]
    assert entries(made, "knn")["K = 10", "VarCon"]["ours"]["mean"] == votes["top1@10"]


def test_what_stands_in_is_said(made):
    assert "No --target was given" in (made / "table4/table.md").read_text()
    assert "No --real-labels were given" in (made / "real/table.md").read_text()
    with np.load(made / "stand-ins/second-classes.npz") as half:
        assert sorted(set(half["train_labels"].tolist())) == [0, 1]
        assert half["classes"].tolist() == ["2", "3"]
    acceptable = json.loads((made / "stand-ins/acceptable.json").read_text())
    assert all(place % 4 in labels for place, labels in enumerate(acceptable))


def test_the_second_time_nothing_is_trained(made, quick, tmp_path, capsys):
    shutil.copytree(made, tmp_path / "out")
    data = made.parent / "few.npz"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("encoder.safetensors")}
    (tmp_path / "out/knn/table.md").unlink()
    kept = (tmp_path / "out/knn/figure.svg").read_bytes()
    command = ["reproduce", "knn", "--data", str(data), "--out", str(tmp_path / "out"), "--devices", "cpu"]
    assert main(command) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (tmp_path / "out/knn/table.md").exists()
    assert (tmp_path / "out/knn/figure.svg").read_bytes() == kept
    assert " 77.4 " in capsys.readouterr().out  # the paper's, of K = 5


def test_a_run_that_fails_is_listed_and_the_rest_goes_on(made, quick, tmp_path, capsys):
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    shutil.copytree(made / "runs/supcon-seed0", out / "runs/supcon-seed0")
    (out / "runs/supcon-seed0/findings/knn.json").write_text("{")  # damaged
    data = made.parent / "few.npz"
    command = ["reproduce", "knn", "--data", str(data), "--out", str(out), "--devices", "cpu"]
    assert main(command) == 1
    assert "1 runs failed (supcon, seed 0)" in capsys.readouterr().err
    text = (out / "knn/table.md").read_text()
    assert "supcon, seed 0 failed: " in text
    assert "knn.json cannot be read" in text
    assert ("K = 5", "VarCon") in entries(out, "knn")


def notes(setup, name, runs=None):
    artifact = reproduce.ARTIFACTS[name]
    made = reproduce.Plan(name, artifact, setup, artifact.content(setup), runs or {}, [])
    return " ".join(reproduce.notes_of(made, [], "cpu"))


def test_deviations_are_told_where_there_are_some(cifar):
    """The paper has errors in some of its tables."""
    seeds = [Planned("varcon", seed, cifar.base, Path()) for seed in (0, 1)]
    one_of_several = "The figure is of the first seed's runs."
    theirs = ["; the paper's ± is its standard error", ", the paper's its standard error"]
    for name, errors, of_one in (("table2", True, False), ("tau2", False, True), ("tsne", False, True)):
        alone, several = (notes(cifar, name, {Runs("varcon"): some}) for some in (seeds[:1], seeds))
        assert (theirs[0] in alone, theirs[1] in several) == (errors, errors), name
        assert "± is the standard deviation over the seeds" in several
        assert (one_of_several in several, one_of_several in alone) == (of_one, False), name


@pytest.fixture
def cifar(imagenet):
    return replace(
        imagenet,
        scale=setup.SCALES["paper"],
        base=replace(setup.SCALES["paper"].base, data=DataSettings("cifar100", "x")),
        counts=(500,) * 100,
        side=32,
    )


def test_it_is_said_where_ours_and_the_paper_s_do_not_compare(imagenet, cifar):
    """Whose data the paper has values of, in each table."""
    photos = replace(imagenet, counts=(732,) * 1000)
    for name, artifact in reproduce.ARTIFACTS.items():
        if artifact.measured or name == "similarity":  # of which the paper prints no values
            continue
        assert ("do not compare in value: data" in notes(cifar, name)) == (name not in ("table1", "paco"))
        assert "do not compare in value: data" in notes(photos, name)
        assert "do not compare in value: data" not in notes(imagenet, name)
        assert "The two compare roughly" in notes(imagenet, name)


def test_methods_that_are_trained_otherwise_are_named(cifar, imagenet):
    own = "augment.policy crop-flip, augment.views 1, train.epochs 400, train.learning_rate 0.1"
    assert f"of their own: ce ({own}" in notes(cifar, "table1")
    both = "paco, gpaco, varcon-paco, varcon-gpaco (train.learning_rate 0.1, train.weight_decay 0.0005)"
    assert f"of their own: {both}." in notes(cifar, "paco")
    assert "of their own" not in notes(cifar, "epsilon")
    assert imagenet.further(imagenet.base).robustness.images == 50_000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("table1", "350 epochs unless"),
        ("tau2", "50 epochs unless"),
        ("convergence", "50 epochs unless"),
        ("tau2-learnable", "200 epochs unless"),
        ("tsne", "200 epochs unless"),
        ("tsne-compare", "supcon 350 epochs, varcon 200 epochs unless"),
    ],
)
def test_runs_train_as_long_as_the_paper_s(imagenet, name, words):
    assert f"encoder, {words} a row says otherwise" in notes(imagenet, name)
    artifact = reproduce.ARTIFACTS[name]
    runs = {entry.ours.runs for entry in artifact.content(imagenet) if entry.ours}
    found = {imagenet.recipe(one).train.epochs for one in runs if one.method != "ce"}
    assert found == {int(number) for number in re.findall(r"\d+", words)}
    mapped = imagenet.recipe(setup.VARCON_200)
    assert mapped.train.snapshots == (50, 100, 150)
    assert imagenet.recipe(setup.Runs("varcon")).train.snapshots == ()


def test_values_that_the_data_do_not_allow_are_named(imagenet):
    assert "Left out: N = 1000; the smallest class has 732 training images." in notes(imagenet, "table2")
    few = replace(imagenet, counts=(500,) * 10)
    assert "Left out: N = 700, 1000; the smallest class has 500 training images." in notes(few, "table2")
    assert "Left out: batch 6144; there are 5,000 training images." in notes(few, "batch-size")
    assert "Left out" not in notes(imagenet, "batch-size")


def test_the_notes_say_what_a_folder_takes_at_the_paper_s_scale(imagenet):
    said = notes(imagenet, "table1")
    assert "43 GB for every 512 images" in said
    assert "batches of 512 unless a row says otherwise, where the paper has 4096" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabel1"], "there is no table or figure 'tabel1'; did you mean 'table1'?"),
        (["knn", "--scale", "smal"], "there is no scale 'smal'; did you mean 'small'?"),
        (["knn", "--scale", "small"], "--scale small needs data: give --data cifar100=FOLDER"),
        (["knn", "--data", "nowhere"], "there is no such file or folder"),
        (["knn", "--data", "cifar100=nowhere"], "varcon download cifar100"),
        (["knn", "--data.store", "decoded"], "data.store is for data.name folder, not digits"),
        (["knn", "--seeds", "a"], "--seeds is 'a'"),
        (["knn", "--devices", "cpu,gpu"], "there is no device 'gpu'"),
        (["table4", "--target", "flowers"], "'flowers' names no path"),
        (["corruption", "--corrupted", "nowhere"], "there is no folder nowhere of corrupted images"),
        (["real", "--real-labels", "nowhere.json"], "nowhere.json cannot be opened"),
    ],
)
def test_mistakes(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_run_is_no_place_for_tables(made, quick, capsys):
    assert main(["reproduce", "knn", "--out", str(made / "runs/varcon-seed0")]) == 2
    assert "varcon-seed0 is a run or a file; put the tables elsewhere" in capsys.readouterr().err


def test_what_is_needed_is_asked_for_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    data = write_images(tmp_path / "few.npz")
    monkeypatch.chdir(tmp_path)
    for name, words in (("table4", "give --target NAME=PATH"), ("real", "give --real-labels FILE")):
        assert main(["reproduce", "knn", name, "--scale", "small", "--data", str(data)]) == 2
        assert f"{name} needs " in (error := capsys.readouterr().err)
        assert words in error
        assert not (tmp_path / "runs").exists()


def test_two_classes_have_no_halves_to_transfer_between(tmp_path, capsys, monkeypatch):
    data = write_images(tmp_path / "few.npz", classes=3)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "table4", "--data", str(data)]) == 2
    assert "takes four, and the data have 3; give another data set" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["table4", "real"])
def test_what_stands_in_is_of_these_data(name, made, quick, tmp_path, capsys):
    """Other images of the same number and classes are not taken for those that the folder was made from."""
    shutil.copytree(made, tmp_path / "out")
    data = write_images(tmp_path / "few.npz")
    with np.load(data) as file:
        arrays = {**file}
    chance = np.random.default_rng(1)
    arrays |= {part: chance.permutation(arrays[part]) for part in ("train_images", "test_images")}
    np.savez(data, **arrays)
    assert main(["reproduce", name, "--data", f"npz={data}", "--out", str(tmp_path / "out")]) == 2
    assert "was made from other data; put these tables elsewhere" in capsys.readouterr().err


def test_the_names_are_listed(capsys):
    for arguments in ([], ["list"]):
        assert main(["reproduce", *arguments]) == 0
        shown = capsys.readouterr().out
        assert all(f"  {name} " in shown for name in reproduce.ARTIFACTS)
    with pytest.raises(SystemExit) as left:
        main(["reproduce", "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "tau2-learnable" in shown
    assert "--real-labels" in shown
