"""Tables to take away, read back."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from reports.test_collect import add_finding, make_run

from varcon.reports.collect import read_runs
from varcon.reports.groups import group_by_recipe
from varcon.reports.tables import Cell, Column, Table, compared, escaped

TOP1 = Column("kNN, %", "knn", "top1")
TABLE = Table("t", ["a|b", "%"], [[Cell("x_1 & y"), Cell("9.5 ± 0.2")], [Cell("τ₂"), Cell("—")]])


def test_markdown_has_a_rule_and_escapes_its_bars() -> None:
    assert TABLE.markdown() == "| a\\|b | % |\n| --- | ---: |\n| x_1 & y | 9.5 ± 0.2 |\n| τ₂ | — |\n"


def test_latex_is_a_booktabs_table() -> None:
    lines = TABLE.latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"x\_1 \& y & 9.5 $\pm$ 0.2 \\" in lines
    assert r"$\tau$$_2$ & -- \\" in lines
    assert lines[-1] == r"\end{tabular}"
    assert all(len(re.findall(r"(?<!\\)&", line)) == 1 for line in lines if line.endswith(r"\\"))


def test_latex_cannot_be_broken_by_a_name() -> None:
    text = escaped("\\input{x} $%#_^~\n&")
    assert text == r"\textbackslash{}input\{x\} \$\%\#\_\textasciicircum{}\textasciitilde{} \&"
    assert escaped("[1] *") == "{[}1] {*}"  # else an option of the command before it


def test_names_too_long_for_half_the_page_have_all_of_it() -> None:
    assert TABLE.room == Table("t", ["a"], []).room == "half"
    assert replace(TABLE, shape="large").room == "large"
    long = [Cell("giant_white_arum_lily " * 3), Cell("9.5")]
    assert replace(TABLE, rows=[*TABLE.rows, long]).room == "wide"
    assert replace(TABLE, head=["name", "unbreakable" * 6]).room == "wide"
    assert replace(TABLE, head=["name", "words " * 30]).room == "half"  # a head has as many lines as it needs


def runs(tmp_path: Path, *methods: tuple[str, int, float | None]) -> list[Path]:
    folders = []
    for name, seed, top1 in methods:
        folders.append(make_run(tmp_path / f"{name}-{seed}", seed, name=name))
        if top1 is not None:
            add_finding(folders[-1], "knn", {"top1": top1})
    return folders


def test_a_comparison_has_means_and_where_they_come_from(tmp_path: Path) -> None:
    values = [90.0, 91.0, 93.0]
    folders = runs(tmp_path, *(("varcon", seed, value) for seed, value in enumerate(values)), ("ce", 0, 80.0))
    (table,) = compared("t", group_by_recipe(read_runs(folders)), [TOP1, Column("none", "linear", "last")])
    assert table.head == ["recipe", "kNN, %"]  # a column of nothing is left out
    first, second = table.rows
    assert first[0] == Cell("varcon", ("varcon-0", "varcon-1", "varcon-2"))
    assert first[1].text == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert first[1].origin == ", ".join(f"varcon-{seed}/findings/knn.json" for seed in range(3))
    assert [cell.text for cell in second] == ["ce", "80.00"]


def test_a_number_of_fewer_runs_says_so(tmp_path: Path) -> None:
    folders = runs(tmp_path, ("varcon", 0, 90.0), ("varcon", 1, None), ("ce", 0, 80.0))
    (table,) = compared("t", group_by_recipe(read_runs(folders)), [TOP1])
    assert table.rows[0][1] == Cell("90.00 (n = 1)", ("varcon-0",), "knn")


def test_one_recipe_is_shown_run_by_run(tmp_path: Path) -> None:
    folders = runs(tmp_path, ("varcon", 0, 90.0), ("varcon", 1, 92.0), ("varcon", 2, None))
    (table,) = compared("t", group_by_recipe(read_runs(folders)), [TOP1])
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["varcon-0", "90.00"],
        ["varcon-1", "92.00"],
        ["mean ± standard deviation", f"91.00 ± {np.sqrt(2):.2f} (n = 2)"],
    ]


def test_nothing_makes_no_table(tmp_path: Path) -> None:
    groups = group_by_recipe(read_runs(runs(tmp_path, ("varcon", 0, None), ("ce", 0, None))))
    assert compared("t", groups, [TOP1]) == []
