"""What a person sees: a live bar in a terminal, or a line now and then in a log, and tables at the end."""

from __future__ import annotations

import errno
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column, Table
from rich.text import Text

from varcon.core import Findings, Progress

SHOWN = {"loss": "loss", "kl": "KL", "nll": "NLL", "tau1": "tau1", "tau2": "tau2", "epsilon": "epsilon"}
BETWEEN_NUMBERS = "  "
SECONDS_BETWEEN_LINES = 15.0
HARDEST_SHOWN = 10
COLLAPSED = 0.01  # spread of features, below which they are all the same; a good encoder's is 0.3 or more


class PlainConsole(Console):
    """On which text is what it says: a folder's name may hold [brackets] and :colons:.

    Once nobody reads it any more, as behind `| head` or where the terminal is closed, it is silent and the
    work goes on, to be saved; unless it `ends_with_reader`, since the text is all that the work is for.
    """

    def __init__(self, stderr: bool = False, quiet: bool = False, ends_with_reader: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
        self._ends_with_reader = ends_with_reader

    def _check_buffer(self) -> None:  # of rich, which calls it to write
        try:
            super()._check_buffer()
        except OSError as error:
            # A closed terminal gives the one; the other, of a pipe, early versions of rich do not catch.
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(self.file)
        if self._ends_with_reader:
            raise BrokenPipeError


def to_nowhere(stream: IO[str]) -> None:
    """What was not taken would else be written once more as Python ends, and fail once more."""
    with suppress(OSError, AttributeError):  # it is no file of the system
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def flush_or_drop() -> None:
    """The last of what was printed, which nobody may be reading any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            to_nowhere(stream)


class Bar:
    """`step` follows training, `progress` any other work that counts what it does."""

    def __init__(self, console: Console, title: str, live: RichProgress | None = None) -> None:
        """`live` is a display that it shares with other bars, and that is theirs to start and stop."""
        self._console = console
        self._title = title
        self._shares = live is not None
        self._live = live or Display(console)
        self._task = self._live.add_task(title, total=None, numbers=(), visible=False)
        self._shown = ("", 0)
        self._done = 0
        self._began = (0.0, 0)  # when the work now shown began, and how much of it was done already
        self._last_line = time.monotonic()
        self._numbers: tuple[str, ...] = ()

    def begin(self, title: str) -> None:
        """Another run, whose steps go under its own title."""
        self._title, self._numbers = title, ()

    def step(self, progress: Progress, row: dict[str, float] | None) -> None:
        if row is not None:
            speed = f"{row['images_per_second']:,.0f} images/s"
            terms = [f"{label} {row[name]:.4f}" for name, label in SHOWN.items() if name in row]
            self._numbers = (speed, *terms)
        self._show(self._title, progress.step, progress.total_steps, self._numbers)

    def progress(self, done: int, total: int, what: str) -> None:
        self._show(what, done, total, ())

    def bytes(self, done: int, total: int, what: str) -> None:
        """The same for work that counts bytes, which are shown as megabytes."""
        whole = -(-total // 10**6)
        self._show(f"{what}, MB", done // 10**6 if done < total else whole, whole, ())

    def note(self, line: str) -> None:
        self._console.print(line, style="dim", soft_wrap=True)

    def _show(self, title: str, done: int, total: int, numbers: tuple[str, ...]) -> None:
        now = time.monotonic()
        if (title, total) != self._shown or done < self._done:
            self._shown, self._began = (title, total), (now, done)
            self._live.reset(self._task, description=title, completed=done, total=total)
        self._live.update(self._task, completed=done, numbers=numbers, visible=done < total)
        self._done = done
        due = now - self._last_line > SECONDS_BETWEEN_LINES
        if not self._console.is_terminal and (due or done == total):
            self._last_line = now
            since, timed = now - self._began[0], done - self._began[1]
            # Of work that has just begun nobody knows yet how long it takes.
            known = timed or done == total
            left = f", {since / max(1, timed) * (total - done):.0f} s left" if known else ""
            words = BETWEEN_NUMBERS.join((f"{title}: {done} of {total}{left}", *numbers))
            self._console.print(words, soft_wrap=True)

    def __enter__(self) -> Bar:
        if not self._shares:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._shares:
            self._live.stop()


class Display(RichProgress):
    """Bars of which the name, the count and the time left are seen in a terminal of any usual width."""

    def __init__(self, console: Console) -> None:
        self._width = lambda: console.width  # it may change while work is shown
        self._bar = BarColumn()
        self._parts = (self._bar, MofNCompleteColumn(), TimeRemainingColumn())
        super().__init__(*self._parts, console=console, disable=not console.is_terminal, transient=True)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """A name takes half of what bar, count and time leave, where there are numbers to show beside it; of
        those as many are shown as have room, the first ones first."""
        shown = [task for task in tasks if task.visible]
        self._bar.bar_width = 24 if self._width() >= 100 else 12
        count = max((2 * len(f"{task.total or 0:.0f}") + 1 for task in shown), default=0)
        spaces = len(self._parts) + 1
        room = max(8, self._width() - self._bar.bar_width - count - len("10:00:00") - spaces)
        numbers = any(task.fields["numbers"] for task in shown)
        titles = [shortened(task.description, max(room // 2, 24) if numbers else room) for task in shown]
        room -= max(map(cell_len, titles), default=0)
        table = Table.grid(*(Column(no_wrap=True) for _ in range(spaces + 1)), padding=(0, 1))
        for task, title in zip(shown, titles, strict=True):
            fitting = as_many_as_fit(task.fields["numbers"], room)
            table.add_row(Text(title), *(part(task) for part in self._parts), Text(fitting))
        return table


def shortened(text: str, width: int) -> str:
    """Without its middle, where it is too long: names differ at their ends."""
    if cell_len(text) <= width:
        return text
    head = width // 2
    return f"{set_cell_size(text, head)}…{set_cell_size(text[::-1], width - head - 1)[::-1]}"


def as_many_as_fit(words: Sequence[str], width: int) -> str:
    rows = (BETWEEN_NUMBERS.join(words[:number]) for number in range(len(words), 0, -1))
    return next((row for row in rows if cell_len(row) <= width), "")


@contextmanager
def bars(console: Console, number: int) -> Iterator[list[Bar]]:
    """A bar for each of several processes, below one another."""
    with Display(console) as live:
        yield [Bar(console, "", live) for _ in range(number)]


def score_table(runs: list[dict[str, Findings]]) -> Table:
    """Test accuracy in percent, the mean over the runs."""

    probe = "linear" if "linear" in runs[0] else "linear-augmented"

    def mean(name: str, score: str) -> str:
        return f"{statistics.fmean(found[name].scores[score] for found in runs):.2f}"

    seeds = f", mean of {len(runs)} seeds" if len(runs) > 1 else ""
    table = Table(f"test accuracy, %{seeds}", "top-1", "top-5", box=box.SIMPLE_HEAD)
    k = f"kNN (k = {runs[0]['knn'].scores['k']:.0f})"
    table.add_row(f"{k}, raw input", mean("pixels", "top1"), mean("pixels", "top5"))
    table.add_row(f"{k}, encoder", mean("knn", "top1"), mean("knn", "top5"))
    table.add_row(f"{probe} probe, last epoch", mean(probe, "last"), mean(probe, "top5"))
    table.add_row(f"{probe} probe, best epoch", mean(probe, "best"), "")
    table.add_row(
        "linear discriminants (varcon predict)", mean("discriminant", "top1"), mean("discriminant", "top5")
    )
    if all("classifier" in found for found in runs):
        table.add_row("own classifier", mean("classifier", "top1"), mean("classifier", "top5"))
    return table


def doubts(found: dict[str, Findings]) -> list[str]:
    """What should give pause to whoever reads the scores."""
    said = []
    if "rank" in found and (spread := found["rank"].scores["spread"]) < COLLAPSED:
        said.append(
            f"All images have nearly the same features (spread {spread:.4f}, of at most 1): training has "
            "collapsed. A lower learning rate often helps."
        )
    if "knn" in found and "pixels" in found:
        ours, theirs = (found[name].scores["top1"] for name in ("knn", "pixels"))
        if ours < theirs:
            said.append(
                f"By nearest neighbours the raw input is {theirs - ours:.1f} points better than the encoder: "
                "see in the report whether the loss has fallen, and train longer or at another learning "
                "rate; where images are few, add some or start from trained weights (encoder.weights)."
            )
    return said


def show(table: list[list[str]], console: Console) -> None:
    """A head and rows. In a narrow terminal heads wrap between words; no word and no number is cut: where
    these alone are wider than the terminal, its own lines wrap. In a file nothing wraps."""
    head, *rows = table
    first = [head[0], *(max(title.split(), key=len, default="") for title in head[1:])]  # what is never cut
    widths = [max(map(len, column)) for column in zip(first, *rows, strict=True)]
    between = 2 * len(widths) + 2  # spaces, and the lines that this kind of table does not draw
    spare = max(0, console.width - sum(widths) - between)
    for place, title in enumerate(head):
        missing = max(0, len(title) - widths[place])
        more = min(missing, spare) if console.is_terminal else missing
        widths[place], spare = widths[place] + more, spare - more
    # Given every width, rich has none to choose: left to itself it takes from cells what it gives to heads.
    columns = [Column(title, width=width, overflow="fold") for title, width in zip(head, widths, strict=True)]
    shown = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        shown.add_row(*row)
    width, console.width = console.width, max(console.width, sum(widths) + between)
    console.print(shown)
    console.width = width


def findings_table(name: str, findings: Findings) -> Table:
    table = Table(name, "", box=box.SIMPLE_HEAD)
    for score, value in findings.scores.items():
        table.add_row(score, f"{value:.4g}")
    return table


def hardest_table(findings: Findings, classes: list[str]) -> list[list[str]]:
    """The training images that fit their own class least, to be shown; a report has more of them."""
    names = ("files", "labels", "rivals", "confidence")
    shown = (findings.arrays[f"hardest_{name}"][:HARDEST_SHOWN] for name in names)
    rows = [
        [str(file), classes[label], classes[rival], f"{p:.3f}"]
        for file, label, rival, p in zip(*shown, strict=True)
    ]
    return [["hardest training images", "class", "looks like", "p of its class"], *rows]
