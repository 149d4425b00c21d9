"""The commands as a person types them."""

import csv
import io
import json
import os
import shutil
import sys

import numpy as np
import pytest

from varcon.cli import main


@pytest.fixture
def here(own, zoo, tmp_path, monkeypatch):
    """A working folder with the run, pictures and one that is broken."""
    monkeypatch.chdir(tmp_path)
    (zoo / "broken.png").write_text("no image")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_predict_prints_a_line_for_each_image(here, data, model, capsys):
    files = [str(data / "test/red/03.png"), "zoo/plain.png", "zoo/large.jpg"]
    assert main(["predict", "run", *files, "--top", "2", "--neighbours", "1"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert len(lines) == 3
    for file, line, found in zip(files, lines, model.predict(files, 2, 1), strict=True):
        assert line.startswith(f"{file}  {found.label} {100 * found.probability:.1f} %  {found.top[1][0]} ")
        assert line.endswith(f"near {found.neighbours[0].name} {found.neighbours[0].cosine:.3f}")
        assert ("UNLIKE ANYTHING SEEN" in line) == found.unlike_anything_seen
    assert "predicting: 3 of 3" in shown.err


def test_a_broken_image_is_one_line_and_the_exit_code(here, capsys):
    assert main(["predict", "run", "zoo"]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 12
    assert shown.err.count("zoo/broken.png cannot be read") == 1
    assert "1 of 13 images could not be read" in shown.err


def test_predictions_as_json_and_csv(here, model, capsys):
    files = sorted((here / "zoo").iterdir())
    names = [str(file.relative_to(here)) for file in files]
    assert main(["predict", "run", "zoo", "--json", "out.jsonl", "--top", "2"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["predict", "run", "zoo", "--json", "-", "--top", "2"]) == 1
    assert capsys.readouterr().out == (here / "out.jsonl").read_text()
    assert main(["predict", "run", "zoo", "--csv", "out.csv", "--top", "2"]) == 1
    assert main(["predict", "run", "zoo", "--csv", "-", "--top", "2"]) == 1
    assert capsys.readouterr().out == (here / "out.csv").read_text()
    objects = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    assert main(["predict", "run", "zoo", "--json", "out.json", "--top", "2"]) == 1
    assert json.loads((here / "out.json").read_text()) == objects
    assert main(["predict", "run", "zoo/plain.png", "--json", "out.json"]) == 0
    assert len(json.loads((here / "out.json").read_text())) == 1
    rows = list(csv.DictReader(io.StringIO((here / "out.csv").read_text())))
    assert [one["path"] for one in objects] == [row["path"] for row in rows] == names
    for file, one, row in zip(files, objects, rows, strict=True):
        if file.name == "broken.png":
            assert "cannot be read" in one["error"]
            assert row["error"] == one["error"]
            continue
        (wanted,) = model.predict([file], 2)
        assert one["label"] == row["label"] == wanted.label
        for probability in (one["probability"], float(row["probability"])):
            assert probability == pytest.approx(wanted.probability, abs=1e-5)
        assert [found["label"] for found in one["top"]] == [row["label"], row["label_2"]]
        assert one["unlike_anything_seen"] == (row["unlike_anything_seen"] == "True")
        nearest = wanted.neighbours[0].cosine - 1e-5  # several images at once may round differently
        near = {other.path for other in wanted.neighbours if other.cosine >= nearest}
        assert one["neighbours"][0]["path"] == row["neighbour_1"] and row["neighbour_1"] in near
        assert not row["error"]


def test_embed_writes_vectors_with_paths_and_labels(here, data, model, capsys):
    assert main(["embed", "run", str(data / "test"), "-o", "vectors.npz"]) == 0
    assert "21 vectors of 64 numbers: vectors.npz" in capsys.readouterr().out
    with np.load("vectors.npz") as found:
        files = [data / "test" / path for path in found["paths"]]
        assert found["vectors"] == pytest.approx(model.embed(files), abs=1e-5)
        assert found["labels"].tolist() == [file.parent.name for file in files]
    assert main(["embed", "run", "zoo", "-o", "flat.npz"]) == 1
    assert "zoo/broken.png cannot be read" in capsys.readouterr().err
    with np.load("flat.npz") as found:
        assert len(found["vectors"]) == len(found["paths"]) == 12
        assert "labels" not in found


@pytest.mark.parametrize("name", ["vectors.npz", "vectors.parquet"])
def test_embed_names_the_file_that_may_not_be_written(here, forbid, capsys, name):
    (here / "closed").mkdir()
    forbid(here / "closed")
    assert main(["embed", "run", "zoo/plain.png", "-o", f"closed/{name}"]) == 2
    assert capsys.readouterr().err.startswith(f"varcon: closed/{name} may not be read or written (Read-only ")


def test_embed_labels_images_as_training_does(here):
    for place in (
        "a/cat/1.png",
        "a/dog/2023/may/2.png",
        "a/3.png",
        "b/Train/dog/may/4.png",
        "b/val/cat/5.png",
    ):
        (here / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile("zoo/plain.png", place)
    for folder, wanted in (("a", ["", "cat", "dog"]), ("b", ["dog", "cat"])):
        assert main(["embed", "run", folder, "-o", "vectors.npz"]) == 0
        with np.load("vectors.npz") as found:
            assert found["labels"].tolist() == wanted
    assert main(["embed", "run", "a/cat/1.png", "-o", "vectors.npz"]) == 0


def test_a_name_that_is_not_utf_8_is_written_byte_by_byte(here):
    odd = "caf\u00e9.png".encode("latin-1")
    name = os.fsdecode(odd)
    shutil.copyfile("zoo/plain.png", name)
    wanted = [name, "zoo/grey.png"]
    assert main(["predict", "run", *wanted, "--csv", "a.csv"]) == 0
    lines = (here / "a.csv").read_bytes().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(odd + b",")
    assert main(["predict", "run", *wanted, "--json", "a.jsonl"]) == 0
    found = [json.loads(line)["path"] for line in (here / "a.jsonl").read_text("utf-8").splitlines()]
    assert found == wanted


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("form", [[], ["--csv", "-"], ["--json", "-"]], ids=["lines", "csv", "json"])
def test_an_output_that_cannot_show_a_name_shows_it_in_escapes(here, monkeypatch, encoding, form):
    names = [os.fsdecode("caf\u00e9.png".encode("latin-1")), "schön.png"]
    for name in names:
        shutil.copyfile("zoo/plain.png", name)
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["predict", "run", *names, "zoo/grey.png", *form]) == 0
    output.flush()
    lines = output.buffer.getvalue().decode(encoding).splitlines()[-3:]
    assert "caf\\udce9.png" in lines[0]
    assert ("schön.png" in lines[1]) == (encoding == "utf-8" and form != ["--json", "-"])
    assert "zoo/grey.png" in lines[2]


def test_search_shows_the_nearest_and_keeps_an_index(here, data, capsys):
    asked = ["search", "run", "--index", str(data / "train"), str(data / "train/green/02.png"), "--top", "2"]
    assert main(asked) == 0
    first = capsys.readouterr()
    question, best, second = first.out.splitlines()
    assert question == str(data / "train/green/02.png")
    assert best == f"  1.0000  {data / 'train/green/02.png'}"
    assert len(second.split()) == 2
    assert "indexing train: 36 of 36" in first.err
    assert main(asked) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "indexing" not in again.err


def test_a_broken_image_where_search_looks_is_one_line_and_the_exit_code(here, capsys):
    for _ in range(2):  # by an index that was kept, too
        assert main(["search", "run", "zoo/large.jpg", "--index", "zoo", "--top", "1"]) == 1
        shown = capsys.readouterr()
        assert shown.out == "zoo/large.jpg\n  1.0000  zoo/large.jpg\n"
        assert shown.err.count("zoo/broken.png cannot be read") == 1
        assert "1 of 14 images could not be read" in shown.err


def test_export_lists_what_it_wrote_and_the_result_predicts(here, capsys):
    assert main(["export", "run", "--to", "hub", "-o", "shared"]) == 0
    shown = capsys.readouterr().out
    assert "shared/model.safetensors" in shown
    assert "shared/README.md" in shown
    assert main(["predict", "shared", "zoo/plain.png"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("zoo/plain.png  ")
    assert "near" not in line  # the training images stay with the run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "run"], "predict needs images"),
        (["predict", "run", "nowhere.png"], "there is no file or folder nowhere.png"),
        (["predict", "run", "empty"], "no image in empty"),
        (["predict", "run", "zoo/*.xyz"], "no image matches"),
        (["predict", "nowhere", "zoo"], "there is no run or exported model nowhere"),
        (["predict", "zoo", "zoo"], "neither a run nor an exported model"),
        (["predict", "zoo", "run"], "zoo is neither a run nor an exported model"),
        (["embed", "zoo", "run", "-o", "a.npz"], "zoo is neither a run nor an exported model"),
        (["search", "zoo", "run", "--index", "zoo"], "zoo is neither a run nor an exported model"),
        (["predict", "run", ""], "one of the arguments is empty"),
        (["embed", "run", "", "-o", "a.npz"], "one of the arguments is empty"),
        (["search", "run", "zoo/plain.png", "--index", ""], "one of the arguments is empty"),
        (["predict", "run", "zoo", "--top", "0"], "--top is 0"),
        (["predict", "run", "zoo", "--json", "a", "--csv", "b"], "either --json or --csv"),
        (["predict", "run", "zoo", "--json", "nowhere/a.json"], "no folder nowhere to write a.json into"),
        (["predict", "run", "--json", "zoo/plain.png", "zoo/grey.png"], "should end in .json or .jsonl"),
        (["predict", "run", "--csv", "zoo/plain.png", "zoo/grey.png"], "should end in .csv"),
        (["predict", "run", "zoo", "--csv", "a.json"], "a.json should end in .csv"),
        (["embed", "run", "zoo", "-o", "a.txt"], "should end in .npz or .parquet"),
        (["embed", "run", "zoo", "-o", "nowhere/a.npz"], "no folder nowhere"),
        (["embed", "run", "zoo", "-o", "folder.npz"], "folder.npz is a folder; name a file"),
        (["predict", "run", "zoo", "--csv", "folder.csv"], "folder.csv is a folder; name a file"),
        (["embed", "run", "zoo/*", "-o", "a.npz"], "there is no folder zoo/*; embed takes one folder"),
        (["embed", "run", "zoo/*.png", "-o", "a.parquet"], "there is no folder zoo/*.png; embed takes one"),
        (["embed", "run", "nowhere", "-o", "a.npz"], "there is no folder nowhere; embed takes one folder"),
        (["search", "run", "zoo/plain.png", "--index", "nowhere"], "there is no folder nowhere to search"),
        (["search", "run", "zoo/plain.png", "--index", "empty"], "no image in empty"),
        (["search", "run", "zoo/plain.png", "--index", "zoo", "--top", "0"], "--top is 0"),
        (["export", "run", "--to", "tensorflow"], "no format 'tensorflow' to export to; choose one of"),
        (["export", "zoo"], "zoo is not a run"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(here, capsys, arguments, words):
    for folder in ("empty", "folder.csv", "folder.npz"):
        (here / folder).mkdir()
    before = contents(here)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("varcon: ")
    assert error.count("\n") == 1
    assert words in error
    assert contents(here) == before


def test_a_run_that_is_not_finished_says_how_to_go_on(here, own, capsys):
    (own / "encoder.safetensors").unlink()
    for arguments in (["predict", "run", "zoo"], ["embed", "run", "zoo", "-o", "a.npz"], ["export", "run"]):
        assert main(arguments) == 2
        assert "run has not finished training; go on with: varcon train" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["predict", "embed", "search", "export"])
def test_every_command_explains_itself(capsys, verb):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert "RUN" in capsys.readouterr().out
    assert main([]) == 0
    assert f"varcon {verb} RUN" in capsys.readouterr().out
