"""Tables that a reader can take away: each as Markdown and as LaTeX, each number with the runs behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from varcon.reports.collect import Run
from varcon.reports.groups import Group, Spread
from varcon.reports.svg import widest

NONE = "—"
HALF = 480  # pixels, of a column of the page where it is widest
LETTERS, GAP = 14.7, 14  # the size of a table's letters on the page, and what stands between its columns
# What LaTeX reads as something else, and signs that its fonts lack.
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "±": r"$\pm$",
    "τ": r"$\tau$",
    "ε": r"$\varepsilon$",
    "₁": "$_1$",
    "₂": "$_2$",
    "→": r"$\rightarrow$",
    "\N{MINUS SIGN}": "$-$",
    "—": "--",
    "[": "{[}",  # else, where it begins a row, the option of the command before it; so with a star
    "*": "{*}",
}


@dataclass(frozen=True)
class Cell:
    text: str
    runs: tuple[str, ...] = ()  # that the number comes from
    finding: str = ""  # and the evaluation

    @property
    def origin(self) -> str:
        file = f"/findings/{self.finding}.json" if self.finding else ""
        return ", ".join(f"{run}{file}" for run in self.runs)


@dataclass(frozen=True)
class Table:
    title: str
    head: list[str]
    rows: list[list[Cell]]  # the first of each names it
    caption: str = ""
    words: int = 1  # columns of words; those after them are numbers, set to the right
    shape: str = "half"

    @property
    def room(self) -> str:
        """The shape, or the page's whole width where names would have to break in half of it."""
        columns = zip(*([cell.text for cell in row] for row in self.rows), strict=True)
        needed = sum(
            widest([*head.split(), *column], LETTERS) + GAP
            for head, column in zip(self.head, columns, strict=False)
        )
        return "wide" if self.shape == "half" and needed > HALF else self.shape

    def markdown(self) -> str:
        rule = ["---"] * self.words + ["---:"] * (len(self.head) - self.words)
        lines = [self.head, rule, *([cell.text for cell in row] for row in self.rows)]
        return "".join(
            f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |\n" for line in lines
        )

    def latex(self) -> str:
        columns = "l" * self.words + "r" * (len(self.head) - self.words)
        lines = [" & ".join(escaped(cell.text) for cell in row) + r" \\" for row in self.rows]
        head = " & ".join(map(escaped, self.head)) + r" \\"
        body = [r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


@dataclass(frozen=True)
class Column:
    """A score to be tabulated: its head, the evaluation and its name there."""

    head: str
    finding: str
    score: str
    digits: int = 2


def plain(value: Any) -> str:
    """A setting or a score as a person writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or NONE
    return NONE if value is None or value == "" else str(value)


def score_cell(run: Run, finding: str, score: str, digits: int = 2) -> Cell:
    value = run.score(finding, score)
    return Cell(NONE) if value is None else Cell(f"{value:.{digits}f}", (run.name,), finding)


def spread_cell(group: Group, column: Column) -> Cell:
    """Mean and, of several runs, the sample standard deviation."""
    found = group.spread(column.finding, column.score)
    names = group.runs_with(column.finding, column.score)
    text = spread_text(found, column.digits, len(group.runs))
    return Cell(text, names, column.finding) if names else Cell(NONE)


def spread_text(found: Spread | None, digits: int, runs: int) -> str:
    if found is None:
        return NONE
    text = f"{found.mean:.{digits}f}"
    text += f" ± {found.deviation:.{digits}f}" if found.deviation is not None else ""
    return text + (f" (n = {found.count})" if found.count < runs else "")


def compared(title: str, groups: list[Group], columns: Sequence[Column], caption: str = "") -> list[Table]:
    """A row for each recipe or, of a single one, for each run and their mean; nothing of nothing."""
    columns = [one for one in columns if any(g.runs_with(one.finding, one.score) for g in groups)]
    if not columns:
        return []
    rows = []
    if len(groups) == 1:
        for run in groups[0].runs:
            cells = [score_cell(run, one.finding, one.score, one.digits) for one in columns]
            rows.append([Cell(run.name, (run.name,)), *cells])
    for group in groups:
        label = "mean ± standard deviation" if len(groups) == 1 else group.label
        names = tuple(run.name for run in group.runs)
        rows.append([Cell(label, names), *(spread_cell(group, one) for one in columns)])
    named = [row for row in rows if any(cell.runs for cell in row[1:])]
    head = ["run" if len(groups) == 1 else "recipe", *(one.head for one in columns)]
    return [Table(title, head, named, caption, shape="wide" if len(head) > 4 else "half")]
