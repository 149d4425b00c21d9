"""What the commands that use a trained run have in common: arguments, and what is told beside the results."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console

from varcon import arguments as of_all_verbs
from varcon.core import InputError, OnProgress
from varcon.deploy.keeping import NotKept
from varcon.terminal import Bar, PlainConsole

Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
DataPath = Annotated[Path | None, tyro.conf.arg(name="data.path")]


def parse(kind: Any, verb: str, arguments: list[str]) -> Any:
    if "" in arguments:  # as of a shell's variable that is not set; Path would take it for the folder here
        raise InputError("one of the arguments is empty; give a file or a folder by its name")
    return of_all_verbs.parse(kind, verb, arguments)


class Beside(NamedTuple):
    """What is told beside the results."""

    progress: OnProgress
    console: Console

    def warn(self, sentences: Iterable[str]) -> int:
        found = [f"varcon: {sentence}" for sentence in sentences]
        for sentence in found:
            self.console.out(sentence, style="dim", highlight=False)
        return len(found)


@contextmanager
def beside(console: Console, title: str) -> Iterator[Beside]:
    """In a terminal, with the results; where those go elsewhere, on standard error."""
    aside = console if console.is_terminal else PlainConsole(stderr=True, quiet=console.quiet)
    with Bar(aside, title) as bar, warnings.catch_warnings():
        found, others = Beside(bar.progress, aside), warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            found.warn([str(message)]) if category is NotKept else others(message, category, *rest, **more)

        warnings.simplefilter("always", NotKept)
        warnings.showwarning = show
        yield found
