"""The whole page, from folder to file."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from reports.test_collect import add_finding, make_run

from varcon import run
from varcon.core import InputError
from varcon.reports import write_report


def evaluate(folder: Path, top1: float = 91.25, classes: int = 3, tests: int = 12) -> Path:
    """Adds findings of every kind."""
    rng = np.random.default_rng(0)
    labels = np.arange(tests) % classes
    predictions = np.where(np.arange(tests) % 6 == 5, (labels + 1) % classes, labels)
    confusion = np.zeros((classes, classes), dtype=int)
    np.add.at(confusion, (labels, predictions), 1)
    by_k = {"top1@1": top1 - 1, "top1@5": top1, "top1@20": top1 - 0.5}
    add_finding(
        folder,
        "knn",
        {"k": 5.0, "top1": top1, "top5": 99.0, **by_k},
        predictions=predictions,
        labels=labels,
        confusion=confusion,
    )
    add_finding(folder, "pixels", {"k": 5.0, "top1": 80.0, "top5": 95.0, "top1@1": 79.0, "top1@5": 80.0})
    probe = {"last": top1 + 0.5, "best": top1 + 0.75, "best_epoch": 2, "top5": 99.5}
    add_finding(folder, "linear", probe, accuracy=np.array([80.0, top1 + 0.75, top1 + 0.5]))
    points = rng.normal(size=(classes, 2))[labels] * 30 + rng.normal(size=(tests, 2))
    add_finding(folder, "map2d", {}, points=points, labels=labels, predictions=predictions)
    return folder


def report(*folders: Path) -> str:
    return write_report(list(folders), folders[0].parent / "report.html").read_text(encoding="utf-8")


def untrained(folder: Path) -> Path:
    """Without its journal and so without curves, for tests that look elsewhere: drawing takes the time."""
    (folder / "metrics.jsonl").unlink()
    return folder


def words(page: str) -> str:
    """What a reader sees, without markup and line breaks."""
    body = re.sub(r"<style>.*?</style>|<details.*?</details>|<sup>.*?</sup>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = evaluate(make_run(tmp_path_factory.mktemp("single") / "first"))
    add_finding(folder, "mystery", {"shots@1": 61.25, "inner": {"shots@5": 72.5}})
    return folder


@pytest.fixture(scope="module")
def single(folder: Path) -> str:
    return report(folder)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("several")
    cold = [make_run(base / f"cold-{seed}", seed) for seed in range(3)]
    for folder in cold[:2]:
        untrained(folder)
    folders = [*cold, make_run(base / "hot", 0, temperature=0.2)]
    for folder, top1 in zip(folders, (90.0, 91.0, 93.0, 85.0), strict=True):
        evaluate(folder, top1)
        for arrays in folder.glob("findings/*.npz"):
            arrays.unlink()
    return report(*folders)


class Balance(HTMLParser):
    """Collects what is opened and never closed, or closed and never opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


def test_the_markup_is_balanced(single: str, several: str) -> None:
    for page in (single, several):
        parser = Balance()
        parser.feed(page)
        assert parser.faults == []
        assert parser.open == []


def test_the_headline_scores_of_one_run(single: str) -> None:
    text = words(single)
    assert "varcon on digits Trained for 2 epochs on 1,297 training images, then judged" in text
    assert "kNN top-1, K = 5 91.25 % 11.25 points above the raw input" in text
    assert "Linear probe, last epoch 91.75 % best 92.00 %, at epoch 2" in text
    assert "Raw input, kNN top-1, K = 5 80.00 %" in text


def test_the_page_keeps_its_order(single: str) -> None:
    text = words(single)
    titles = [
        "Training Loss",
        "Temperature",
        "Terms of the loss",
        "Classifiers on the frozen features",
        "kNN accuracy over",
        "Map of the test",
        "Confusion of",
        "Further findings",
        "Recipe data",
        "Trained by",
        "Where and when",
    ]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def test_captions_say_what_to_see(single: str) -> None:
    text = words(single)
    assert "The loss went from 3.5 to 0.75; it is the sum of its two terms." in text
    assert "2 of 12 test images are misjudged; most often class 2 is taken for class 0 (2 times)." in text
    assert "t-SNE of 12 test images, coloured by class; rings mark the 2 misjudged by kNN" in text


def test_every_drawing_has_a_caption(single: str, several: str) -> None:
    for page in (single, several):
        figures = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
        assert len(figures) == page.count("<svg") > 4
        assert all(re.search(r"<figcaption>[^<]{20,}</figcaption>", figure) for figure in figures)


def test_the_recipe_and_what_it_ran_on(single: str) -> None:
    text = words(single)
    assert "method name varcon temperature 0.1 epsilon_range 0, 0.08" in text
    assert "<pre>varcon train recipes/digits/varcon.toml --train.seed 0</pre>" in single
    assert "started 15 November 2026, 09:00 device cpu, 2 threads training time 42.0 s" in text
    assert "speed 500 images/s (median)" in text
    assert "varcon 0.1.0, torch 2.13.0" in text


def test_unknown_findings_are_a_table(single: str) -> None:
    assert "mystery score value shots@1 61.25 inner.shots@5 72.5" in words(single)


def test_several_runs_have_mean_and_spread_over_seeds(several: str) -> None:
    text, values = words(several), [90.0, 91.0, 93.0]
    knn = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    last = f"{np.mean(values) + 0.5:.2f} ± {np.std(values, ddof=1):.2f}"
    assert f"temperature 0.1 3 {knn} {last} " in text.replace("\xa0", "")
    assert "temperature 0.2 1 85.00 85.50 " in text  # that recipe ran but once
    assert "Every run" in text
    assert "cold-1 1 91.00 91.50 91.75 80.00" in text
    assert "hot 0 85.00 85.50 85.75 80.00" in text
    assert "4 runs of 2 recipes" in text


def test_several_runs_are_drawn_over_each_other_then_one_by_one(several: str) -> None:
    figures = re.sub(r"<details.*?</details>", "", several, flags=re.DOTALL)
    assert figures.count("temperature 0.1 (3 runs)") == 3  # the legends of loss, temperature and kNN
    assert figures.count(">Loss</h3>") == 1
    assert figures.count(">Loss</h4>") == 2  # two runs have lost their journals
    assert figures.count(">kNN accuracy over the number of neighbours</h3>") == 1
    assert figures.count(">kNN accuracy over the number of neighbours</h4>") == 4
    places = ["run-1", "run-2", "run-3", "run-4"]
    assert re.findall(r'<section class="run" id="(run-\d)"', several) == places
    assert re.findall(r'class="differs"><th>(\w+)</th><td>([\d.]+)', several) == [
        ("temperature", "0.1")
    ] * 3 + [("temperature", "0.2")]


def test_legends_tell_runs_with_long_names_apart(tmp_path: Path) -> None:
    """As a sweep of one setting names them, among others that it fixes."""
    name = "held_out-0.1-learning_rate-0.1-epochs-2-temperature"
    folders = [make_run(tmp_path / f"{name}-{value}-seed0", temperature=value) for value in (0.05, 0.1, 0.2)]
    shown = re.findall(r"<text[^>]*>([^<]*(?:temperature[ -]|…)[^<]*)</text>", report(*folders))
    assert shown == ["temperature 0.05", "temperature 0.1", "temperature 0.2"] * 2  # of loss and temperature


def test_every_number_leads_to_its_runs(several: str) -> None:
    """The row's runs as footnotes that link to their chapters, and the files behind a number under it."""
    row = re.search(r"<tr><th>temperature 0\.1.*?</tr>", several, flags=re.DOTALL)
    assert row is not None
    assert re.findall(r'<a href="#(run-\d)" title="(cold-\d)">(\d)</a>', row[0]) == [
        (f"run-{place}", f"cold-{place - 1}", str(place)) for place in (1, 2, 3)
    ]
    files = ", ".join(f"cold-{seed}/findings/knn.json" for seed in range(3))
    assert f'title="{files}">91.33 ± 1.53</td>' in row[0]


def test_every_table_can_be_copied(single: str, several: str) -> None:
    for page in (single, several):
        assert page.count("<thead>") == page.count("<details") == page.count("\\begin{tabular}") > 3
        assert page.count("| --- |") >= page.count("<thead>")
        assert re.search(r"@media print \{.*\.copy \{ display: none; \}", page, flags=re.DOTALL)
    assert "| temperature 0.1 | 3 | 91.33 ± 1.53 |" in several
    assert r"temperature 0.1 & 3 & 91.33 $\pm$ 1.53 &" in several.replace("&amp;", "&")


def test_seeds_not_evaluated_are_not_counted(tmp_path: Path) -> None:
    folders = [untrained(make_run(tmp_path / str(seed), seed)) for seed in range(3)]
    for folder, top1 in zip(folders, (90.0, 92.0), strict=False):
        add_finding(folder, "knn", {"top1": top1})
    text = words(report(*folders))
    assert f"91.00 ± {np.sqrt(2):.2f} (n = 2)" in text
    assert "2 2 — — — — — mean ± standard deviation 3 seeds" in text.replace("\xa0", "")


def test_labels_that_changed_between_evaluations_are_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for name, labels in (("knn", "aa"), ("pixels", "aa"), ("centroid", "aa")):
        add_finding(folder, name, {"top1": 50.0})
        path = folder / f"findings/{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"labels": labels}))
    warning = "Labels were changed between these evaluations"
    assert warning not in words(report(folder))
    path.write_text(path.read_text().replace('"aa"', '"bb"'))
    assert warning in words(report(folder))


def test_images_held_out_are_not_called_test_images(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, "knn", {"top1": 50.0}, confusion=np.eye(3, dtype=int))
    text = words(report(folder))
    assert "on 12 test images it never saw" in text and "0 of 3 test images are misjudged" in text
    path = folder / "recipe.json"
    record = json.loads(path.read_text())
    record["recipe"]["data"]["held_out"] = 0.1
    path.write_text(json.dumps(record))
    text = words(report(folder))
    assert "on 12 held-out training images it never saw" in text
    assert "12 held out of the training images" in text
    assert "test images" not in text


def test_a_run_that_is_not_trained_to_its_end_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "my run")
    path = folder / "recipe.json"
    record = json.loads(path.read_text())
    record["recipe"]["train"]["epochs"] = 9
    path.write_text(json.dumps(record))
    commands = f"varcon train '{folder}/recipe.json' --resume && varcon evaluate '{folder}'"
    assert f"To add them: {commands}" in words(report(folder))


def test_a_run_without_findings_says_what_adds_them(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "my run")
    text = words(report(folder))
    assert f"Not evaluated yet: knn, linear, pixels, map2d. To add them: varcon evaluate '{folder}'" in text
    assert "The loss went from 3.5 to 0.75" in text
    assert "Map of the test embeddings" not in text
    assert "Trained for 2 epochs on 1,297 training images." in text


def test_a_run_that_only_began(tmp_path: Path) -> None:
    text = words(report(untrained(make_run(tmp_path / "run"))))
    assert "No training record yet" in text
    assert "Trained for 0 of 2 epochs" in text


def test_other_methods_lack_terms_and_temperature(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", name="supcon")
    row = {"step": 5, "epoch": 1.0, "loss": 4.0, "images_per_second": 500}
    (folder / "metrics.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps(row | {"epoch": 2.0, "loss": 1.0})
    )
    text = words(report(folder))
    assert "The loss went from 4 to 1." in text
    assert "KL term" not in text
    assert "τ₂" not in text


def test_a_loss_with_more_terms_is_not_called_their_sum(tmp_path: Path) -> None:
    """VarCon with a PaCo loss adds that one, weighted, to the KL and NLL terms."""
    text = words(report(make_run(tmp_path / "run", name="varcon-paco")))
    assert "The loss went from 3.5 to 0.75. Below" in text


def test_the_map_falls_back_on_the_predictions_of_knn(tmp_path: Path) -> None:
    folder = untrained(make_run(tmp_path / "run"))
    add_finding(folder, "knn", {}, predictions=np.array([0, 1, 2, 0]))
    chosen = np.array([0, 1, 3])
    add_finding(folder, "map2d", {}, points=np.eye(3)[:, :2], labels=np.array([0, 1, 2]), chosen=chosen)
    assert "rings mark the 1 misjudged by kNN" in words(report(folder))


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    folder = evaluate(make_run(tmp_path / "run"))
    attack = "<script>alert(1)</script>"
    record = json.loads((folder / "recipe.json").read_text())
    record |= {
        "command": attack,
        "device": attack,
        "started": attack,
        "classes": [attack] * 3,
        "versions": {attack: attack},
    }
    record["recipe"]["data"] = {"name": attack, attack: attack}
    (folder / "recipe.json").write_text(json.dumps(record))
    add_finding(folder, "other", {attack: attack})
    page = report(folder)
    assert "<script" not in page
    assert "<pre>&lt;script&gt;alert(1)&lt;/script&gt;</pre>" in page


def test_nothing_is_fetched_from_anywhere(single: str, several: str) -> None:
    for page in (single, several):
        bare = re.sub(r' xmlns(?::\w+)?="http://www\.w3\.org/[\w/]+"', "", page)
        assert "http:" not in bare
        assert "https:" not in bare
        assert "//" not in re.sub(r"data:image/png;base64,[\w+/=\s]+", "", bare)
        assert not re.search(r"@import|<link|<script|<iframe| src=", bare)


def test_a_large_run_makes_a_small_page(tmp_path: Path) -> None:
    folder = untrained(make_run(tmp_path / "run", classes=100, tests=2000))
    page = report(evaluate(folder, classes=100, tests=2000))
    assert len(page.encode()) < 600_000  # so that five runs stay below 3 MB
    assert "Most confused classes" in page
    assert page.count("<image") == 1
    rows = re.findall(
        r"<tr><th>(class \d+)</th><td>(class \d+)</td><td class=\"number\"[^>]*>(\d+)</td>", page
    )
    assert len(rows) == 15
    assert all(int(taken[6:]) == (int(true[6:]) + 1) % 100 for true, taken, _ in rows)


def test_the_same_folders_give_the_same_bytes(folder: Path, single: str, tmp_path: Path) -> None:
    """Elsewhere, too, but for the mark of where the runs lie from there."""
    assert write_report([folder], folder.parent / "two.html").read_bytes() == single.encode()
    elsewhere = write_report([folder], tmp_path / "new" / "two.html").read_text(encoding="utf-8")
    there, here = (page.splitlines() for page in (elsewhere, single))
    assert [new[:17] for new, old in zip(there, here, strict=True) if new != old] == ['<meta name="runs"']


def test_a_page_about_other_runs_is_not_replaced(tmp_path: Path) -> None:
    for name in ("a", "b", 'c "d" & <e>'):
        untrained(make_run(tmp_path / "runs" / name))
    a, b, c = sorted((tmp_path / "runs").iterdir())
    first = tmp_path / "runs" / "report.html"

    def place(*folders: Path) -> str:
        return run.report(folders).name

    assert place(a, b) == "report.html"
    page = first.read_text()
    assert place(a, c) == "report-2.html"
    assert place(a, b, c) == "report-3.html"
    assert first.read_text() == page
    assert [place(b, a, b), place(c, a), place(a, c, b)] == ["report.html", "report-2.html", "report-3.html"]
    first.write_text("of an earlier version, or one's own")
    assert place(a, b) == "report-4.html"
    assert first.read_text() == "of an earlier version, or one's own"
    assert run.report([a, b], first) == first  # asked for by name
    assert place(b, a) == "report.html"


def test_runs_that_were_moved_together_with_their_page_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        untrained(make_run(tmp_path / "here" / name))
    (tmp_path / "link").symlink_to(tmp_path / "here")
    assert run.report([tmp_path / "here/a", tmp_path / "here/b"]) == tmp_path / "here/report.html"
    assert run.report(tmp_path / "here/a") == tmp_path / "here/a/report.html"
    assert run.report([tmp_path / "link/a", tmp_path / "here/b"]) == tmp_path / "link/report.html"
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    assert run.report(["a", "b"]) == Path("report.html")
    Path("a").rename("c")
    assert run.report("c") == Path("c/report.html")
    assert run.report(["c", "b"]) == Path("report-2.html")


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, target = untrained(make_run(tmp_path / "run")), tmp_path / "report.html"
    target.write_text("old")

    def fail(self: Path, other: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match=r"cannot be written .*no space left.*; choose another file"):
        write_report([folder], target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_errors_come_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
