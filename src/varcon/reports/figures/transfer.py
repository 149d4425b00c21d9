"""What the encoder is worth on other data, frozen and fine-tuned."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, Line, Panel, curves
from varcon.reports.collect import Finding, Run
from varcon.reports.groups import Group
from varcon.reports.svg import Drawing
from varcon.reports.tables import NONE, Cell, Column, Table, compared, score_cell

MEASURES = {"top1": "top-1", "mean-per-class": "mean per class", "map": "mAP, 11 points"}
TUNED = {
    "last": "last epoch, %",
    "best": "best epoch, %",
    "last_mean_per_class": "last, mean per class, %",
}


def of_run(run: Run) -> list[Drawing | Table]:
    return [*frozen(run), *tuned(run), *tuned_curves(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    runs = [run for group in groups for run in group.runs]
    targets: dict[str, str] = {}
    for run in runs:
        targets |= {name: measure or targets.get(name, "") for name, measure in measures_of(run).items()}
    columns = [Column(heading(name, measure), "transfer", name) for name, measure in targets.items()]
    columns += [Column("mean", "transfer", "mean")]
    tables = compared(
        "Transfer to other data", groups, columns, "Logistic regression on frozen features, in %."
    )
    names = dict.fromkeys(name for run in runs for name in tuned_of(run))
    columns = [
        Column(f"{name}, last, %", finding, "last") for finding, name in targets_of(runs, list(names)).items()
    ]
    return [
        *tables,
        *compared(
            "Fine-tuned",
            groups,
            columns,
            "Top-1 accuracy at the last epoch, where no other measure is named.",
        ),
    ]


def measures_of(run: Run) -> dict[str, str]:
    """The targets of a transfer, and how each is measured."""
    found = run.findings.get("transfer")
    if found is None:
        return {}
    names, measures = run.array("transfer", "names"), run.array("transfer", "measures")
    measured = (
        dict(zip(map(str, names), map(str, measures), strict=True))
        if names is not None and measures is not None
        else {}
    )
    return {name: measured.get(name, "") for name in found.scores if name != "mean"}


def heading(name: str, measure: str) -> str:
    return f"{name} ({MEASURES.get(measure, measure)})" if measure else name


def frozen(run: Run) -> list[Table]:
    rows = []
    further = {name: run.array("transfer", name) for name in ("names", "top1", "mean_per_class")}
    for name, measure in measures_of(run).items():
        row = [Cell(name), Cell(MEASURES.get(measure, measure) or NONE), score_cell(run, "transfer", name)]
        for column in ("top1", "mean_per_class"):
            values, names = further[column], further["names"]
            known = values is not None and names is not None and name in names.tolist()
            value = float(values[names.tolist().index(name)]) if known else np.nan  # type: ignore[index, union-attr]
            row.append(Cell(f"{value:.2f}", (run.name,), "transfer") if np.isfinite(value) else Cell(NONE))
        rows.append(row)
    if len(rows) > 1:
        rows.append([Cell("mean"), Cell(""), score_cell(run, "transfer", "mean"), Cell(NONE), Cell(NONE)])
    head = ["data", "measured by", "value, %", "top-1, %", "mean per class, %"]
    caption = "Logistic regression on the frozen features of other data sets."
    return [Table("Transfer to other data", head, rows, caption, words=2)] if rows else []


def tuned_of(run: Run) -> list[str]:
    return [name for name in run.findings if name == "finetune" or name.startswith("finetune-")]


def target_of(finding: Finding) -> str:
    target = finding.settings.get("target")
    name = str(target.get("name") or "its own data") if isinstance(target, dict) else "its own data"
    return heading(name, "map") if "map" in finding.arrays else name


def targets_of(runs: list[Run], names: list[str]) -> dict[str, str]:
    """What each fine-tuning finding was tuned on."""
    return {
        name: next(target_of(run.findings[name]) for run in runs if name in run.findings) for name in names
    }


def tuned(run: Run) -> list[Table]:
    rows = []
    for finding, target in targets_of([run], tuned_of(run)).items():
        rows.append([Cell(target), *(score_cell(run, finding, score) for score in TUNED)])
    caption = "All weights trained on. The best epoch is picked on the test images: quote the last."
    return [Table("Fine-tuned", ["data", *TUNED.values()], rows, caption)] if rows else []


def tuned_curves(run: Run) -> list[Drawing]:
    lines = []
    for style, (finding, target) in enumerate(targets_of([run], tuned_of(run)).items()):
        arrays = run.findings[finding].arrays
        accuracy = arrays.get("map", arrays.get("accuracy"))
        if accuracy is not None:
            lines.append(Line(np.arange(1, 1 + len(accuracy)), accuracy, style, target))
    if not lines:
        return []
    panel = Panel(lines, "top-1 accuracy or as named, %", "epoch of fine-tuning", dots=True)
    return [Drawing("Fine-tuning", "Test accuracy after each epoch.", curves([panel], (HALF, 300)))]
