"""The command line: arguments to the verbs of run.py, and what they return to the terminal."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic

import tyro
from rich import box
from rich.console import Console
from rich.table import Column, Table

from varcon import compare as comparison
from varcon import run
from varcon.budget import Budget
from varcon.compare import Result
from varcon.core import Findings, InputError, RunError
from varcon.engine.allocator import keep_freed_memory
from varcon.engine.interrupt import Interrupted
from varcon.evaluations import EvaluateSettings
from varcon.methods import METHODS
from varcon.recipe import DIGITS, MethodSettings, Recipe, did_you_mean, load_recipe
from varcon.terminal import Bar

PROCESS = os.environ.get("RANK", "0")  # of several under torchrun; the first one speaks

OVERVIEW = """\
varcon: variational supervised contrastive learning

  varcon demo                 see it work: train on handwritten digits, judge, report (half a minute)
  varcon train RECIPE         train the encoder a recipe describes, into a folder under runs/
  varcon evaluate RUN         judge a trained run: nearest neighbours, linear probe, map
  varcon report RUN [RUN...]  write one HTML page about a run, or about several side by side
  varcon compare RECIPE       train several methods under one budget and tabulate them

Each command explains itself with --help. Recipes are in the folder recipes/.
"""


@dataclass
class Train(Generic[MethodSettings]):
    """Train the encoder a recipe describes. Every setting of the recipe is a flag that overrides it."""

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """a .toml recipe, or the recipe.json of an earlier run"""
    settings: Annotated[Recipe[MethodSettings], tyro.conf.arg(name="")]
    resume: bool = False
    """go on with the run in the folder, or begin it where there is none"""
    out: Path | None = None
    """the run's folder; by default runs/ and the recipe's name"""


@dataclass
class Evaluate:
    """Judge a trained run by nearest neighbours, by a linear probe and by a map of its test images."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """the folder of a finished run"""
    settings: Annotated[EvaluateSettings, tyro.conf.arg(name="")]
    data_path: Annotated[Path | None, tyro.conf.arg(name="data.path")] = None
    """where the data lie now, if they have moved since training"""
    device: str = "auto"
    """auto, cpu or cuda"""


@dataclass
class Report:
    """Write one self-contained HTML page about a run, or about several side by side."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")]
    """folders of runs"""
    out: Path | None = None
    """the page; by default report.html in the run's folder, or beside the folders of several"""


@dataclass
class Compare:
    """Train several methods on the same data, encoder, augmentation and budget, and put them side by side.

    RECIPE's own method is taken as it is there. The settings and views of another come from the recipe of
    its name beside RECIPE, where there is one. Started again, it goes on where it stopped; the table and the
    report hold every finished run of the folder, also those of earlier calls with other methods or seeds. A
    folder whose runs were begun with another recipe or budget is refused. Times are measured once and kept
    in the folder's plan.json.
    """

    recipe: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RECIPE")]
    """what all have in common: a .toml recipe"""
    methods: str = ",".join(METHODS)
    """names, separated by commas"""
    seeds: str = "0"
    """numbers, separated by commas; one run of every method for each"""
    budget: Budget = "images"
    """what is equal: the images seen (each view is one), or the time trained (what the slowest needs then)"""
    out: Path | None = None
    """folder for runs, table and report; by default runs/compare-, the recipe's name and, if timed, -time"""
    data_path: Annotated[Path | None, tyro.conf.arg(name="data.path")] = None
    """where the data lie, if not where RECIPE has them"""
    device: str | None = None
    """auto, cpu or cuda, for every run; by default RECIPE's"""


@dataclass
class Demo:
    """Train on scikit-learn's handwritten digits, judge the result and write the report."""

    seeds: tuple[int, ...] = (0,)
    """one run for each; several show the spread"""
    out: Path | None = None
    """folder for the runs and the report; by default runs/demo, or runs/demo-2 and so on if taken"""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console(highlight=False, quiet=PROCESS != "0")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        console.print(OVERVIEW, end="", markup=False)
        return 0
    if arguments[0] == "--version":
        from varcon import __version__

        console.print(f"varcon {__version__}")
        return 0
    keep_freed_memory()
    try:
        if arguments[0] not in VERBS:
            hint = did_you_mean(arguments[0], VERBS) or f"; choose one of {', '.join(VERBS)}"
            raise InputError(f"there is no command {arguments[0]!r}{hint}")
        VERBS[arguments[0]](arguments[1:], console)
        return 0
    except InputError as error:  # all processes find the same fault; one says so
        return say(error, 2) if PROCESS == "0" else 2
    except Interrupted as error:
        return say(error, 128 + error.signal) if PROCESS == "0" else 128 + error.signal
    except RunError as error:
        return say(error, 1)
    except KeyboardInterrupt:
        return say("interrupted", 130)
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        return 0
    except OSError as error:  # a full disk, a folder that may not be written
        return say(error, 1)


def say(error: object, code: int) -> int:
    who = "varcon" if PROCESS == "0" else f"varcon, process {PROCESS}"
    print(f"{who}: {error}", file=sys.stderr)
    return code


def parse(kind: Any, verb: str, arguments: list[str], **defaults: Any) -> Any:
    return tyro.cli(kind, args=arguments, prog=f"varcon {verb}", **defaults)


def train(arguments: list[str], console: Console) -> None:
    wants_help = any(a in ("-h", "--help") for a in arguments)
    if not arguments or (arguments[0].startswith("-") and not wants_help):
        raise InputError("train needs a recipe first, for example: varcon train recipes/digits/varcon.toml")
    named = not arguments[0].startswith("-")
    recipe = load_recipe(arguments[0]) if named else Recipe()
    default: Train[Any] = Train(recipe=arguments[0] if named else tyro.MISSING, settings=recipe)
    of_this_method: Any = Train
    chosen = parse(of_this_method[type(recipe.method)], "train", arguments, default=default)
    path = Path(chosen.recipe)
    folder = chosen.out or run.RUNS / run.run_name(path)
    if chosen.resume and path.name == "recipe.json" and not chosen.out:
        folder = path.parent  # a run's own recipe names the run
    command = shlex.join([*launcher(), "train", *(a for a in arguments if a != "--resume")])
    train_with_bar(chosen.settings, folder, chosen.resume, command, f"{command} --resume", console)
    console.print(f"next: varcon evaluate {folder}", soft_wrap=True)


def launcher() -> list[str]:
    """How this command was started."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    several = ["torchrun", "--nproc-per-node", processes, "-m", "varcon"]
    return several if processes != "1" else ["varcon"]


def train_with_bar(
    recipe: Recipe[Any], folder: Path, resume: bool, command: str, to_continue: str, console: Console
) -> None:
    with Bar(console, f"training {folder.name}") as bar:
        try:
            run.train(recipe, folder, resume, bar.step, bar.progress, command)
            how = json.loads((folder / "recipe.json").read_text(encoding="utf-8")).get("steps", "")
            bar.note(f"trained {folder}" + (f"; steps ran as {how}" if "no GPU" not in how else ""))
        except Interrupted as error:
            raise Interrupted(f"{error}; continue with: {to_continue}", error.signal) from None


def evaluate(arguments: list[str], console: Console) -> None:
    folder = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    settings = run.stored_recipe(folder).evaluate if folder else EvaluateSettings()
    default = Evaluate(run=folder or tyro.MISSING, settings=settings)
    chosen = parse(Evaluate, "evaluate", arguments, default=default)
    found = evaluate_with_bar(chosen.run, chosen.settings, chosen.data_path, chosen.device, console)
    console.print(score_table([found]))
    console.print(f"next: varcon report {chosen.run}", soft_wrap=True)


def evaluate_with_bar(
    folder: Path, settings: EvaluateSettings, data_path: Path | None, device: str, console: Console
) -> dict[str, Findings]:
    with Bar(console, "judging") as bar:
        return run.evaluate(
            folder, settings, data_path, device, bar.progress, lambda name, _: bar.note(f"judged by {name}")
        )


def score_table(runs: list[dict[str, Findings]]) -> Table:
    """Test accuracy in percent, the mean over the runs."""

    probe = "linear" if "linear" in runs[0] else "linear-augmented"

    def mean(name: str, score: str) -> str:
        return f"{statistics.fmean(found[name].scores[score] for found in runs):.2f}"

    seeds = f", mean of {len(runs)} seeds" if len(runs) > 1 else ""
    table = Table(f"test accuracy, %{seeds}", "top-1", "top-5", box=box.SIMPLE_HEAD)
    k = f"kNN (k = {runs[0]['knn'].scores['k']:.0f})"
    table.add_row(f"{k}, raw pixels", mean("pixels", "top1"), mean("pixels", "top5"))
    table.add_row(f"{k}, encoder", mean("knn", "top1"), mean("knn", "top5"))
    table.add_row(f"{probe} probe, last epoch", mean(probe, "last"), mean(probe, "top5"))
    table.add_row(f"{probe} probe, best epoch", mean(probe, "best"), "")
    return table


def report(arguments: list[str], console: Console) -> None:
    chosen = parse(Report, "report", arguments)
    console.print(f"report: {run.report(list(chosen.runs), chosen.out)}", soft_wrap=True)


def demo(arguments: list[str], console: Console) -> None:
    chosen = parse(Demo, "demo", arguments)
    began = time.monotonic()
    out = chosen.out or free_folder(run.RUNS / "demo")
    found, folders = [], []
    for seed in chosen.seeds:
        folder = out / f"seed-{seed}"
        recipe = replace(DIGITS, train=replace(DIGITS.train, seed=seed))
        to_continue = shlex.join(["varcon", "train", str(folder / "recipe.json"), "--resume"])
        train_with_bar(recipe, folder, False, f"varcon demo --seeds {seed}", to_continue, console)
        found.append(evaluate_with_bar(folder, recipe.evaluate, None, "auto", console))
        folders.append(folder)
    page = run.report(folders, out / "report.html")
    console.print(score_table(found))
    console.print(f"report: {page}  ({time.monotonic() - began:.0f} s in all)", soft_wrap=True)


def compare(arguments: list[str], console: Console) -> None:
    chosen = parse(Compare, "compare", arguments)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            "compare works in one process; on several GPUs, train each run with `torchrun --nproc-per-node N "
            "-m varcon train RECIPE --out RUN`, evaluate it, then `varcon report RUN RUN ...`"
        )
    command = shlex.join(["varcon", "compare", *arguments])
    try:
        compare_with_bars(chosen, command, console)
    except Interrupted as error:
        raise Interrupted(f"{error}; continue with: {command}", error.signal) from None
    except KeyboardInterrupt:  # not in training, where it is Interrupted: while planning, judging, drawing
        raise Interrupted(f"stopped; continue with: {command}", signal.SIGINT) from None


def compare_with_bars(chosen: Compare, command: str, console: Console) -> None:
    ending = "-time" if chosen.budget == "time" else ""
    out = chosen.out or run.RUNS / f"compare-{run.run_name(chosen.recipe)}{ending}"
    methods = [name.strip() for name in chosen.methods.split(",")]
    try:
        seeds = [int(seed) for seed in chosen.seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds is {chosen.seeds!r}; give whole numbers separated by commas") from None
    with Bar(console, "planning") as bar:
        planned = comparison.plan(
            chosen.recipe, methods, seeds, out, chosen.budget, bar.progress, chosen.data_path, chosen.device
        )
    results: list[Result] = []
    for number, one in enumerate(planned, start=1):
        title = f"{one.method}, seed {one.seed}"
        with Bar(console, f"{title} ({number} of {len(planned)})") as bar:
            result = comparison.carry_out(one, bar.step, bar.progress, command)
            score = "" if result.failed else f"kNN {result.scores['kNN top-1']:.2f} %"
            bar.note(f"{title}: {result.failed or score}")
        results = comparison.in_order([*results, result])
        comparison.write(out, results)
    show_comparison(out, results, console)


def show_comparison(out: Path, results: list[Result], console: Console) -> None:
    head, *rows = comparison.table(results)
    # In a narrow terminal heads may wrap, but no method and no number loses its end.
    columns = [
        Column(title, no_wrap=True) if title == "method" else Column(title, overflow="fold") for title in head
    ]
    shown = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    console.print(f"table: {out / 'compare.md'}", soft_wrap=True)
    folders = [out / f"{one.method}-seed{one.seed}" for one in results if not one.failed]
    if folders:
        console.print(f"report: {run.report(folders, out / 'report.html')}", soft_wrap=True)
    failed = [f"{one.method}, seed {one.seed}" for one in results if one.failed]
    if failed:
        why = f"{out / 'compare.md'} says why"
        raise RunError(f"{len(failed)} of {len(results)} runs failed ({'; '.join(failed)}): {why}")


def free_folder(wanted: Path) -> Path:
    """The folder itself, or the first of folder-2, folder-3, ... that is free."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([wanted], numbered) if not folder.exists())


VERBS: dict[str, Callable[[list[str], Console], None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "report": report,
    "compare": compare,
}
