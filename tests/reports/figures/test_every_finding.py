"""What the evaluations really leave, drawn; each of them once, on a handful of images."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reports.test_collect import make_run
from reports.test_svg import parsed

from varcon import run_folder
from varcon.core import Data, Split
from varcon.data import DataSettings
from varcon.engine.samples import SampleRecord
from varcon.evaluations import FURTHER, FurtherSettings
from varcon.evaluations.calibration import ClassifierCalibration
from varcon.evaluations.classifier import OwnClassifier
from varcon.evaluations.fewshot import FewShot
from varcon.evaluations.finetune import FineTune
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.knn import KNN
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.map2d import Map2D
from varcon.evaluations.maps import SnapshotMaps
from varcon.evaluations.rank import Rank
from varcon.evaluations.real import ReaL, RealAccuracy
from varcon.evaluations.robustness import Robustness
from varcon.evaluations.transfer import Target, Transfer
from varcon.reports import drawings, write_drawings, write_report
from varcon.reports.collect import Run, read_run
from varcon.reports.figures import KINDS, drawings_in, sections_of_run
from varcon.reports.svg import width_of

CPU = torch.device("cpu")


def make_data(seed: int) -> Data:
    """Noise in three colours, one a class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 3
    images = torch.randint(0, 120, (60, 3, 8, 8), generator=generator)
    images[torch.arange(60), labels] += 60
    split = Split(images.to(torch.uint8), labels)
    test = Split(split.images[30:], labels[30:])
    return Data(
        Split(split.images[:30], labels[:30]), test, ["class 0", "class 1", "class 2"], (0.4,) * 3, (0.2,) * 3
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with findings of every evaluation that there is."""
    folder, data = make_run(tmp_path_factory.mktemp("every") / "run", tests=30), make_data(0)
    parts = {"train": data.train, "test": data.test}
    arrays = {f"{name}_images": part.images.permute(0, 2, 3, 1).numpy() for name, part in parts.items()}
    arrays |= {f"{name}_labels": part.labels.numpy() for name, part in parts.items()}
    np.savez(folder / "other.npz", **arrays)
    (folder / "labels.json").write_text(str([[int(label)] for label in data.test.labels]))
    layer = torch.nn.Linear(192, 3)
    knn = KNN(k=3, also=(1, 5))
    target = Target("other", DataSettings("npz", str(folder / "other.npz")))
    settings = replace(
        FurtherSettings(),
        fewshot=FewShot((1, 5), subsets=2),
        robustness=Robustness(("fog", "gaussian_noise"), (1, 5), steps=20),
        real=ReaL(str(folder / "labels.json")),
        transfer=Transfer((target,)),
        finetune=FineTune(target, epochs=2, augment="none", head="random"),
    )
    evaluations = {
        "knn": knn,
        "pixels": knn,
        "linear": LinearProbe(epochs=3),
        "linear-augmented": LinearProbe(epochs=3, augment="resized-crop"),
        "rank": Rank(),
        "classifier": OwnClassifier(layer),
        "classifier-calibration": ClassifierCalibration(layer, settings.calibration),
        "map2d": Map2D(perplexity=5),
        **{name: getattr(settings, name) for name in FURTHER},
    }
    encoder = raw_pixels(data, CPU)
    evaluations["real"] = RealAccuracy(settings.real, {"knn": knn, "linear": LinearProbe(epochs=3)})
    evaluations["maps"] = SnapshotMaps(settings.maps, {0: lambda: encoder, 1: lambda: encoder}, 2)
    for name, evaluation in evaluations.items():
        run_folder.write_findings(folder, name, evaluation(encoder, data), evaluation, data, 1.0)
    record = SampleRecord(30, CPU)
    with (folder / "samples.jsonl").open("w") as file:
        for epoch in (1, 2):
            record.note(torch.arange(30), {"confidence": torch.linspace(0, 1, 30)})
            file.write(json.dumps({"step": 5 * epoch, "epoch": epoch, **record.end_epoch()}) + "\n")
    return folder


def test_every_evaluation_is_shown_by_name_and_none_as_unknown(folder: Path) -> None:
    sections = sections_of_run(read_run(folder, "run"))
    assert [section.title for section in sections] == list(dict.fromkeys(kind.title for kind in KINDS))
    assert {"knn", *FURTHER} <= {finding for kind in KINDS for finding in kind.findings}


def test_all_that_is_drawn_is_whole_and_small(folder: Path) -> None:
    found = drawings(folder)
    titles = [drawing.title for drawing in found]
    assert len(titles) == len(set(titles)) >= 16
    for drawing in found:
        root = parsed(drawing.svg)
        assert len(list(root.iter())) > 5
        assert "nan" not in drawing.svg
        assert 20 < len(drawing.caption) < 400
        assert drawing.shape in ("half", "wide", "large")
        assert len(drawing.svg) < 120_000


def test_every_number_of_a_table_has_an_origin(folder: Path) -> None:
    for section in sections_of_run(read_run(folder, "run")):
        for table in (item for item in section.items if not hasattr(item, "svg")):
            for row in table.rows:
                assert len(row) == len(table.head)
                assert all(cell.runs == ("run",) for cell in row[table.words :] if cell.text != "—")


def test_text_stays_inside_its_drawing(folder: Path) -> None:
    """Measured by a wide font, no word leaves the drawing; a browser would cut it off."""
    for drawing in drawings(folder):
        root = parsed(drawing.svg)
        _, _, width, height = map(float, root.get("viewBox", "").split())
        for text in (element for element in root.iter() if element.tag.endswith("}text")):
            style = dict(part.split(":", 1) for part in text.get("style", "").split(";"))
            size = float(style.get("font-size", "12px").removesuffix("px"))
            long = width_of(text.text or "", size)
            begin = {"middle": -long / 2, "end": -long}.get(style.get("text-anchor", ""), 0.0)
            if text.get("transform"):
                x, y = map(float, text.get("transform", "")[len("translate(") :].split(")")[0].split())
                assert 0 <= x <= width, text.text
                assert y - begin - long >= -1, (drawing.title, text.text)
                assert y - begin <= height + 1, (drawing.title, text.text)
            else:
                x, y = float(text.get("x", "")), float(text.get("y", ""))
                assert x + begin >= -1, (drawing.title, text.text)
                assert x + begin + long <= width + 1, (drawing.title, text.text)
                assert 0.6 * size <= y <= height, (drawing.title, text.text)


def test_drawings_become_files(folder: Path, tmp_path: Path) -> None:
    files = write_drawings(folder, tmp_path / "figures")
    assert [file.name for file in files][:2] == ["01-loss.svg", "02-temperature.svg"]
    assert sorted(tmp_path.glob("figures/*")) == sorted(files)
    assert all("var(" not in file.read_text(encoding="utf-8") for file in files)


def test_arrays_may_all_be_missing(folder: Path, tmp_path: Path) -> None:
    """The scores alone make a page, as of runs that were kept without their arrays."""
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    for arrays in bare.glob("findings/*.npz"):
        arrays.unlink()
    page = write_report([bare], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Calibration errors" in page
    assert "Reliability" not in page


def test_any_one_array_may_be_missing(folder: Path) -> None:
    whole = read_run(folder, "run")
    titles = drawn(whole)
    for finding, found in whole.findings.items():
        for name in found.arrays:
            shown = replace(found, arrays={key: value for key, value in found.arrays.items() if key != name})
            assert drawn(replace(whole, findings={finding: shown}, metrics={})) <= titles


def drawn(run: Run) -> set[str]:
    return {drawing.title for drawing in drawings_in(sections_of_run(run))}
