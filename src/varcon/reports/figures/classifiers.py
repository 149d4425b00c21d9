"""Accuracy on the test images, by every classifier that was put on the frozen features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from varcon.reports.charts import HALF, WIDE, Line, Panel, curves
from varcon.reports.collect import Run
from varcon.reports.groups import Group, looks
from varcon.reports.svg import Drawing
from varcon.reports.tables import NONE, Cell, Column, Table, compared, score_cell

# Name of the row, the finding, and its scores for top-1, top-5 and the mean over the classes.
JUDGES = (
    ("kNN", "knn", "top1", "top5", ""),
    ("linear probe, last epoch", "linear", "last", "top5", ""),
    ("linear probe, best epoch", "linear", "best", "", ""),
    ("linear probe on augmented images, last epoch", "linear-augmented", "last", "top5", ""),
    ("linear probe on augmented images, best epoch", "linear-augmented", "best", "", ""),
    ("logistic regression", "logistic", "top1", "top5", "mean_per_class"),
    ("linear discriminants (varcon predict)", "discriminant", "top1", "top5", "mean_per_class"),
    ("nearest centroid", "centroid", "top1", "top5", "mean_per_class"),
    ("its own classifier", "classifier", "top1", "top5", ""),
    ("kNN by reassessed labels (ReaL)", "real", "knn_top1", "", ""),
    ("linear probe by reassessed labels (ReaL)", "real", "linear_top1", "", ""),
    ("linear probe on augmented images by reassessed labels (ReaL)", "real", "linear-augmented_top1", "", ""),
    ("its own classifier by reassessed labels (ReaL)", "real", "classifier_top1", "", ""),
    ("kNN of the raw input", "pixels", "top1", "top5", ""),
)
FURTHER = (
    Column("logistic regression, %", "logistic", "top1"),
    Column("linear discriminants, %", "discriminant", "top1"),
    Column("nearest centroid, %", "centroid", "top1"),
    Column("linear probe on augmented images, last, %", "linear-augmented", "last"),
    Column("kNN, ReaL, %", "real", "knn_top1"),
    Column("linear probe, ReaL, %", "real", "linear_top1"),
)


def of_run(run: Run) -> list[Drawing | Table]:
    return [*scores(run), *neighbours(run), *probes(run), *dimensions(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    title = "Further classifiers on the frozen features"
    return [*overlaid_neighbours(groups), *compared(title, groups, FURTHER, "Top-1 accuracy.")]


def scores(run: Run) -> list[Table]:
    rows = []
    for name, finding, *names in JUDGES:
        cells = [score_cell(run, finding, score) if score else Cell(NONE) for score in names]
        k = run.score(finding, "k")
        label = f"{name}, K = {k:g}" if k is not None else name
        rows += [[Cell(label), *cells]] if cells[0].runs else []
    head = ["classifier", "top-1, %", "top-5, %", "mean per class, %"]
    filled = [0, *(place for place in range(1, 4) if any(row[place].runs for row in rows))]
    caption = f"On the {run.judged_on}."
    if any(run.score(finding, "best") is not None for finding in ("linear", "linear-augmented")):
        caption += " The best epoch of a probe is picked on them, so it flatters: quote the last."
    shrinkage = run.score("discriminant", "shrinkage")
    if shrinkage is not None:
        caption += (
            " The linear discriminants' covariance is shrunk by as much as suits the other half of them "
            f"({shrinkage:g} of a sphere for all)."
        )
    judged, left_out = run.score("real", "judged"), run.score("real", "left_out")
    if judged is not None and left_out is not None:
        caption += (
            f" ReaL judges {judged:,.0f} images; {left_out:,.0f} have no label that people found right."
        )
    table = Table(
        "Classifiers on the frozen features",
        [head[place] for place in filled],
        [[row[p] for p in filled] for row in rows],
        caption,
    )
    return [table] if rows else []


def neighbours(run: Run) -> list[Drawing]:
    learned, pixels = run.accuracy_by_k("knn"), run.accuracy_by_k("pixels")
    if not learned:
        return []
    panel = _neighbour_panel([_by_k(learned, 0, "embedding")], pixels)
    caption = "A good embedding stays flat as more neighbours vote"
    caption += "; the raw input, dotted, needed no training." if pixels else "."
    svg = curves([panel], (HALF, 320))
    return [Drawing("kNN accuracy over the number of neighbours", caption, svg)]


def overlaid_neighbours(groups: list[Group]) -> list[Drawing]:
    judged = [look for look in looks(groups) if look.run.accuracy_by_k("knn")]
    lines = [_by_k(look.run.accuracy_by_k("knn"), look.style, look.label) for look in judged]
    if not lines:
        return []
    runs = [look.run for look in looks(groups)]
    pixels = [run.accuracy_by_k("pixels") for run in runs if "pixels" in run.findings]
    baseline = pixels[0] if pixels and len({run.data for run in runs}) == 1 else {}
    caption = "Higher is better" + ("; curves above the dotted one beat the raw input." if baseline else ".")
    svg = curves([_neighbour_panel(lines, baseline)], (WIDE, 300))
    return [Drawing("kNN accuracy over the number of neighbours", caption, svg, "wide")]


def _neighbour_panel(lines: list[Line], pixels: dict[int, float]) -> Panel:
    baseline = _by_k(pixels, 0, "raw input") if pixels else None
    ticks = sorted({int(k) for line in lines for k in line.x} | set(pixels))
    return Panel(lines, "top-1 accuracy, %", "neighbours K", baseline=baseline, ticks=ticks, dots=True)


def _by_k(accuracy: dict[int, float], style: int, label: str) -> Line:
    return Line(np.array(list(accuracy)), np.array(list(accuracy.values())), style, label)


def probes(run: Run) -> list[Drawing]:
    lines = []
    for style, (finding, label) in enumerate(
        (("linear", "on features computed once"), ("linear-augmented", "on augmented images"))
    ):
        accuracy = run.array(finding, "accuracy")
        if accuracy is not None:
            lines.append(Line(np.arange(1, 1 + len(accuracy)), accuracy, style, label))
    if not lines:
        return []
    if len(lines) == 1 and "linear" in run.findings:
        lines = [replace(lines[0], label="")]  # the usual probe alone needs no legend
    panel = Panel(lines, "top-1 accuracy, %", "epoch of the probe")
    caption = "Test accuracy of a linear classifier on the frozen features, whose rate is cut three times."
    return [Drawing("Linear probe", caption, curves([panel], (HALF, 320)))]


def dimensions(run: Run) -> list[Table]:
    names = {"effective_rank": ("effective rank", 2), "dimensions": ("dimensions", 0)}
    names["spread"] = ("spread of the directions", 3)
    cells = [(label, score_cell(run, "rank", score, digits)) for score, (label, digits) in names.items()]
    rows = [[Cell(label), cell] for label, cell in cells if cell.runs]
    caption = (
        "An encoder that has collapsed has a low rank, or directions with no spread (1: all ways alike)."
    )
    return [Table("Dimensions in use", ["test features", "value"], rows, caption)] if rows else []
