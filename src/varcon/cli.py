"""The command line: arguments to the verbs of run.py, and what they return to the terminal."""

from __future__ import annotations

import io
import itertools
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from varcon import run, run_folder
from varcon.arguments import Demo, Download, Evaluate, Report, Train, from_home, parse
from varcon.core import Findings, InputError, RunError
from varcon.deploy import commands as deployment
from varcon.encoders import FOR_VECTORS
from varcon.engine.allocator import keep_freed_memory
from varcon.engine.interrupt import Interrupted
from varcon.evaluations import (
    STANDARD,
    EvaluateSettings,
    FurtherSettings,
    chosen_evaluations,
)
from varcon.evaluations.transfer import given_targets
from varcon.files import FULL, write_text
from varcon.limits import did_you_mean
from varcon.recipe import DIGITS, Recipe, differences, load_recipe, recipe_to_dict
from varcon.suggest import chosen_warmup, is_edited, suggest, unsealed
from varcon.terminal import Bar, findings_table, hardest_table, plain_console, score_table, show

PROCESS = os.environ.get("RANK", "0")  # of several under torchrun; the first one speaks

WARMUP = "--train.warmup-epochs"

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
    console = plain_console(quiet=PROCESS != "0", ends_with_reader=arguments[:1] in (["predict"], ["search"]))
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
        return say(of_full_disk(error) if error.errno in FULL else error, 1)


def of_full_disk(error: OSError) -> str:
    what = error.filename or "a file"
    return f"{what} cannot be written ({error.strerror}); free some space and start again"


def say(error: object, code: int) -> int:
    who = "varcon" if PROCESS == "0" else f"varcon, process {PROCESS}"
    with suppress(OSError):  # nobody reads any more
        print(f"{who}: {error}", file=sys.stderr)
    return code


def train(arguments: list[str], console: Console) -> None:
    begins: Callable[[], None] = run.nothing
    wants_help = any(a in ("-h", "--help") for a in arguments)
    if any(a.partition("=")[0] == "--data" for a in arguments) and not wants_help:
        recipe, arguments, begins = with_suggested_recipe(arguments, console)
    elif arguments and not arguments[0].startswith("-"):
        recipe = load_recipe(arguments[0])
    elif wants_help:
        recipe = Recipe()
    else:
        raise InputError(
            "train needs a recipe first, for example: varcon train recipes/digits/varcon.toml; "
            "or a folder of images: varcon train --data FOLDER"
        )
    chosen = parse_train(recipe, arguments)
    path = Path(chosen.recipe)
    folder = chosen.out or run_folder.RUNS / run_folder.run_name(path)
    if chosen.resume and path.name == "recipe.json" and not chosen.out:
        folder = path.parent  # a run's own recipe names the run
    if chosen.resume and not folder.exists():
        console.print(f"there is no {folder} yet: the run begins", soft_wrap=True)
    epochs, warmup = chosen.settings.train.epochs, chosen.settings.train.warmup_epochs
    if warmup >= epochs:
        console.print(
            f"train.warmup_epochs is {warmup:g}, train.epochs {epochs}: the learning rate only grows; lower "
            "the first or raise the second",
            soft_wrap=True,
        )
    command = train_command(arguments)
    train_with_bar(chosen.settings, folder, chosen.resume, command, f"{command} --resume", console, begins)
    say_next("evaluate", folder, console)


def parse_train(recipe: Recipe[Any], arguments: list[str]) -> Train[Any]:
    """The recipe's settings, but for those that the flags give."""
    named = not arguments[0].startswith("-")
    default: Train[Any] = Train(recipe=arguments[0] if named else tyro.MISSING, settings=recipe)
    of_this_method: Any = Train
    chosen: Train[Any] = parse(of_this_method[type(recipe.method)], "train", arguments, default=default)
    return chosen


def train_command(arguments: list[str]) -> str:
    """What begins this run."""
    return shlex.join([*launcher(), "train", *(a for a in arguments if a != "--resume")])


def with_suggested_recipe(
    arguments: list[str], console: Console
) -> tuple[Recipe[Any], list[str], Callable[[], None]]:
    """A recipe that is chosen for the folder of --data; the arguments with a recipe file in place of the
    folder; and what writes this file, to be edited, once the run begins: one that cannot leaves none."""
    data, rest = take_flag("--data", arguments)
    if not data or data.startswith("--"):
        raise InputError("--data needs a folder of images, for example: varcon train --data photos")
    path = Path(data).expanduser()
    if not arguments[0].startswith("-"):
        raise InputError(
            f"--data chooses a recipe for {path}, but {arguments[0]} is given too; leave out one of them, or "
            f"train by the recipe on these images with --data.name folder --data.path {shlex.quote(data)}"
        )
    out = take_flag("--out", rest)[0]
    folder = from_home(Path(out)) if out else run_folder.RUNS / path.resolve().name
    if folder.resolve().is_relative_to(path.resolve()):
        raise InputError(
            f"the run's folder {folder} would lie inside the folder of images {path}; start from another "
            "folder, or give one elsewhere with --out"
        )
    target = folder.parent / f"{folder.resolve().name}.toml"
    arguments = [str(target), *rest]
    device = run.pick_device(take_flag("--train.device", rest)[0] or "auto")
    with Bar(console, "looking at the images") as bar:
        found = suggest(path, device.partition(":")[0], bar.progress)
    settings = parse_train(found.recipe, arguments).settings
    sets_warmup = any(a.partition("=")[0].replace("_", "-") == WARMUP for a in rest)
    own = arguments
    if settings.train.epochs < found.recipe.train.epochs and not sets_warmup:
        warmup: float = chosen_warmup(settings.train.epochs)
        if (folder / "recipe.json").exists():  # a run that may be resumed has its own already
            warmup = run_folder.stored_recipe(folder).train.warmup_epochs
        # As a flag too: the recipe file keeps what was chosen, and the command at its head repeats the run.
        arguments = [*arguments, WARMUP, f"{warmup:g}"]
        settings = parse_train(found.recipe, arguments).settings
    text = found.as_recipe_file(train_command(arguments))
    refuse_other_recipe(target, text, folder, path, own)
    for reason in found.reasons:
        console.print(f"  {reason}", soft_wrap=True)
    changed = differences(recipe_to_dict(found.recipe), recipe_to_dict(settings))
    if changed:
        told = ", ".join(f"{name} {ours} instead of {chosen}" for name, (chosen, ours) in changed.items())
        console.print(f"  Flags replace what was chosen: {told}.", soft_wrap=True)

    def write() -> None:
        refuse_other_recipe(target, text, folder, path, own)  # edited while the images were read
        if not (target.exists() and (folder / "recipe.json").exists()):  # its head tells how a run was begun
            write_text(target, text)
        console.print(f"recipe: {target} (edit it, and train again with another --out)", soft_wrap=True)

    return found.recipe, arguments, write


def take_flag(flag: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of a flag, the last if it is given several times, and the arguments without it."""
    value, rest = None, []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, given = argument.partition("=")
        if name == flag:
            value = given if equals else next(remaining, None)
        else:
            rest.append(argument)
    return value, rest


def refuse_other_recipe(target: Path, text: str, folder: Path, images: Path, arguments: list[str]) -> None:
    """A recipe file may be the user's work: it stays unless it is what was chosen, whatever the flags, or
    was chosen for these images, was not edited and has no run."""
    if not target.exists():
        return
    there = target.read_text(encoding="utf-8")
    if there.partition("\n")[2] in (text.partition("\n")[2], unsealed(text).partition("\n")[2]):
        return  # but for the command, what is chosen; the files of earlier versions have no seal
    try:
        of = load_recipe(target).data.path
    except InputError:  # edited, and not yet a recipe
        of = str(images)
    if Path(of).expanduser().resolve() != images.resolve():
        raise InputError(
            f"{target} is there already and is for the images of {of or 'another data set'}, "
            f"not of {images}; give these a run of another name with --out FOLDER"
        )
    if not is_edited(there) and not (folder / "recipe.json").exists():
        return
    raise InputError(
        f"{target} is there already and differs from what would be chosen now; train by it with "
        f"`{shlex.join([*launcher(), 'train', *arguments])}`, or remove it"
    )


def launcher() -> list[str]:
    """How this command was started."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    several = ["torchrun", "--nproc-per-node", processes, "-m", "varcon"]
    return several if processes != "1" else ["varcon"]


def train_with_bar(
    recipe: Recipe[Any],
    folder: Path,
    resume: bool,
    command: str,
    to_continue: str,
    console: Console,
    begins: Callable[[], None] = run.nothing,
) -> None:
    with Bar(console, f"training {folder.name}") as bar:
        try:
            run.train(recipe, folder, resume, bar.step, bar.progress, command, begins)
            how = json.loads((folder / "recipe.json").read_text(encoding="utf-8")).get("steps", "")
            bar.note(f"trained {folder}" + (f"; steps ran as {how}" if "no GPU" not in how else ""))
        except Interrupted as error:
            raise Interrupted(f"{error}; continue with: {to_continue}", error.signal) from None


def say_next(verb: str, folder: Path, console: Console) -> None:
    """A command that a shell takes as it stands."""
    console.print(f"next: {shlex.join(['varcon', verb, str(folder)])}", soft_wrap=True)


def evaluate(arguments: list[str], console: Console) -> None:
    folder = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    recipe = run_folder.stored_recipe(folder) if folder else Recipe()
    learned = run_folder.learned_epsilon(folder) if folder else None
    further = FurtherSettings().at_temperature(recipe.method, learned)
    default = Evaluate(run=folder or tyro.MISSING, settings=recipe.evaluate, further=further)
    # A setting that is itself settings, or none, would else become a command of its own.
    chosen = parse(Evaluate, "evaluate", arguments, default=default, config=(tyro.conf.AvoidSubcommands,))
    only = chosen_evaluations(chosen.only, of_vectors=recipe.encoder.name in FOR_VECTORS)
    further = chosen.further.to_targets(given_targets(chosen.target, only))
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
    together: set[str] = set()  # what one table shows
    if set(STANDARD) <= {*only, "classifier"}:
        console.print(score_table([found]))
        together = {"pixels", "knn", chosen.settings.linear.name, "classifier", "map2d"}
    for name in found:
        if name not in together and found[name].scores:
            console.print(findings_table(name, found[name]))
        if "hardest_files" in found[name].arrays:
            classes = run_folder.recorded_facts(chosen.run)["classes"]
            show(hardest_table(found[name], classes), console)
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
    chosen = parse(Demo, "demo", arguments)
    began = time.monotonic()
    out = chosen.out or free_folder(run_folder.RUNS / "demo")
    found, folders = [], []
    for seed in chosen.seeds:
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
