import json
from pathlib import Path

from varcon.reproduce import tables
from varcon.reproduce.entries import Entry
from varcon.reproduce.gather import Gathered
from varcon.reproduce.paper import Value

NOBODY = Gathered({})
ENTRIES = [
    Entry("a & b", "top-1", measured=91.234, paper=Value(80.0, 0.07)),
    Entry("c_d", "top-1", measured=50.0),
    Entry("a & b", "theirs", paper=Value(70.5)),
    Entry("nobody", "top-1"),
]


def test_ours_and_the_paper_s_have_columns_of_their_own():
    assert tables.grid(ENTRIES, NOBODY) == [
        ["", "top-1", "paper: top-1", "paper: theirs"],
        ["a & b", "91.23", "80.0 ± 0.07", "70.5"],
        ["c_d", "50.00", "", ""],
    ]


def test_a_row_of_the_paper_needs_no_column():
    entries = [
        Entry("epoch 2", "mean", measured=0.1, decimals=5),
        Entry("epoch 10, paper", "mean", paper=Value(0.2), decimals=5),
    ]
    assert tables.grid(entries, NOBODY) == [
        ["", "mean"],
        ["epoch 2", "0.10000"],
        ["epoch 10, paper", "0.2"],
    ]


def test_latex_has_as_many_cells_as_columns_and_escapes():
    text = tables.latex(
        "A 5 % table", "x", tables.grid(ENTRIES, NOBODY), ["Ours: digits.", "Paper: ImageNet."]
    )
    assert "\\begin{tabular}{lrrr}" in text
    lines = text[text.index("\\toprule") : text.index("\\bottomrule")].splitlines()
    cells = [line.replace("\\&", "").count("&") for line in lines if line.endswith("\\\\")]
    assert cells == [3, 3, 3]
    assert "a \\& b & 91.23 & 80.0 $\\pm$ 0.07 & 70.5 \\\\" in text
    assert "c\\_d" in text
    assert "5 \\% table. Ours: digits. Paper: ImageNet." in text
    assert text.count("{") == text.count("}")


def test_what_a_failure_says_cannot_break_latex():
    grid = [["", "a"], ["[2] x", "1"]]
    text = tables.latex("T", "x", grid, ["x failed: RuntimeError: CUDA error\n\nCompile with [it]"])
    caption = next(line for line in text.splitlines() if "caption" in line)
    assert "CUDA error Compile with {[}it]" in caption
    assert "    {[}2] x & 1" in text


def test_every_number_has_its_source(tmp_path):
    tables.write(
        tmp_path, "x", "Title", ENTRIES, NOBODY, "Table 1", "ImageNet", ["o", "p", "q", "n"], "<svg></svg>"
    )
    found = json.loads((tmp_path / "table.json").read_text())["entries"]
    assert found[0]["paper"] == {
        "value": 80.0,
        "standard_error": 0.07,
        "place": "Table 1",
        "setting": "ImageNet",
    }
    assert found[0]["ours"]["values"] == [91.234]
    assert [(entry["row"], entry["column"]) for entry in found] == [
        ("a & b", "top-1"),
        ("c_d", "top-1"),
        ("a & b", "theirs"),
    ]
    text = (tmp_path / "table.md").read_text()
    assert (
        text.index("- o") < text.index("| a & b |") < text.index("![Title](figure.svg)") < text.index("- n")
    )
    assert Path(tmp_path / "figure.svg").read_text() == "<svg></svg>"
