"""Which classes the embedding holds for alike, and whether known superclasses show in it."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, LARGE
from varcon.reports.collect import Run
from varcon.reports.groups import Group
from varcon.reports.matrices import Cells, matrix
from varcon.reports.svg import Drawing
from varcon.reports.tables import Cell, Column, Table, compared, score_cell

NUMBERED_CLASSES = 15
PAIRS_LISTED = 15
SUPERCLASSES = {
    "nearest_in_superclass": "nearest class is of the same superclass",
    "superclass_map": "mean average precision",
    "superclass_ari": "adjusted Rand index of the tree",
    "superclass_rank_correlation": "rank correlation",
}


def of_run(run: Run) -> list[Drawing | Table]:
    return [*cosines(run), *pairs(run), *recovery(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    columns = [Column(name, "similarity", score, 3) for score, name in SUPERCLASSES.items()]
    closeness = [
        Column("mean cosine", "similarity", "mean", 3),
        Column("highest cosine", "similarity", "highest", 3),
    ]
    caption = "Cosines between the classes' mean features; where superclasses are known, how well they show."
    return [*compared("Similarity of classes", groups, [*closeness, *columns], caption)]


def cosines(run: Run) -> list[Drawing]:
    values, classes, order = (run.array("similarity", name) for name in ("similarity", "classes", "order"))
    if values is None or classes is None or order is None:
        return []
    every = run.names_of(classes)
    names = [every[int(label)] for label in classes[order]]
    values = values[np.ix_(order, order)].astype(float)
    others = ~np.eye(len(values), dtype=bool)
    between = values[others]
    low, high = (float(between.min()), float(between.max())) if len(between) else (0.0, 1.0)
    strength = ((values - low) / max(high - low, 1e-9)).clip(0, 1)
    texts = None
    if len(values) <= NUMBERED_CLASSES:
        texts = np.where(others, np.char.mod("%.2f", values), "")
    cells = Cells(0.9 * strength, texts, grey=~others)
    svg = matrix(cells, names, names, width=HALF if len(values) <= 12 else LARGE)
    caption = (
        "Cosines between the classes' mean test features, in the order of their tree, so that like classes "
        f"form blocks: faintest {low:.2f}, strongest {high:.2f}."
    )
    return [Drawing("Similarity of classes", caption, svg, "half" if len(values) <= 12 else "large")]


def pairs(run: Run) -> list[Table]:
    found, values = run.array("similarity", "pairs"), run.array("similarity", "pair_similarity")
    if found is None or values is None:
        return []
    names = run.names_of(found)
    classes, groups = run.array("similarity", "classes"), run.array("similarity", "superclasses")
    group_of = dict(zip(classes, groups, strict=True)) if classes is not None and groups is not None else {}
    rows = []
    for (one, other), value in list(zip(found, values, strict=True))[:PAIRS_LISTED]:
        row = [
            Cell(names[int(one)]),
            Cell(names[int(other)]),
            Cell(f"{value:.3f}", (run.name,), "similarity"),
        ]
        if group_of:
            row.insert(2, Cell("yes" if group_of.get(one) == group_of.get(other) else "no"))
        rows.append(row)
    head = ["class", "and", *(["same superclass"] if group_of else []), "cosine"]
    return [Table("Closest classes", head, rows, words=3 if group_of else 2)]


def recovery(run: Run) -> list[Table]:
    rows = []
    for score, name in SUPERCLASSES.items():
        cells = [score_cell(run, "similarity", score + ending, 3) for ending in ("", "_chance")]
        rows += [[Cell(name), *cells]] if cells[0].runs else []
    caption = "How well the superclasses of the classes show in their similarity: 1 at best."
    return [Table("Superclasses recovered", ["score", "value", "by chance"], rows, caption)] if rows else []
