"""Which classes nearest neighbours take for which."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, LARGE
from varcon.reports.collect import Run
from varcon.reports.groups import Group
from varcon.reports.matrices import Cells, matrix
from varcon.reports.svg import ALARM, Drawing
from varcon.reports.tables import Cell, Table

NUMBERED_CLASSES = 30  # a larger matrix is drawn without its numbers
PAIRS_LISTED = 15  # of classes taken for each other, where the matrix is too large to read


def of_run(run: Run) -> list[Drawing | Table]:
    counts = run.array("knn", "confusion")
    if counts is None:
        return []
    wrong = int(counts.sum() - np.trace(counts))
    caption = f"{wrong:,} of {int(counts.sum()):,} {run.judged_on} are misjudged"
    for true, taken, count, _ in run.confused_pairs()[:1]:
        often = f"{count:,} times" if count > 1 else "once"
        caption += f"; most often {true} is taken for {taken} ({often})"
    svg = confusion(counts, run.class_names(len(counts)))
    shape = "half" if len(counts) <= 12 else "large"
    drawing = Drawing("Confusion of the kNN classifier", caption + ".", svg, shape)
    return [drawing, *(pairs(run) if len(counts) > NUMBERED_CLASSES else [])]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    return []


def confusion(counts: np.ndarray, classes: list[str]) -> str:
    """Rows are true classes; the diagonal is grey, so that what is coloured is an error."""
    size = len(counts)
    errors = counts * (1 - np.eye(size, dtype=counts.dtype))
    strength = np.where(errors > 0, 0.2 + 0.6 * errors / max(1, errors.max()), 0.0)
    texts = np.where(counts > 0, counts.astype(str), "") if size <= NUMBERED_CLASSES else None
    cells = Cells(strength, texts, ALARM, grey=np.eye(size, dtype=bool), bold=errors > 0)
    names = classes[:size]
    return matrix(cells, names, names, "true class", "taken for", HALF if size <= 12 else LARGE)


def pairs(run: Run) -> list[Table]:
    rows = []
    for true, taken, count, share in run.confused_pairs()[:PAIRS_LISTED]:
        numbers = (Cell(text, (run.name,), "knn") for text in (f"{count:,}", f"{share:.1f}"))
        rows.append([Cell(true), Cell(taken), *numbers])
    head = ["class", "taken for", "images", "% of the class"]
    return [Table("Most confused classes", head, rows, words=2)] if rows else []
