"""Whether the features tell images of the data from images of something else."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import WIDE, Line, Panel, curves, rows_of_marks
from varcon.reports.collect import Run
from varcon.reports.groups import Group, marks_of, told_apart
from varcon.reports.svg import Drawing
from varcon.reports.tables import Cell, Column, Table, compared, score_cell

MEASURES = {"auroc": "AUROC, %", "aupr": "AUPR, %", "fpr95": "FPR at 95 % TPR, %"}
BINS = 30
THRESHOLDS = np.linspace(0, 1, 101)  # shares of the data's own images that a curve goes through
CAPTION = (
    "The data's own test images are the positives. A higher AUROC and a lower false positive rate are better."
)


def of_run(run: Run) -> list[Drawing | Table]:
    return [*histograms(run), *measures(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    names = list(dict.fromkeys(name for group in groups for run in group.runs for name in scores_of(run)))
    columns = [
        Column(f"{name}, {MEASURES[measure]}", "outliers", f"{name}_{measure}")
        for name in names
        for measure in ("auroc", "fpr95")
    ]
    tables = compared("Known and unknown images", groups, columns, f"Means over their kinds. {CAPTION}")
    if not tables:
        return []
    marks = marks_of(told_apart(groups), "outliers", [f"{name}_auroc" for name in names])
    svg = rows_of_marks(names, marks, "AUROC, %")
    caption = "Further right is better; bars are the spread over seeds."
    return [Drawing("AUROC by score", caption, svg), *tables]


def scores_of(run: Run) -> list[str]:
    found = run.findings.get("outliers")
    return [name[: -len("_auroc")] for name in found.scores if name.endswith("_auroc")] if found else []


def kinds_of(run: Run, score: str) -> list[str]:
    found = run.findings.get("outliers")
    begin = f"{score}_auroc@"
    return [name[len(begin) :] for name in found.scores if name.startswith(begin)] if found else []


def histograms(run: Run) -> list[Drawing]:
    above, below = [], []
    for score in scores_of(run):
        inside = run.array("outliers", f"{score}@test")
        others = {kind: run.array("outliers", f"{score}@{kind}") for kind in kinds_of(run, score)}
        known = {kind: values for kind, values in others.items() if values is not None}
        if inside is None or not known:
            continue
        # A few images may lie very far out; they are counted at the end.
        low = min(float(np.quantile(values, 0.02)) for values in (inside, *known.values()))
        high = max(float(values.max()) for values in (inside, *known.values()))
        edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
        lines = [
            Line(edges, shares(values, edges), style, kind, steps=True, filled=kind == "test images")
            for style, (kind, values) in enumerate({"test images": inside, **known}.items())
        ]
        above.append(Panel(lines, "% of images", "score", score, y_limits=(0, None)))
        passing = [
            Line(100 * false_positives(inside, values), 100 * THRESHOLDS, style, kind)
            for style, (kind, values) in enumerate(known.items(), start=1)
        ]
        chance = Line(np.array([0.0, 100.0]), np.array([0.0, 100.0]), label="chance")
        below.append(
            Panel(
                passing,
                "own images kept, %",
                "others kept, %",
                "",
                chance,
                x_limits=(-2, 102),
                y_limits=(-2, 102),
            )
        )
    if not above:
        return []
    svg = curves([*above, *below], (WIDE, 520), columns=len(above))
    caption = (
        "How typical an image is by each score, the higher the more; below, the share of the data's own "
        "images kept over the share of others: a curve in the upper left corner tells all apart."
    )
    return [Drawing("Known and unknown images", caption, svg, "wide")]


def shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Percent of the values in each bin, those beyond the ends in the outermost."""
    return 100 * np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values)


def false_positives(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """The share of `outside` at or above the threshold that each share of `inside` reaches."""
    ordered = np.sort(inside)[::-1]
    reached = np.ceil(THRESHOLDS * len(ordered) - 1e-9).astype(int)  # for rounding
    below = np.searchsorted(np.sort(outside), ordered[np.maximum(reached, 1) - 1], side="left")
    return np.where(reached > 0, 1 - below / len(outside), 0.0)


def measures(run: Run) -> list[Table]:
    """A table for each measure: scores by kind of unknown images."""
    kinds = list(dict.fromkeys(kind for score in scores_of(run) for kind in kinds_of(run, score)))
    tables = []
    for measure, name in MEASURES.items():
        rows = []
        for score in scores_of(run):
            cells = [score_cell(run, "outliers", f"{score}_{measure}@{kind}") for kind in kinds]
            rows.append([Cell(score), *cells, score_cell(run, "outliers", f"{score}_{measure}")])
        tables.append(Table(name, ["score", *kinds, "mean"], rows, CAPTION if measure == "auroc" else ""))
    return tables if scores_of(run) else []
