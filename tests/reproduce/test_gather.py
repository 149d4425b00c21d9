import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from varcon.recipe import DIGITS, recipe_to_dict
from varcon.reproduce.entries import Entry, Reading
from varcon.reproduce.gather import Gathered, losses, tau2, temperatures
from varcon.reproduce.setup import Runs

MINE, OTHER = Runs("varcon"), Runs("supcon")


def write_scores(folder, **scores):
    (folder / "findings").mkdir(parents=True)
    (folder / "findings/knn.json").write_text(json.dumps({"scores": scores, "settings": {}}))
    return folder


def test_a_cell_is_the_mean_over_the_runs_that_have_the_score(tmp_path):
    folders = [write_scores(tmp_path / str(n), top1=value) for n, value in enumerate((90.0, 93.0))]
    folders.append(write_scores(tmp_path / "without", top5=1.0))
    gathered = Gathered({MINE: dict(enumerate(folders))})
    cell = gathered.cell(Entry("row", "column", Reading(MINE, "knn", "top1")))
    assert (cell.mean, cell.deviation, cell.folders) == (
        91.5,
        pytest.approx(np.std([0, 3], ddof=1)),
        tuple(folders[:2]),
    )
    assert gathered.cell(Entry("row", "column", Reading(MINE, "linear", "last"))) is None
    assert gathered.cell(Entry("row", "column", Reading(OTHER, "knn", "top1"))) is None
    assert gathered.cell(Entry("row", "column", measured=7.0)).mean == 7.0


def test_a_difference_is_taken_seed_by_seed(tmp_path):
    mine = [write_scores(tmp_path / f"m{n}", top1=value) for n, value in enumerate((90.0, 93.0))]
    others = [write_scores(tmp_path / f"o{n}", top1=value) for n, value in enumerate((88.0, 94.0))]
    readings = [Reading(runs, "knn", "top1") for runs in (MINE, OTHER)]
    entry = Entry("row", "column", *readings)
    cell = Gathered({MINE: dict(enumerate(mine)), OTHER: dict(enumerate(others))}).cell(entry)
    assert (cell.values, cell.folders, cell.less) == ((2.0, -1.0), tuple(mine), tuple(others))
    # The first seed's run failed on one side, and then another's on the other.
    part = Gathered({MINE: {1: mine[1]}, OTHER: dict(enumerate(others))}).cell(entry)
    assert (part.values, part.folders, part.less) == ((-1.0,), (mine[1],), (others[1],))
    assert Gathered({MINE: {1: mine[1]}, OTHER: {0: others[0]}}).cell(entry) is None


def write_run(folder, epochs, epsilon, tau1=()):
    """A journal of `epochs`, two rows each, whose confidence rises by a tenth from epoch to epoch; each has
    its `tau1` where that moves."""
    folder.mkdir()
    recipe = replace(DIGITS, train=replace(DIGITS.train, epochs=epochs))
    (folder / "recipe.json").write_text(json.dumps({"recipe": recipe_to_dict(recipe)}))
    rows, samples = [], []
    for epoch in range(1, epochs + 1):
        for half in (0.5, 1.0):
            loss = 10.0 - epoch + half
            row = {"step": 2 * epoch - 2 + int(2 * half), "epoch": epoch - 1 + half, "loss": loss}
            row |= {"tau1": tau1[epoch - 1]} if tau1 else {}
            rows.append({**row, "kl": loss / 4, "nll": 3 * loss / 4, "epsilon": epsilon * epoch})
        quantiles = [0.0, 0.01, 0.1, 0.2, 0.3, 0.9, 1.0]
        confidence = {"mean": epoch / 10, "deviation": 0.05, "quantiles": quantiles}
        samples.append({"epoch": epoch, "confidence": {**confidence, "density": [2.0, 0.0]}})
    for name, lines in (("metrics", rows), ("samples", samples)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_losses_are_means_over_an_epoch(tmp_path):
    found = losses(write_run(tmp_path / "run", 5, 0.01))
    # Epoch e holds the losses 10.5 - e and 11 - e; a fifth of five epochs is the first.
    assert found["loss@first"] == found["loss@20 %"] == pytest.approx(9.75)
    assert found["loss@last"] == pytest.approx(5.75)
    assert found["kl@last"] + found["nll@last"] == pytest.approx(5.75)


def test_tau2_follows_from_the_confidence(tmp_path):
    folder = write_run(tmp_path / "run", 5, 0.01)
    found = tau2(folder)
    for part, epoch in ((20, 1), (60, 3), (100, 5)):
        epsilon = 0.01 * epoch
        low = 0.1 - epsilon
        assert found[f"epsilon@{part}"] == pytest.approx(epsilon)
        assert found[f"mean@{part}"] == pytest.approx(low + 2 * epsilon * epoch / 10)
        assert found[f"deviation@{part}"] == pytest.approx(2 * epsilon * 0.05)
        assert found[f"least@{part}"] == pytest.approx(low)
        assert found[f"greatest@{part}"] == pytest.approx(0.1 + epsilon)
        assert found[f"75 %@{part}"] == pytest.approx(low + 2 * epsilon * 0.3)
    every = asdict(temperatures(folder))
    area = (every["density"] * (2 * every["epsilon"] / 2)[:, None]).sum(axis=1)  # two bins
    assert area == pytest.approx(1.0)


def test_tau2_goes_with_a_tau1_that_moves(tmp_path):
    found = tau2(write_run(tmp_path / "run", 5, 0.01, tau1=(0.3, 0.25, 0.2, 0.15, 0.1)))
    for part, epoch, tau1 in ((20, 1, 0.3), (60, 3, 0.2), (100, 5, 0.1)):
        assert found[f"least@{part}"] == pytest.approx(tau1 - 0.01 * epoch)
        assert found[f"greatest@{part}"] == pytest.approx(tau1 + 0.01 * epoch)
