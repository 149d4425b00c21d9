import io
import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from varcon import terminal
from varcon.core import Findings, Progress
from varcon.terminal import Bar, bars, doubts

ROW = {"images_per_second": 12345.6, "loss": 1.5, "kl": 1.0, "nll": 0.5, "tau2": 0.11, "epsilon": 0.02}


@pytest.fixture
def now(monkeypatch):
    """The bars' own clock. The process's must go on: event loops of test servers wait by it."""
    found = [0.0]
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


def test_a_log_gets_a_line_now_and_then(now):
    console = Console(file=io.StringIO(), width=200)
    with Bar(console, "training x") as bar:
        for step in range(1, 101):
            now[0] += 1.0
            bar.step(Progress(step, 100, 10), ROW)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 7  # six by the clock, and the last
    assert lines[0] == (
        "training x: 16 of 100, 84 s left  12,346 images/s  loss 1.5000  KL 1.0000  NLL 0.5000  "
        "tau2 0.1100  epsilon 0.0200"
    )
    assert lines[-1].startswith("training x: 100 of 100, 0 s left")


def test_work_that_has_just_begun_has_no_time_left(now):
    """Its first line may be due at once, after other work that was silent."""
    console = Console(file=io.StringIO(), width=200)
    with Bar(console, "x") as bar:
        for done in (0, 50, 100):
            now[0] += 16.0
            bar.progress(done, 100, "clustering")
    assert console.file.getvalue().splitlines() == [
        "clustering: 0 of 100",
        "clustering: 50 of 100, 16 s left",
        "clustering: 100 of 100, 0 s left",
    ]


def test_a_terminal_gets_a_live_bar():
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with Bar(console, "training x") as bar:
        bar.progress(3, 10, "decoding images")
        bar._live.refresh()
        bar.step(Progress(7, 100, 10), ROW)
        bar._live.refresh()
        bar.note("judged")
    shown = console.file.getvalue()
    for words in ("decoding images", "3/10", "training x", "7/100", "12,346 images/s", "KL 1.0000", "judged"):
        assert words in shown


def test_bytes_are_shown_as_megabytes_that_end_once(now):
    """Of a download that goes on after ten million bytes, and of a small one."""
    console = Console(file=io.StringIO(), width=200)
    with Bar(console, "downloading") as bar:
        for done in (10_000_000, 12_900_000, 13_499_999, 13_500_000):
            bar.bytes(done, 13_500_000, "downloading x")
            now[0] += 16.0
        bar.bytes(502, 502, "downloading y")
    assert console.file.getvalue().splitlines() == [
        "downloading x, MB: 12 of 14, 16 s left",
        "downloading x, MB: 13 of 14, 11 s left",
        "downloading x, MB: 14 of 14, 0 s left",
        "downloading y, MB: 1 of 1, 0 s left",
    ]


@pytest.mark.parametrize("missing", ["kl", "tau2"])
def test_a_method_without_a_term_is_shown_without_it(missing):
    console = Console(file=io.StringIO(), width=200)
    with Bar(console, "x") as bar:
        bar.step(Progress(1, 1, 1), {name: value for name, value in ROW.items() if name != missing})
    assert terminal.SHOWN[missing] not in console.file.getvalue()
    assert "loss 1.5000" in console.file.getvalue()


@pytest.mark.parametrize(
    "title", ["training digits-varcon", f"training {'long-name-' * 20}seed0 (3 of 12)", "日本" * 60]
)
@pytest.mark.parametrize(("width", "numbers"), [(60, ""), (80, "images/s"), (100, "images/s"), (200, "tau2")])
def test_a_bar_in_a_narrow_terminal_has_its_count_and_time(width, numbers, title):
    """At the end of the row are as many numbers as have room."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    with Bar(console, title) as bar:
        bar.step(Progress(70_000, 100_000, 10), ROW)
        with console.capture() as shown:
            console.print(bar._live.get_renderable())
    line = re.sub(r"\x1b\[[0-9;]*m", "", shown.get())
    assert line.count("\n") == 1
    assert re.search(r"\w+.* ━{8}.* 70000/100000 -:--:-- ", line)
    assert numbers in line
    assert title[:6] in line
    assert title[-6:] in line


def test_a_narrow_terminal_loses_the_last_numbers_first():
    numbers = ("9 images/s", "loss 1.5", "KL 1.0")
    found = [terminal.as_many_as_fit(numbers, width) for width in (28, 27, 19, 9)]
    assert found == ["9 images/s  loss 1.5  KL 1.0", "9 images/s  loss 1.5", "9 images/s", ""]


@pytest.mark.parametrize(
    ("spread", "encoder", "pixels", "said"),
    [
        (0.4, 80.0, 60.0, []),
        (0.4, 60.0, 60.0, []),
        (0.002, 80.0, 60.0, ["collapsed"]),
        (0.4, 50.0, 60.0, ["the raw input is 10.0 points better"]),
        (0.002, 50.0, 60.0, ["collapsed", "raw input"]),
    ],
)
def test_doubts(spread, encoder, pixels, said):
    scores = {"rank": {"spread": spread}, "knn": {"top1": encoder}, "pixels": {"top1": pixels}}
    found = doubts({name: Findings(one) for name, one in scores.items()})
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))
    assert doubts({}) == []


def test_several_bars_share_a_display():
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with bars(console, 2) as (first, second):
        first.begin("run a")
        second.begin("run b")
        first.step(Progress(7, 100, 10), ROW)
        second.step(Progress(9, 100, 10), None)
        first._live.refresh()
    shown = console.file.getvalue()
    for words in ("run a", "7/100", "run b", "9/100"):
        assert words in shown


def test_a_wide_table_keeps_its_numbers_whole():
    console = Console(file=io.StringIO(), width=40)
    numbers = [f"{place}.12345" for place in range(10)]
    terminal.show([["", *"abcdefghij"], ["a row with a long name", *numbers]], console)
    assert all(number in console.file.getvalue() for number in numbers)
    assert console.width == 40


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_with_long_heads_keeps_its_cells_and_words_whole(width, is_terminal):
    """Heads wrap between words in a terminal, and not at all in a file."""
    head = [
        "method",
        "kNN top-1",
        "linear probe, last",
        "own classifier",
        "minutes a run",
        "images/s",
        "seeds",
    ]
    rows = [["varcon-gpaco", "99.47 ± 0.12", "99.13 ± 0.12", "33.00 ± 0.50", "0.20", "12,345", "0, 1 failed"]]
    output = io.StringIO()
    terminal.show([head, *rows], Console(file=output, width=width, force_terminal=is_terminal, no_color=True))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue()).splitlines()
    assert any(all(cell in line for cell in rows[0]) for line in lines)
    assert all(any(word in line.split() for line in lines) for title in head for word in title.split())
    assert len({len(line) for line in lines}) == 1
    if not is_terminal or width == 200:
        assert any(all(title in line for title in head) for line in lines)


def test_names_with_brackets_are_shown_as_they_are(capsys):
    name = "cats [old] [/x] :cat: [bold]"
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with Bar(console, name) as bar:
        bar.step(Progress(7, 100, 10), None)
        bar._live.refresh()
    assert name in console.file.getvalue()
    plain = terminal.PlainConsole()
    with Bar(plain, name) as bar:
        bar.note(f"trained {name}")
        bar.progress(3, 3, name)
    terminal.show([["method", name], [name, "1.5"]], plain)
    shown = capsys.readouterr().out
    assert f"trained {name}\n{name}: 3 of 3" in shown
    assert shown.count(name) == 4


@pytest.mark.parametrize("ends", [False, True])
def test_a_console_that_nobody_reads_is_silent(ends, monkeypatch):
    """Of the work that only prints, no more is done."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as file:
        monkeypatch.setattr("sys.stdout", file)
        console = terminal.PlainConsole(ends_with_reader=ends)
        if ends:
            with pytest.raises(BrokenPipeError):
                console.print("one")
        else:
            console.print("one")
        console.print("two")
        assert console.quiet


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [("--version", 0), ("report --help", 0), ("report --nope", 2)]
)
def test_a_stream_that_was_closed_from_the_beginning_is_no_failure(arguments, code, closed):
    """As a daemon's may be."""
    command = f"{shlex.quote(sys.executable)} -m varcon {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr
