"""Clusters found without labels: how well they match the classes, and the tree of the classes."""

from __future__ import annotations

import numpy as np

from varcon.reports.axes import Axes, Axis, axis_of, bottom_margin
from varcon.reports.charts import HALF, LARGE, rows_of_marks
from varcon.reports.collect import Run
from varcon.reports.groups import Group, marks_of, told_apart
from varcon.reports.svg import Canvas, Drawing, short, widest
from varcon.reports.tables import Cell, Column, Table, compared, score_cell

SCORES = {
    "ari": "adjusted Rand index",
    "nmi": "mutual information",
    "homogeneity": "homogeneity",
    "completeness": "completeness",
    "v_measure": "V-measure",
    "purity": "purity",
}
NAMED_CLASSES = 250  # the tree of more is drawn closer, without names
CAPTION = "Ward's clusters of test features against the classes: 1 at best; by chance the Rand index is 0."


def of_run(run: Run) -> list[Drawing | Table]:
    return [*tree(run), *scores(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    columns = [Column(name, "clustering", score, 3) for score, name in SCORES.items()]
    tables = compared("Clusters without labels", groups, columns, CAPTION)
    if not tables:
        return []
    marks = marks_of(told_apart(groups), "clustering", list(SCORES))
    svg = rows_of_marks(list(SCORES.values()), marks, "agreement of clusters and classes")
    return [
        Drawing("Clusters without labels", "Further right is better; bars are the spread over seeds.", svg),
        *tables,
    ]


def scores(run: Run) -> list[Table]:
    cells = [(name, score_cell(run, "clustering", score, 4)) for score, name in SCORES.items()]
    rows = [[Cell(name), cell] for name, cell in cells if cell.runs]
    images, clusters = run.score("clustering", "images"), run.score("clustering", "clusters")
    caption = CAPTION
    if images is not None and clusters is not None:
        caption = f"{images:,.0f} images in {clusters:g} clusters. {CAPTION}"
    return [Table("Clusters without labels", ["score", "value"], rows, caption)] if rows else []


def tree(run: Run) -> list[Drawing]:
    merges, classes = run.array("clustering", "class_linkage"), run.array("clustering", "classes")
    if merges is None or classes is None:
        return []
    names = run.names_of(classes)
    svg = dendrogram(merges.astype(float), [names[int(label)] for label in classes])
    caption = (
        "Ward's tree of the classes' mean features: classes that join far left are alike to the encoder."
    )
    caption += f" The {len(classes):,} names are left out." if len(classes) > NAMED_CLASSES else ""
    return [Drawing("Tree of the classes", caption, svg, "half" if len(classes) <= 20 else "large")]


def dendrogram(merges: np.ndarray, names: list[str]) -> str:
    """Leaves one under the other, named at the left, joined at their distance to the right."""
    from scipy.cluster.hierarchy import dendrogram as drawn

    found = drawn(merges, no_plot=True)
    few = len(names) <= 20
    line, size = (24.0, 12.0) if few else (11.5, 9.0) if len(names) <= NAMED_CLASSES else (2.5, 0.0)
    names = [short(names[leaf], 22) if size else "" for leaf in found["leaves"]]
    left = widest(names, size) + 12
    x = axis_of([np.zeros(1), merges[:, 2]], "distance (Ward)", (0, None))
    canvas = Canvas(HALF if few else LARGE, 6 + line * len(names) + bottom_margin(x))
    box = (left, 6.0, canvas.width - 12, 6 + line * len(names))
    axes = Axes(canvas, box, x, Axis(10 * len(names), 0))  # scipy sets leaves at 5, 15, 25, ...
    for up, across in zip(found["icoord"], found["dcoord"], strict=True):
        canvas.line(axes.x(np.array(across)), axes.y(np.array(up)), "ink", 1.4 if few else 1.0)
    for place, name in enumerate(names if size else []):
        canvas.text(left - 6, float(axes.y(10.0 * place + 5)), name, size, "end")
    return canvas.svg()
