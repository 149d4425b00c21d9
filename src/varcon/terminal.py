"""What a person sees while a run works: a live bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from varcon.core import Progress

SHOWN = {"loss": "loss", "kl": "KL", "nll": "NLL", "tau2": "tau2", "epsilon": "epsilon"}
SECONDS_BETWEEN_LINES = 15.0


class Bar:
    """Follows training when called with (progress, row), and data reading with (done, total, what)."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._live.add_task(title, total=None, numbers="", visible=False)
        self._began: tuple[float, int] | None = None
        self._last_line = time.monotonic()
        self._numbers = ""

    def step(self, progress: Progress, row: dict[str, float] | None) -> None:
        if row is not None:
            speed = f"{row['images_per_second']:,.0f} images/s"
            terms = [f"{label} {row[name]:.4f}" for name, label in SHOWN.items() if name in row]
            self._numbers = "  ".join([speed, *terms])
        self._show(self._title, progress.step, progress.total_steps, "step")

    def data(self, done: int, total: int, what: str) -> None:
        self._show(what, done, total, "image")

    def note(self, line: str) -> None:
        self._console.print(line, style="dim", soft_wrap=True)

    def _show(self, title: str, done: int, total: int, unit: str) -> None:
        self._live.update(
            self._task,
            description=title,
            completed=done,
            total=total,
            numbers=self._numbers,
            visible=done < total,
        )
        now = time.monotonic()
        if self._began is None or done < self._began[1]:
            self._began = (now, done)
        due = now - self._last_line > SECONDS_BETWEEN_LINES or done == total
        if not self._console.is_terminal and due:
            self._last_line = now
            began, first = self._began
            left = (now - began) / max(1, done - first) * (total - done)
            self._console.print(
                f"{title}: {unit} {done} of {total}, {left:.0f} s left  {self._numbers}", soft_wrap=True
            )

    def __enter__(self) -> Bar:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
