"""The command line: arguments to the verbs of run.py, and what they return to the terminal."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import tyro
from rich.console import Console

from varcon import run, run_folder
from varcon.arguments import Demo, Download, Evaluate, Report, parse, read_seeds
from varcon.cli_train import refuse_torchrun, say_next, train, train_with_bar
from varcon.core import Findings, InputError, RunError
from varcon.deploy import commands as deployment
from varcon.encoders import FOR_VECTORS
from varcon.engine.allocator import keep_freed_memory
from varcon.engine.cores import use_free_cores
from varcon.engine.interrupt import Interrupted
from varcon.evaluations import (
    STANDARD,
    EvaluateSettings,
    FurtherSettings,
    chosen_evaluations,
)
from varcon.evaluations.transfer import given_targets
from varcon.files import FORBIDDEN, FULL
from varcon.limits import did_you_mean
from varcon.recipe import DIGITS, Recipe
from varcon.terminal import Bar, PlainConsole, doubts, findings_table, hardest_table, score_table, show

PROCESS = os.environ.get("RANK", "0")  # of several under torchrun; the first one speaks
SECONDS_TO_END = 3.0  # within which torchrun ends the others after one


OVERVIEW = """\
varcon: variational supervised contrastive learning

  varcon demo                 see it work on handwritten digits (half a minute)
  varcon download NAME        fetch cifar10, cifar100, flowers102, oxford_pets
  varcon train RECIPE         train the encoder a recipe describes, under runs/
  varcon train --data FOLDER  the same for images, by a recipe chosen for them
  varcon evaluate RUN         judge a run: neighbours, linear probe, map
  varcon report RUN [RUN...]  write one HTML page about one run or several
  varcon compare RECIPE       train several methods under one budget; a table
  varcon sweep RECIPE         train every combination of settings; a table
  varcon predict RUN IMAGE    tell the classes of images with a trained run
  varcon embed RUN FOLDER     write the features of a folder's images to a file
  varcon search RUN IMAGE     find the images of a folder that are most alike
  varcon export RUN           write the model as safetensors, onnx, pt2 or hub
  varcon serve RUN            a run as a web page: predictions, images, a map
  varcon reproduce NAME       make a table or figure of the paper again

Each command explains itself with --help. Recipes are in the folder recipes/.
"""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that it cannot write must not lose all the others
        sys.stdout.reconfigure(errors="backslashreplace")
    console = PlainConsole(quiet=PROCESS != "0", ends_with_reader=arguments[:1] in (["predict"], ["search"]))
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        console.print(OVERVIEW, end="")
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
        # A run that goes on does so with the threads it was begun with.
        begins = arguments[0] in AT_WORK and not {"-h", "--help", "--resume"} & {*arguments}
        if begins and (notice := use_free_cores()):
            console.print(notice, soft_wrap=True)
        VERBS[arguments[0]](arguments[1:], console)
        return 0
    except InputError as error:
        after_the_first()
        return say(error, 2)
    except Interrupted as error:
        return say(error, 128 + error.signal) if PROCESS == "0" else 128 + error.signal
    except RunError as error:
        after_the_first()
        return say(error, 1)
    except KeyboardInterrupt:
        return say("interrupted", 130)
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        return 0
    except OSError as error:
        return say(told(error), 2 if error.errno in (*FORBIDDEN, errno.ENOENT, errno.ENOTDIR) else 1)


def after_the_first() -> None:
    """Of a fault that all processes find one tells, and torchrun then ends the others; of one that is found
    elsewhere alone, those others."""
    if PROCESS != "0":
        time.sleep(SECONDS_TO_END)


def told(error: OSError) -> str:
    """In a sentence with its cure, where the cause is the disk's."""
    what = error.filename or "a file"
    if error.errno in FULL:
        return f"{what} cannot be written ({error.strerror}); free some space and start again"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"{what} cannot be reached ({error.strerror}); give another place"
    if error.errno in FORBIDDEN:
        return f"{what} may not be read or written ({error.strerror}); change its permissions or give another"
    return str(error)


def say(error: object, code: int) -> int:
    who = "varcon" if PROCESS == "0" else f"varcon, process {PROCESS}"
    with suppress(OSError):  # nobody reads any more
        print(f"{who}: {error}", file=sys.stderr)
    return code


def evaluate(arguments: list[str], console: Console) -> None:
    refuse_torchrun("evaluate")
    folder = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    recipe = run_folder.stored_recipe(folder) if folder else Recipe()
    learned = run_folder.learned_epsilon(folder) if folder else None
    further = FurtherSettings().at_temperature(recipe.method, learned)
    default = Evaluate(run=folder or tyro.MISSING, settings=recipe.evaluate, further=further)
    # A setting that is itself settings, or none, would else become a command of its own.
    chosen = parse(Evaluate, "evaluate", arguments, default=default, config=(tyro.conf.AvoidSubcommands,))
    only = chosen_evaluations(chosen.only, of_vectors=recipe.encoder.name in FOR_VECTORS)
    further = chosen.further.to_targets(given_targets(chosen.target, only))
    found: dict[str, Findings] = {}
    with Bar(console, "judging") as bar:

        def note(name: str, findings: Findings) -> None:
            found[name] = findings
            bar.note(f"judged by {name}")

        try:
            run.evaluate(
                chosen.run,
                chosen.settings,
                chosen.data_path,
                chosen.device,
                bar.progress,
                note,
                only,
                further,
                chosen.data_store,
            )
            failed = None
        except (InputError, RunError) as error:
            if not found:
                raise
            failed = error  # of one evaluation; what the others found is shown all the same
    together: set[str] = set()  # what one table shows
    needed = {"pixels", "knn", chosen.settings.linear.name, "discriminant"}  # by that table
    if set(STANDARD) <= {*only, "classifier"} and needed <= found.keys():
        console.print(score_table([found]))
        together = {"pixels", "knn", chosen.settings.linear.name, "discriminant", "classifier", "map2d"}
    for name in found:
        if name not in together and found[name].scores:
            console.print(findings_table(name, found[name]))
        if "hardest_files" in found[name].arrays:
            classes = run_folder.recorded_facts(chosen.run)["classes"]
            show(hardest_table(found[name], classes), console)
    for doubt in doubts(found):
        console.print(doubt, soft_wrap=True)
    if failed:
        raise failed
    say_next("report", chosen.run, console)


def evaluate_with_bar(folder: Path, settings: EvaluateSettings, console: Console) -> dict[str, Findings]:
    with Bar(console, "judging") as bar:
        return run.evaluate(
            folder, settings, progress=bar.progress, found=lambda name, _: bar.note(f"judged by {name}")
        )


def report(arguments: list[str], console: Console) -> None:
    chosen = parse(Report, "report", arguments)
    console.print(f"report: {run.report(list(chosen.runs), chosen.out)}", soft_wrap=True)


def demo(arguments: list[str], console: Console) -> None:
    refuse_torchrun("demo")
    chosen = parse(Demo, "demo", arguments)
    began = time.monotonic()
    out = chosen.out or free_folder(run_folder.RUNS / "demo")
    run_folder.refuse_run_folder(out, "demo")
    if out.exists() and any(not entry.name.startswith("seed-") for entry in out.iterdir()):
        raise InputError(f"{out} is not empty; give the demo a folder of its own with --out FOLDER")
    found, folders = [], []
    for seed in read_seeds(chosen.seeds):
        folder = out / f"seed-{seed}"
        recipe = replace(DIGITS, train=replace(DIGITS.train, seed=seed))
        to_continue = shlex.join(["varcon", "train", str(folder / "recipe.json"), "--resume"])
        train_with_bar(recipe, folder, False, f"varcon demo --seeds {seed}", to_continue, console)
        found.append(evaluate_with_bar(folder, recipe.evaluate, console))
        folders.append(folder)
    page = run.report(folders, out / "report.html")
    console.print(score_table(found))
    console.print(f"report: {page}  ({time.monotonic() - began:.0f} s in all)", soft_wrap=True)


def download(arguments: list[str], console: Console) -> None:
    chosen: Download = parse(Download, "download", arguments)
    from varcon.data.download import DATA_SETS
    from varcon.data.download import download as fetch

    try:
        with Bar(console, "downloading") as bar:
            folder, was_there = fetch(chosen.name, chosen.to, bar.bytes)
    except KeyboardInterrupt:
        command = shlex.join(["varcon", "download", *arguments])
        kept = f"stopped; what has arrived is kept in {chosen.to}"
        raise Interrupted(f"{kept}; continue with: {command}", signal.SIGINT) from None
    console.print(f"data: {folder}" + (" (already there)" if was_there else ""), soft_wrap=True)
    use = f"{DATA_SETS[chosen.name].use} {shlex.quote(str(folder))}"
    console.print(f"next: {use}", soft_wrap=True)


def free_folder(wanted: Path) -> Path:
    """The folder itself, or the first of folder-2, folder-3, ... that is free."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([wanted], numbered) if not folder.exists())


def of_many_runs(verb: str) -> Callable[[list[str], Console], None]:
    """A command whose imports the others do not wait for."""

    def command(arguments: list[str], console: Console) -> None:
        from varcon import cli_many

        getattr(cli_many, verb)(arguments, console)

    return command


VERBS: dict[str, Callable[[list[str], Console], None]] = {
    "demo": demo,
    "download": download,
    "train": train,
    "evaluate": evaluate,
    "report": report,
    "compare": of_many_runs("compare"),
    "sweep": of_many_runs("sweep"),
    "reproduce": of_many_runs("reproduce"),
    **deployment.VERBS,
}
AT_WORK = {"demo", "train", "evaluate", "compare", "sweep", "reproduce"}  # long enough to look around first
