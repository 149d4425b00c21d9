"""The command line: arguments to the verbs of run.py, and what they return to the terminal."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from varcon import compare as comparison
from varcon import parallel, run, runs
from varcon import reproduce as paper
from varcon import sweep as grids
from varcon.arguments import Compare, Demo, Evaluate, Report, Reproduce, Sweep, Train
from varcon.core import Data, Findings, InputError, RunError
from varcon.engine.allocator import keep_freed_memory
from varcon.engine.interrupt import Interrupted
from varcon.evaluations import (
    STANDARD,
    EvaluateSettings,
    FurtherSettings,
    chosen_evaluations,
)
from varcon.evaluations.transfer import parse_target
from varcon.recipe import DIGITS, Recipe, did_you_mean, load_recipe
from varcon.reproduce import Setup
from varcon.runs import Planned, Result
from varcon.terminal import Bar, bars, findings_table, score_table, show

PROCESS = os.environ.get("RANK", "0")  # of several under torchrun; the first one speaks

OVERVIEW = """\
varcon: variational supervised contrastive learning

  varcon demo                 see it work: train on handwritten digits, judge, report (half a minute)
  varcon train RECIPE         train the encoder a recipe describes, into a folder under runs/
  varcon evaluate RUN         judge a trained run: nearest neighbours, linear probe, map
  varcon report RUN [RUN...]  write one HTML page about a run, or about several side by side
  varcon compare RECIPE       train several methods under one budget and tabulate them
  varcon sweep RECIPE         train every combination of given settings and tabulate them
  varcon reproduce NAME       make a table or figure of the paper again, the paper's value beside ours

Each command explains itself with --help. Recipes are in the folder recipes/.
"""


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
    recipe = run.stored_recipe(folder) if folder else Recipe()
    further = FurtherSettings().at_temperature(recipe.method)
    default = Evaluate(run=folder or tyro.MISSING, settings=recipe.evaluate, further=further)
    # A setting that is itself settings, or none, would else become a command of its own.
    chosen = parse(Evaluate, "evaluate", arguments, default=default, config=(tyro.conf.AvoidSubcommands,))
    only, further = chosen_evaluations(chosen.only), chosen.further
    if chosen.target:
        targets = tuple(parse_target(text) for text in chosen.target)
        further = replace(
            further,
            transfer=replace(further.transfer, targets=targets),
            finetune=replace(further.finetune, target=targets[0]),
        )
    with Bar(console, "judging") as bar:
        found = run.evaluate(
            chosen.run,
            chosen.settings,
            chosen.data_path,
            chosen.device,
            bar.progress,
            lambda name, _: bar.note(f"judged by {name}"),
            only,
            further,
        )
    if set(STANDARD) <= {*only, "classifier"} and "knn" in found:
        console.print(score_table([found]))
    for name in (name for name in found if name not in STANDARD and not name.startswith("linear")):
        console.print(findings_table(name, found[name]))
    console.print(f"next: varcon report {chosen.run}", soft_wrap=True)


def evaluate_with_bar(
    folder: Path, settings: EvaluateSettings, data_path: Path | None, device: str, console: Console
) -> dict[str, Findings]:
    with Bar(console, "judging") as bar:
        return run.evaluate(
            folder, settings, data_path, device, bar.progress, lambda name, _: bar.note(f"judged by {name}")
        )


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
    refuse_torchrun("compare")
    command = shlex.join(["varcon", "compare", *arguments])
    ending = "-time" if chosen.budget == "time" else ""
    out = chosen.out or run.RUNS / f"compare-{run.run_name(chosen.recipe)}{ending}"
    methods = [name.strip() for name in chosen.methods.split(",")]
    seeds, where, devices = read_seeds(chosen.seeds), chosen.data_path, chosen_devices(chosen.devices)
    device = devices[0] if devices else None
    with going_on_with(command):
        with Bar(console, "planning") as bar:
            planned = comparison.plan(
                chosen.recipe, methods, seeds, out, chosen.budget, bar.progress, where, device
            )
        carry_out(planned, devices, out, "compare", "method", comparison.in_order, command, console)


def read_seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise InputError(f"--seeds is {text!r}; give whole numbers separated by commas") from None


def chosen_devices(text: str | None) -> list[str]:
    """None where the recipe says which."""
    return parallel.read_devices(text) if text else []


def refuse_torchrun(verb: str) -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"{verb} works in one process; on several GPUs, train each run with `torchrun --nproc-per-node N "
            "-m varcon train RECIPE --out RUN`, evaluate it, then `varcon report RUN RUN ...`"
        )


@contextmanager
def going_on_with(command: str) -> Iterator[None]:
    """Whenever it is stopped, the user learns how to go on."""
    try:
        yield
    except Interrupted as error:
        raise Interrupted(f"{error}; continue with: {command}", error.signal) from None
    except KeyboardInterrupt:  # not in training, where it is Interrupted: while planning, judging, drawing
        raise Interrupted(f"stopped; continue with: {command}", signal.SIGINT) from None


def sweep(arguments: list[str], console: Console) -> None:
    chosen = parse(Sweep, "sweep", arguments)
    refuse_torchrun("sweep")
    base = load_recipe(chosen.recipe)
    if chosen.data_path:
        base = replace(base, data=replace(base.data, path=str(chosen.data_path)))
    devices = chosen_devices(chosen.devices)
    if devices:
        base = replace(base, train=replace(base.train, device=devices[0]))
    out = chosen.out or run.RUNS / f"sweep-{run.run_name(chosen.recipe)}"
    command = shlex.join(["varcon", "sweep", *arguments])
    with going_on_with(command):
        with Bar(console, "planning") as bar:
            grid = grids.parse_grid(list(chosen.set))
            planned = grids.plan(base, grid, read_seeds(chosen.seeds), out, bar.progress)
        order = {(one.label, one.seed): place for place, one in enumerate(planned)}

        def in_order(results: list[Result]) -> list[Result]:
            return sorted(results, key=lambda result: order[result.label, result.seed])

        carry_out(planned, devices, out, "sweep", "settings", in_order, command, console)


def carry_out(
    planned: list[Planned],
    devices: list[str],
    out: Path,
    name: str,
    what: str,
    order: Callable[[list[Result]], list[Result]],
    command: str,
    console: Console,
) -> None:
    """Trains and judges every run, keeping the table up to date, and ends with the report."""
    results: list[Result] = []
    for _, result in carried_out(planned, devices, command, console):
        results = order([*results, result])
        runs.write(out, results, name, what)
    show(runs.table(results, what), console)
    console.print(f"table: {out / f'{name}.md'}", soft_wrap=True)
    places = {(one.label, one.seed): one.folder for one in planned}
    folders = [places[result.label, result.seed] for result in results if not result.failed]
    if folders:
        console.print(f"report: {run.report(folders, out / 'report.html')}", soft_wrap=True)
    failed = [f"{one.label}, seed {one.seed}" for one in results if one.failed]
    if failed:
        why = f"{out / f'{name}.md'} says why"
        raise RunError(f"{len(failed)} of {len(results)} runs failed ({'; '.join(failed)}): {why}")


def reproduce(arguments: list[str], console: Console) -> None:
    if arguments in ([], ["list"]):
        console.print(names_of_the_paper(), end="", markup=False, soft_wrap=True)
        return
    chosen = parse(
        Reproduce, "reproduce", arguments, description=f"{Reproduce.__doc__}\n\n{names_of_the_paper()}"
    )
    refuse_torchrun("reproduce")
    names, seeds = paper.chosen(chosen.names), read_seeds(chosen.seeds)
    devices = parallel.read_devices(chosen.devices)
    ending = f"-{paper.parse_data(chosen.data).name}" if chosen.data else ""
    out = chosen.out or run.RUNS / f"reproduce-{chosen.scale}{ending}"
    if (out / "recipe.json").exists() or out.is_file():
        raise InputError(f"{out} is a run or a file; put the tables elsewhere with --out FOLDER")
    targets = tuple(parse_target(text) for text in chosen.target)
    command = shlex.join(["varcon", "reproduce", *arguments])
    failed = []
    with going_on_with(command):
        with Bar(console, "planning") as bar:
            given = (str(chosen.corrupted or ""), str(chosen.real_labels or ""))
            setup, data = paper.set_up(chosen.scale, chosen.data, out, bar.progress, targets, *given)
            for name in names:
                paper.check_needs(name, paper.ARTIFACTS[name], setup)
        for name in names:
            failed += make_again(name, setup, data, seeds, devices, command, console)
    if failed:
        raise RunError(f"{len(failed)} runs failed ({'; '.join(failed)}): each table.md says why")


def make_again(
    name: str, setup: Setup, data: Data, seeds: list[int], devices: list[str], command: str, console: Console
) -> list[str]:
    """One table or figure; the runs that failed are returned."""
    with Bar(console, f"planning {name}") as bar:
        made = paper.plan(name, setup, data, seeds, bar.progress)
    results = list(carried_out(made.planned, devices, command, console))
    with Bar(console, name) as bar:
        folder, table = paper.write(made, results, run.pick_device(devices[0]), bar.progress)
    console.print(f"{made.artifact.title} ({made.artifact.place})", soft_wrap=True)
    show(table, console)
    console.print(f"{name}: {folder / 'table.md'}", soft_wrap=True)
    return [one.title for one, result in results if result.failed] + [one.label for one in made.impossible]


def names_of_the_paper() -> str:
    width = max(map(len, paper.ARTIFACTS))
    names = [f"  {name:{width}}  {one.shows} ({one.place})" for name, one in paper.ARTIFACTS.items()]
    scales = [f"  {name:{width}}  {one.text}" for name, one in paper.SCALES.items()]
    return "\n".join(["tables and figures:", *names, "scales:", *scales, ""])


def carried_out(
    planned: list[Planned], devices: list[str], command: str, console: Console
) -> Iterator[tuple[Planned, Result]]:
    """Every run as it comes to its end, with a line that says so."""
    devices = devices or [planned[0].recipe.train.device if planned else "auto"]
    with (
        bars(console, len(devices)) as places,
        closing(parallel.carry_out(planned, devices, command, places)) as ended,
    ):
        for one, result in ended:
            score = result.scores.get("kNN top-1")
            places[0].note(
                f"{one.title}: {result.failed or ('done' if score is None else f'kNN {score:.2f} %')}"
            )
            yield one, result


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
    "sweep": sweep,
    "reproduce": reproduce,
}
