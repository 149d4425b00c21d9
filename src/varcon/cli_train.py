"""The command train: by a recipe, or by one that is chosen for a folder of images and written beside it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from varcon import run, run_folder
from varcon.arguments import Train, parse
from varcon.core import InputError
from varcon.data import DataSettings
from varcon.engine.interrupt import Interrupted
from varcon.files import from_home, write_text
from varcon.limits import did_you_mean
from varcon.recipe import Recipe, differences, load_recipe, recipe_to_dict
from varcon.suggest import Suggestion, chosen_warmup, is_edited, suggest, unsealed
from varcon.terminal import Bar

WARMUP = "--train.warmup-epochs"


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
        near = next((hint for a in arguments if (hint := did_you_mean(a.partition("=")[0], ["--data"]))), "")
        raise InputError(
            f"train needs a recipe first, for example: varcon train recipes/digits/varcon.toml; "
            f"or a folder of images: varcon train --data FOLDER{near}"
        )
    chosen = parse_train(recipe, arguments)
    path = Path(chosen.recipe)
    folder = chosen.out or run_folder.RUNS / run_folder.run_name(path)
    if chosen.resume and path.name == "recipe.json" and not chosen.out:
        folder = path.parent  # a run's own recipe names the run
    if chosen.resume and not folder.exists():
        console.print(f"there is no {folder} yet: the run begins", soft_wrap=True)
    augment = chosen.settings.augment
    for name in augment.without_effect():
        console.print(f"augment.{name} does nothing in the policy {augment.policy!r}", soft_wrap=True)
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
    if any(a.partition("=")[0] == "--method.name" for a in arguments):
        raise InputError(
            "a flag cannot change the method, for each has settings of its own; edit [method] in the recipe, "
            "or train several side by side: varcon compare RECIPE --methods varcon,ce"
        )
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
    # By the name that was given, though it be a link; one that ends with dots has none.
    name = path.name if path.name not in ("", "..") else path.resolve().name
    folder = from_home(Path(out)) if out else run_folder.RUNS / name
    if folder.resolve().is_relative_to(path.resolve()):
        raise InputError(
            f"the run's folder {folder} would lie inside the folder of images {path}; start from another "
            "folder, or give one elsewhere with --out"
        )
    target = folder.parent / f"{folder.resolve().name}.toml"
    arguments = [str(target), *rest]
    device = run.pick_device(take_flag("--train.device", rest)[0] or "auto")
    folder_alone: Recipe[Any] = Recipe(data=DataSettings("folder", data))
    asked = parse_train(folder_alone, [str(target), *flags_of("data", rest)]).settings.data
    with Bar(console, "looking at the images") as bar:
        found = suggest(path, device.partition(":")[0], bar.progress, asked)
    recipe = found.recipe
    if take_flag("--method.references", rest)[0] in ("batch", "leave-one-out"):  # of a batch's classes alone
        recipe = replace(recipe, method=replace(recipe.method, classes="present"))
    settings = parse_train(recipe, arguments).settings
    sets_warmup = any(a.partition("=")[0].replace("_", "-") == WARMUP for a in rest)
    if settings.train.epochs < found.recipe.train.epochs and not sets_warmup:
        warmup: float = chosen_warmup(settings.train.epochs)
        if (folder / "recipe.json").exists():  # a run that may be resumed has its own already
            warmup = run_folder.stored_recipe(folder).train.warmup_epochs
        settings = replace(settings, train=replace(settings.train, warmup_epochs=warmup))
    changed = differences(recipe_to_dict(found.recipe), recipe_to_dict(settings))
    if changed:
        told = ", ".join(
            f"{name} {ours} instead of {'nothing' if chosen == '' else chosen}"
            for name, (chosen, ours) in changed.items()
        )
        found = Suggestion(settings, [*found.reasons, f"Flags replace what was chosen: {told}."])
    text = found.as_recipe_file(train_command(arguments))
    refuse_other_recipe(target, text, folder, path, arguments)
    for reason in found.reasons:
        console.print(f"  {reason}", soft_wrap=True)

    def write() -> None:
        refuse_other_recipe(target, text, folder, path, arguments)  # edited while the images were read
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


def flags_of(section: str, arguments: list[str]) -> list[str]:
    """The flags of a section, each of which has one value, with their values."""
    found = []
    for place, argument in enumerate(arguments):
        if argument.startswith(f"--{section}."):
            found += arguments[place : place + (1 if "=" in argument else 2)]
    return found


def refuse_other_recipe(target: Path, text: str, folder: Path, images: Path, arguments: list[str]) -> None:
    """A recipe file may be the user's work: it stays unless it is what is chosen now, or was chosen for these
    images and not edited."""
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
    if not is_edited(there):  # whether a run by it may go on is that run's to say
        return
    _, rest = take_flag("--out", arguments)
    taken = (folder / "recipe.json").exists() and "--resume" not in rest
    where = ["--out", f"{folder}-2" if taken else str(folder)]
    raise InputError(
        f"{target} is there already and differs from what would be chosen now; train by it with "
        f"`{shlex.join([*launcher(), 'train', *rest, *where])}`, or remove it"
    )


def launcher() -> list[str]:
    """How this command was started."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    several = ["torchrun", "--nproc-per-node", processes, "-m", "varcon"]
    return several if processes != "1" else ["varcon"]


def refuse_torchrun(verb: str, cure: str = "start it without torchrun") -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(f"{verb} works in one process; {cure}")


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
            how = run_folder.recorded_facts(folder).get("steps", "")
            bar.note(f"trained {folder}" + (f"; steps ran as {how}" if "no GPU" not in how else ""))
            # Of several processes one speaks, and it has written the rows.
            if not console.quiet and (doubt := no_better_than_guessing(folder)):
                bar.note(doubt)
        except Interrupted as error:
            raise Interrupted(f"{error}; continue with: {to_continue}", error.signal) from None


def no_better_than_guessing(folder: Path) -> str:
    """A sentence on a run of VarCon that has learned nothing. Where the batches lack classes, guessing is
    easier than this knows, and it stays silent."""
    rows = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    confidence = json.loads(rows[-1]).get("confidence") if rows else None
    classes = len(run_folder.recorded_facts(folder)["classes"])
    if confidence is None or confidence > 1.05 / classes:
        return ""
    return (
        f"the confidence in an image's class ended at {confidence:.3f}, as by guessing among {classes}: "
        "nothing was learned; train longer, or at a lower train.learning_rate"
    )


def say_next(verb: str, folder: Path, console: Console) -> None:
    """A command that a shell takes as it stands."""
    console.print(f"next: {shlex.join(['varcon', verb, str(folder)])}", soft_wrap=True)
