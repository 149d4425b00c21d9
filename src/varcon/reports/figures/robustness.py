"""Accuracy on corrupted test images."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, Line, Panel, curves, rows_of_marks
from varcon.reports.collect import Run
from varcon.reports.groups import Group, marks_of, told_apart
from varcon.reports.matrices import Cells, matrix
from varcon.reports.svg import ALARM, Drawing
from varcon.reports.tables import Cell, Column, Table, compared, score_cell

SCORES = {
    "clean": "clean images, %",
    "mean": "corrupted images, %",
    "mce": "mCE, %",
    "relative_mce": "relative mCE, %",
    "mce_over_baseline": "mCE over the baseline, %",
    "relative_mce_over_baseline": "relative mCE over the baseline, %",
}
SEVERITIES = (0, 1, 2, 3, 4, 5)  # 0: clean images
CAPTION = (
    "Top-1 accuracy of a classifier made from clean training images; mCE is the mean error under corruption."
)


def of_run(run: Run) -> list[Drawing | Table]:
    return [*cells(run), *by_severity([Group("", [run])], False), *scores(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    columns = [Column(name, "robustness", score) for score, name in SCORES.items()]
    tables = compared("Clean and corrupted images", groups, columns, CAPTION)
    return [*by_severity(told_apart(groups), True), *by_corruption(told_apart(groups)), *tables]


def cells(run: Run) -> list[Drawing]:
    accuracy, names, severities = (
        run.array("robustness", n) for n in ("accuracy", "corruptions", "severities")
    )
    if accuracy is None or names is None or severities is None:
        return []
    errors = 100 - accuracy
    least, most = float(errors.min()), float(errors.max())
    strength = 0.8 * (errors - least) / max(most - least, 1e-9)
    shaded = Cells(strength, np.char.mod("%.1f", accuracy), ALARM)
    rows = [str(name).replace("_", " ") for name in names]
    columns = [str(severity) for severity in severities]
    svg = matrix(shaded, rows, columns, column_label="severity", width=HALF, row_height=24)
    caption = "Top-1 accuracy in %; the stronger the colour, the more errors."
    return [Drawing("Accuracy by corruption and severity", caption, svg)]


def by_severity(groups: list[Group], named: bool) -> list[Drawing]:
    lines = []
    for style, group in enumerate(groups):
        names = [severity_name(severity) for severity in SEVERITIES]
        means, spread = group.means("robustness", names), group.deviations("robustness", names)
        if np.isfinite(means).any():
            error = spread if np.isfinite(spread).any() else None
            lines.append(Line(np.array(SEVERITIES), means, style, group.label, error))
    if not lines:
        return []
    panel = Panel(lines, "top-1 accuracy, %", "severity (0: clean images)", x_limits=(-0.2, 5.2), dots=True)
    caption = "The mean over all corruptions" + ("; bars are the spread over seeds." if named else ".")
    return [Drawing("Accuracy by severity", caption, curves([panel], (HALF, 320)))]


def severity_name(severity: int) -> str:
    return f"severity{severity}" if severity else "clean"


def by_corruption(groups: list[Group]) -> list[Drawing]:
    arrays = [run.array("robustness", "corruptions") for group in groups for run in group.runs]
    names = list(dict.fromkeys(str(name) for found in arrays if found is not None for name in found))
    if not names:
        return []
    marks = marks_of(groups, "robustness", names)
    svg = rows_of_marks([name.replace("_", " ") for name in names], marks, "top-1 accuracy, %")
    return [Drawing("Accuracy by corruption", "The mean over the severities; further right is better.", svg)]


def scores(run: Run) -> list[Table]:
    found = [(name, score_cell(run, "robustness", score)) for score, name in SCORES.items()]
    found += [(f"severity {s}, %", score_cell(run, "robustness", f"severity{s}")) for s in range(1, 6)]
    rows = [[Cell(name), cell] for name, cell in found if cell.runs]
    images = run.score("robustness", "images")
    caption = CAPTION if images is None else f"{images:,.0f} test images under each corruption. {CAPTION}"
    return [Table("Clean and corrupted images", ["score", "value"], rows, caption)] if rows else []
