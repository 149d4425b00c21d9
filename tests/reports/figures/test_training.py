import json
from pathlib import Path

import pytest
from reports.test_collect import make_run, read

from varcon.engine.journal import read_rows
from varcon.reports.collect import read_runs
from varcon.reports.epochs import convergence, epoch_means
from varcon.reports.figures import training
from varcon.reports.groups import group_by_recipe
from varcon.reports.tables import Table


def journal(folder: Path, losses: list[float]) -> Path:
    rows = [{"step": 5 * e, "epoch": float(e), "loss": loss} for e, loss in enumerate(losses, start=1)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_the_terms_are_means_over_the_first_and_the_last_epoch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    terms, reached = training.decomposition(read(folder))
    epochs, means = epoch_means(read_rows(folder / "metrics.jsonl"))
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in terms.rows}
    for name, key in (("loss", "loss"), ("KL term", "kl"), ("NLL term", "nll")):
        first, last = means[key][0], means[key][-1]
        assert shown[name] == [f"{first:.4g}", f"{last:.4g}", f"{100 * (1 - last / first):.1f}"]
    assert shown["τ₂"] == ["0.09", "0.11", "—"]
    area = convergence(epochs, means["loss"])["area"]
    assert [row[1].text for row in reached.rows] == ["2", "2", "2", f"{area:.3f}"]


def test_a_tau1_that_moves_is_drawn_and_told_of(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = [
        row | {"tau1": tau1}
        for row, tau1 in zip(read_rows(folder / "metrics.jsonl"), (0.2, 0.1), strict=True)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = read(folder)
    (drawing,) = training.losses(run)
    assert "Part of that is τ₁, which moved." in drawing.caption
    terms, _ = training.decomposition(run)
    assert ["τ₁", "0.2", "0.1", "—"] in [[cell.text for cell in row] for row in terms.rows]
    still, moving = (training.temperature(one)[0].svg for one in (read(make_run(tmp_path / "still")), run))
    assert still != moving


def test_convergence_is_compared_over_seeds(tmp_path: Path) -> None:
    fast = journal(make_run(tmp_path / "fast"), [10.0, 0.5, 0.05, 0.0])
    slow = [
        journal(make_run(tmp_path / f"slow-{s}", s, temperature=0.2), [10.0, 9.0, 8.0, s]) for s in (0, 1)
    ]
    (table,) = [
        item
        for item in training.of_groups(group_by_recipe(read_runs([fast, *slow])))
        if isinstance(item, Table)
    ]
    assert [cell.text for cell in table.rows[0][:4]] == ["temperature 0.1", "2.0", "2.0", "3.0"]
    assert table.rows[1][1].text == "4.0 ± 0.0"
    assert table.rows[1][1].runs == ("slow-0", "slow-1")


@pytest.mark.parametrize(
    "rows", [[], [{"epoch": 1.0, "loss": 2.0}], [{"step": 0, "epoch": 1.0, "loss": 2.0}]]
)
def test_a_journal_that_cannot_be_averaged_makes_no_table(
    tmp_path: Path, rows: list[dict[str, float]]
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert training.decomposition(read(folder)) == []
    assert training.convergences(group_by_recipe([read(folder)])) == []
