"""Which evaluations are chosen, and with what."""

import json
import shutil
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import varcon
from varcon import InputError, Recipe, run_folder
from varcon.cli import main
from varcon.data import DataSettings, load
from varcon.encoders import EncoderSettings
from varcon.evaluations import FURTHER, STANDARD, EvaluateSettings, FurtherSettings, chosen_evaluations
from varcon.evaluations.fewshot import FewShot
from varcon.evaluations.finetune import FineTune
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.outliers import Outliers
from varcon.evaluations.real import ReaL
from varcon.evaluations.robustness import Robustness
from varcon.evaluations.transfer import Transfer, parse_target
from varcon.methods import METHODS
from varcon.recipe import TrainSettings
from varcon.runs import Planned, judge, read_findings


def test_names_stand_for_evaluations():
    assert chosen_evaluations("") == chosen_evaluations("standard") == STANDARD
    assert chosen_evaluations("knn, clustering,knn") == ("knn", "clustering")
    everything = set(chosen_evaluations("all,transfer,finetune,real,maps"))
    of_vectors = set(chosen_evaluations("all", of_vectors=True))
    assert set(chosen_evaluations("all")) - of_vectors == {"outliers", "robustness"}
    assert everything == {*STANDARD, *FURTHER}
    assert chosen_evaluations(["rank", "knn,rank"]) == ("rank", "knn")
    with pytest.raises(InputError, match=r"there is no evaluation 'clusterin'; did you mean 'clustering'\?"):
        chosen_evaluations("clusterin")
    with pytest.raises(InputError, match="there is no evaluation 'foo'; choose from pixels, knn") as caught:
        chosen_evaluations("foo")
    assert str(caught.value).count("discriminant") == 1


@pytest.mark.parametrize(
    "evaluation",
    [
        LinearProbe(epochs=2),
        LogisticProbe(steps=3),
        FewShot(per_class=(1,), subsets=2),
        FineTune(epochs=1, head="random"),
        Outliers(images=20),
        Robustness(corruptions=("contrast",), severities=(1,), images=20, steps=5),
    ],
    ids=lambda evaluation: type(evaluation).__name__,
)
def test_all_work_is_told_to_its_end(evaluation):
    """What follows may be silent for minutes, and would go by the name of what went before."""
    data, told = load(DataSettings()), {}
    with torch.random.fork_rng():
        encoder = EncoderSettings().build()
    frozen = FrozenEncoder(encoder, data, torch.device("cpu"))
    frozen.progress = lambda done, total, what: told.update({what: (done, total)})
    evaluation(frozen, data)
    told.pop("choosing the penalty of the logistic regression", None)  # at once followed by the last fit
    assert told
    assert all(done == total for done, total in told.values()), told


@pytest.mark.parametrize("name", METHODS)
def test_a_runs_own_temperature_is_taken(name):
    method = METHODS[name].Settings()
    further = FurtherSettings().at_temperature(method)
    expected = getattr(method, "varcon_temperature", getattr(method, "temperature", 0.1))
    assert further.calibration.temperature == further.outliers.temperature == expected
    assert further.temperature.temperature == expected
    assert further.temperature.epsilon < expected


SEEDED = [
    (name, kind)
    for settings in (EvaluateSettings(), FurtherSettings())
    for name, kind in ((field.name, type(getattr(settings, field.name))) for field in fields(settings))
    if hasattr(kind, "seed")
]


@pytest.mark.parametrize(("name", "kind"), SEEDED)
def test_seeds_of_all_evaluations_have_one_range(name, kind):
    assert kind(seed=0).seed == 0 and kind(seed=2**32 - 1).seed == 2**32 - 1
    for wrong in (-1, 2**32, 99999999999999999999999):
        with pytest.raises(
            InputError, match=rf"^{name}\.seed is {wrong}; it must lie within 0\.\.2\*\*32-1$"
        ):
            kind(seed=wrong)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Two kinds of images, dark and bright."""
    folder = tmp_path_factory.mktemp("further")
    labels = np.arange(48) % 2
    images = np.random.default_rng(0).integers(0, 60, (48, 8, 8)) + 150 * labels[:, None, None]
    np.savez(
        folder / "few.npz",
        train_images=images.astype(np.uint8),
        train_labels=labels,
        test_images=images[::-1].astype(np.uint8),
        test_labels=labels[::-1],
    )
    train = TrainSettings(epochs=1, batch_size=16, device="cpu")
    recipe = Recipe(data=DataSettings("npz", str(folder / "few.npz")), train=train)
    return varcon.train(recipe, folder / "run")


def test_only_what_is_asked_for_and_nothing_encoded_twice(finished_run, capsys, monkeypatch):
    command = ["evaluate", str(finished_run), "--device", "cpu", "--only"]
    assert main([*command, "centroid,similarity", "--similarity.pairs", "1"]) == 0
    assert sorted(path.stem for path in (finished_run / "findings").glob("*.json")) == [
        "centroid",
        "similarity",
    ]
    shown = capsys.readouterr().out
    assert "centroid" in shown
    assert "top1" in shown

    def never(*_):
        raise AssertionError("images were encoded again")

    monkeypatch.setattr(FrozenEncoder, "_encode_all", never)
    assert main([*command, "clustering,calibration,temperature,fewshot"]) == 0
    found = {path.stem for path in (finished_run / "findings").glob("*.json")}
    assert found == {"centroid", "similarity", "clustering", "calibration", "temperature", "fewshot"}
    assert "next: varcon report" in capsys.readouterr().out
    assert main(["report", str(finished_run)]) == 0
    assert "V-measure" in (finished_run / "report.html").read_text()


def test_scores_are_printed_whatever_is_asked_for(finished_run, capsys):
    """Accuracies in one table for the standard evaluations, otherwise in one for each; a map has none."""
    command = [
        "evaluate",
        str(finished_run),
        "--device",
        "cpu",
        "--linear.epochs",
        "2",
        "--map2d.points",
        "20",
    ]
    assert main([*command, "--only", "knn,linear,rank,map2d"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name, score in (("knn", "top1"), ("linear", "last"), ("rank", "effective_rank")):
        value = json.loads((finished_run / f"findings/{name}.json").read_text())["scores"][score]
        assert [score, f"{value:.4g}"] in shown[shown.index([name]) :]
    assert ["map2d"] not in shown
    assert main([*command, "--only", "standard,clustering", "--linear.augment", "resized-crop"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["clustering"] in shown
    assert any(line[:2] == ["linear", "discriminants"] for line in shown)
    assert ["test", "accuracy,", "%", "top-1", "top-5"] in shown
    assert ["rank"] in shown
    assert not any([name] in shown for name in ("knn", "linear-augmented", "discriminant", "map2d"))


def test_tau2_spans_what_epsilon_was_learned(finished_run, tmp_path):
    """From Python, from the command line and in a comparison; a flag goes before."""
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder, ignore=lambda *_: ["findings"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["epsilon"] = 0.0371
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = run_folder.stored_recipe(folder)
    assert recipe.method.epsilon == 0.02
    found = varcon.evaluate(folder, device="cpu", only=("temperature",))["temperature"]
    assert found.scores["epsilon"] == 0.0371
    low, high = found.arrays["edges"][[0, -1]]
    assert (low, high) == pytest.approx((0.1 - 0.0371, 0.1 + 0.0371))
    stored = folder / "findings/temperature.json"
    planned = Planned("varcon", 0, recipe, folder, ("temperature",), FurtherSettings())
    assert read_findings(planned)["temperature"].scores["epsilon"] == 0.0371  # not judged again
    stored.unlink()
    findings = {}
    judge(planned, lambda *_: None, findings)
    assert findings["temperature"].scores["epsilon"] == 0.0371
    command = ["evaluate", str(folder), "--device", "cpu", "--only", "temperature"]
    for flags, epsilon in (([], 0.0371), (["--temperature.epsilon", "0.01"], 0.01)):
        assert main([*command, *flags]) == 0
        assert json.loads(stored.read_text())["settings"]["epsilon"] == epsilon
    (folder / "metrics.jsonl").unlink()
    assert run_folder.learned_epsilon(folder) is None


def test_fine_tuning_on_each_target_and_on_its_own_data(finished_run, tmp_path, capsys):
    """Each is a finding of its own, which a later one of another name does not replace."""
    stored = np.load(run_folder.stored_recipe(finished_run).data.path)
    targets = []
    for name, turned in (("same", 0), ("swapped", 1)):
        labels = {f"{part}_labels": stored[f"{part}_labels"] ^ turned for part in ("train", "test")}
        images = {f"{part}_images": stored[f"{part}_images"] for part in ("train", "test")}
        np.savez(tmp_path / f"{name}.npz", **images, **labels)
        targets += ["--target", f"{name}={tmp_path / name}.npz"]
    command = [
        "evaluate",
        str(finished_run),
        "--device",
        "cpu",
        "--only",
        "finetune",
        "--finetune.epochs",
        "1",
    ]
    assert main([*command, *targets]) == 0
    assert main(command) == 0
    shown = capsys.readouterr().out
    for name, target in (("finetune-same", "same"), ("finetune-swapped", "swapped"), ("finetune", None)):
        finding = json.loads((finished_run / f"findings/{name}.json").read_text())
        assert (finding["settings"]["target"] or {}).get("name") == target
        assert finding["settings"]["epochs"] == 1
        assert f"judged by {name}\n" in shown
    own = FurtherSettings(
        finetune=FineTune(parse_target("digits")), transfer=Transfer((parse_target("a=b"),))
    )
    assert list(own.fine_tunings()) == ["finetune-digits"]
    with pytest.raises(InputError, match="'a/b' has a slash in its name"):
        parse_target("a/b=c")


def test_reassessed_labels_judge_every_classifier_of_a_run(finished_run, tmp_path, monkeypatch):
    """Those just found are not found again; the run's own classifier is judged where it has one."""
    labels = tmp_path / "real.json"
    labels.write_text(json.dumps([[1], [0]] * 24))
    recipe = run_folder.stored_recipe(finished_run)
    own = varcon.train(replace(recipe, method=METHODS["ce"].Settings()), tmp_path / "ce")
    further = FurtherSettings(real=ReaL(str(labels)))
    probes = []
    monkeypatch.setattr(LinearProbe, "__call__", counted(LinearProbe.__call__, probes))
    for folder, only, expected in (
        (finished_run, ("real",), {"knn_top1", "linear_top1"}),
        (own, ("linear", "real"), {"knn_top1", "linear_top1", "classifier_top1"}),
    ):
        probes.clear()
        found = varcon.evaluate(folder, device="cpu", only=only, further=further)
        assert set(found["real"].scores) == expected | {"judged", "left_out"}
        assert set(found) == set(only)
        assert len(probes) == 1
        predictions = found["real"].arrays["linear_predictions"]
        truth = np.arange(48)[::-1] % 2
        assert found["real"].scores["linear_top1"] == 100 * (predictions == truth).mean()
    assert (predictions == found["linear"].arrays["predictions"]).all()


def counted(function, calls):
    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--only", "magic"], "there is no evaluation 'magic'"),
        (["--only", "transfer"], "transfer"),
        (["--only", "transfer", "--target", "flowers"], "'flowers' names no path"),
        (["--only", "transfer", "--target", "flowers=nowhere"], "nowhere"),
        (["--only", "robustness", "--robustness.path", "nowhere"], "nowhere"),
        (["--only", "real"], "real"),
        (["--only", "maps"], "train one with train.snapshots, for example --train.snapshots 0 1"),
        (["--only", "fewshot", "--fewshot.per-class", "999"], "999"),
    ],
)
def test_mistakes_are_one_sentence(flags, words, finished_run, capsys):
    before = sorted(path.name for path in (finished_run / "findings").glob("*"))
    assert main(["evaluate", str(finished_run), "--device", "cpu", *flags]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in (finished_run / "findings").glob("*")) == before


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--linear.learning-rate", "inf", "linear.learning_rate is inf; it must be above 0 and finite"),
        ("--linear.flip", "2", "linear.flip is 2.0; it must lie in [0, 1]"),
        ("--knn.temperature", "inf", "knn.temperature is inf; it must be above 0 and finite"),
        ("--calibration.seed", "9" * 23, "it must lie within 0..2**32-1"),
    ],
)
def test_flags_are_refused_before_anything_is_judged(flag, value, words, finished_run, capsys):
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(finished_run), flag, value])
    assert end.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_encoder_of_other_images_says_so(finished_run, tmp_path, capsys):
    """Data with other classes than the classifier knew are refused by what needs them; features are not."""
    labels = np.zeros(20, dtype=np.int64)
    images = (
        torch.randint(0, 256, (20, 8, 8), generator=torch.Generator().manual_seed(0)).numpy().astype(np.uint8)
    )
    path = tmp_path / "one.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    for name in ("clustering", "calibration", "similarity", "fewshot"):
        flags = ["--only", name, "--data.path", str(path), "--device", "cpu"]
        code = main(["evaluate", str(finished_run), *flags])
        error = capsys.readouterr().err
        assert code in (0, 2)
        assert error.count("\n") == (1 if code else 0), (name, error)
