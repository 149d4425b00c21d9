"""A table as Markdown, LaTeX and JSON: ours and the paper's side by side, each under its own head."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from varcon.files import write_json, write_text
from varcon.reports.tables import escaped
from varcon.reproduce.entries import Entry
from varcon.reproduce.gather import Cell, Gathered

Grid = list[list[str]]  # a head and rows
NOTES_ABOVE = 3
PAPER_S = ", paper"  # ends the name of a row that is all the paper's


def grid(entries: list[Entry], gathered: Gathered) -> Grid:
    """A column of ours and, where the paper has it too, one of the paper's beside it.

    A row that says that it is the paper's needs no column of its own. Rows of which nobody has a number,
    such as of a superclass where there are none, are left out.
    """
    cells = {(entry.row, entry.column): (entry, gathered.cell(entry)) for entry in entries}
    all_rows = dict.fromkeys(row for row, _ in cells)
    rows = [row for row in all_rows if any(is_full(cell) for (of, _), cell in cells.items() if of == row)]
    columns = list(dict.fromkeys(column for _, column in cells))
    titles: list[tuple[str, str, str]] = []  # what stands above, the column, whose it is
    for column in columns:
        mine = [(row, *cells[row, column]) for row in rows if (row, column) in cells]
        has_ours = any(cell for _, _, cell in mine)
        apart = any(entry.paper and not row.endswith(PAPER_S) for row, entry, _ in mine)
        has_paper = any(entry.paper for _, entry, _ in mine)
        if has_ours and has_paper and not apart:
            titles.append((column, column, "either"))
            continue
        titles += [(column, column, "ours")] if has_ours else []
        titles += [(f"paper: {column}", column, "paper")] if has_paper else []
    table = [["", *(title for title, _, _ in titles)]]
    for row in rows:
        shown = [written(cells.get((row, column)), whose) for _, column, whose in titles]
        table.append([row, *shown])
    return table


def is_full(found: tuple[Entry, Cell | None]) -> bool:
    return found[1] is not None or found[0].paper is not None


def written(found: tuple[Entry, Cell | None] | None, whose: str) -> str:
    if found is None:
        return ""
    entry, cell = found
    if whose != "paper" and cell is not None:
        spread = "" if cell.deviation is None else f" ± {cell.deviation:.{entry.decimals}f}"
        return f"{cell.mean:,.{entry.decimals}f}{spread}"
    if whose != "ours" and entry.paper is not None:
        return str(entry.paper)
    return ""


def markdown(title: str, table: Grid, notes: list[str], picture: str) -> str:
    """The first notes, which say what the numbers are of and whether they compare, stand above them."""
    head, *rows = ([cell.replace("|", "\\|") for cell in line] for line in table)
    marks = ["---", *["---:"] * (len(head) - 1)]
    lines = [f"| {' | '.join(line)} |" for line in (head, marks, *rows)]
    above, below = ([f"- {note}" for note in part] for part in (notes[:NOTES_ABOVE], notes[NOTES_ABOVE:]))
    image = ["", f"![{title}]({picture})"] if picture else []
    return "\n".join([f"# {title}", "", *above, "", *lines, *image, "", *below]).rstrip() + "\n"


def latex(title: str, label: str, table: Grid, notes: list[str]) -> str:
    """For a document with \\usepackage{booktabs,graphicx}."""
    head, *rows = ([escaped(cell) for cell in line] for line in table)
    lines = [" & ".join(line) + r" \\" for line in rows]
    return "\n".join(
        [
            r"% \usepackage{booktabs,graphicx}",
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{escaped(title)}. {escaped(' '.join(notes))}}}",
            f"  \\label{{tab:varcon-{label}}}",
            r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            f"  \\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"    \toprule",
            f"    {' & '.join(head)} \\\\",
            r"    \midrule",
            *(f"    {line}" for line in lines),
            r"    \bottomrule",
            r"  \end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def records(entries: list[Entry], gathered: Gathered, beside: Path, place: str, setting: str) -> list[Any]:
    """Every number with where it comes from: the folders of the runs, or the place in the paper."""
    found = []
    for entry in entries:
        cell = gathered.cell(entry)
        record: dict[str, Any] = {"row": entry.row, "column": entry.column}
        if cell is not None:
            record["ours"] = {
                "mean": cell.mean,
                "deviation": cell.deviation,
                "values": list(cell.values),
                "runs": [os.path.relpath(folder, beside) for folder in cell.folders],
            }
            if entry.ours:
                record["ours"] |= {"finding": entry.ours.finding, "score": entry.ours.score}
            if entry.less:
                record["ours"]["less"] = [os.path.relpath(folder, beside) for folder in cell.less]
        if entry.paper is not None:
            error = {} if entry.paper.error is None else {"standard_error": entry.paper.error}
            record["paper"] = {"value": entry.paper.value, **error, "place": place, "setting": setting}
        if len(record) > 2:
            found.append(record)
    return found


def write(
    folder: Path,
    name: str,
    title: str,
    entries: list[Entry],
    gathered: Gathered,
    place: str,
    setting: str,
    notes: list[str],
    picture: str | None,
) -> Grid:
    """table.md, table.tex, table.json and, where there is one, figure.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    table = grid(entries, gathered)
    if picture:
        write_text(folder / "figure.svg", picture)
    write_text(folder / "table.md", markdown(title, table, notes, "figure.svg" if picture else ""))
    write_text(folder / "table.tex", latex(title, name, table, notes))
    facts = {
        "name": name,
        "title": title,
        "notes": notes,
        "entries": records(entries, gathered, folder, place, setting),
    }
    write_json(folder / "table.json", facts)
    return table
