"""Accuracy over the number of labelled images per class."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, WIDE, Line, Panel, curves
from varcon.reports.collect import Run
from varcon.reports.groups import Group, told_apart
from varcon.reports.svg import Drawing
from varcon.reports.tables import NONE, Cell, Column, Table, compared

JUDGES = {"logistic": "logistic regression", "centroid": "nearest centroid"}


def of_run(run: Run) -> list[Drawing | Table]:
    numbers = numbers_of([run])
    if not numbers:
        return []
    lines = [
        line
        for style, judge in enumerate(JUDGES)
        for line in line_of(Group(JUDGES[judge], [run]), judge, style)
    ]
    panel = Panel(lines, "top-1 accuracy, %", "labelled images per class", ticks=numbers, dots=True)
    caption = "Classifiers on few training features; means over random subsets, bars are standard errors."
    return [
        Drawing("Accuracy over labelled images", caption, curves([panel], (HALF, 320))),
        *table(run, numbers),
    ]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    numbers = numbers_of([run for group in groups for run in group.runs])
    if not numbers:
        return []
    panels = []
    for judge, name in JUDGES.items():
        lines = [
            line for style, group in enumerate(told_apart(groups)) for line in line_of(group, judge, style)
        ]
        panels.append(
            Panel(lines, "top-1 accuracy, %", "labelled images per class", name, ticks=numbers, dots=True)
        )
    caption = (
        "Means; bars are the spread over seeds or, of a single run, the standard error over random subsets."
    )
    items: list[Drawing | Table] = [
        Drawing("Accuracy over labelled images", caption, curves(panels, (WIDE, 320)), "wide")
    ]
    for judge, name in JUDGES.items():
        columns = [Column(f"N = {count}", "fewshot", f"{judge}@{count}") for count in numbers]
        items += compared(
            f"By labelled images: {name}", groups, columns, "Top-1 accuracy in %, by N images per class."
        )
    return items


def numbers_of(runs: list[Run]) -> list[int]:
    found = set()
    for run in runs:
        for name in run.findings["fewshot"].scores if "fewshot" in run.findings else {}:
            judge, _, count = name.partition("@")
            if (
                judge in JUDGES
                and count.isdecimal()
                and int(count) > 0
                and run.score("fewshot", name) is not None
            ):
                found.add(int(count))
    return sorted(found)


def line_of(group: Group, judge: str, style: int) -> list[Line]:
    numbers = [count for count in numbers_of(group.runs) if group.spread("fewshot", f"{judge}@{count}")]
    if not numbers:
        return []
    means, errors = [], []
    for count in numbers:
        found = group.spread("fewshot", f"{judge}@{count}")
        own = group.spread("fewshot", f"{judge}_error@{count}")
        means.append(found.mean if found else np.nan)
        errors.append(found.deviation if found and found.deviation is not None else own.mean if own else 0.0)
    return [Line(np.array(numbers), np.array(means), style, group.label, np.array(errors))]


def table(run: Run, numbers: list[int]) -> list[Table]:
    rows = []
    for count in numbers:
        cells = []
        for judge in JUDGES:
            value, error = (run.score("fewshot", f"{judge}{part}@{count}") for part in ("", "_error"))
            text = (
                f"{value:.2f}" + (f" ± {error:.2f}" if error is not None else "")
                if value is not None
                else NONE
            )
            cells.append(Cell(text, (run.name,) if value is not None else (), "fewshot"))
        rows.append([Cell(str(count)), *cells])
    head = ["images per class", *(f"{name}, %" for name in JUDGES.values())]
    return [
        Table(
            "Accuracy by labelled images", head, rows, "Top-1 accuracy ± standard error over random subsets."
        )
    ]
