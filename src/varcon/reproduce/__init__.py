"""The paper's tables and figures, made again on one's own data: the paper's value beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from varcon import run
from varcon.core import Data, InputError, OnProgress
from varcon.data import load
from varcon.engine.check import check
from varcon.limits import meant_or
from varcon.recipe import differences, recipe_to_dict
from varcon.reproduce import stand_ins, tables
from varcon.reproduce.declarations import ARTIFACTS, Artifact
from varcon.reproduce.entries import Entry, Reading, Swept
from varcon.reproduce.figures import Drawn, Losses, Maps, Tau2
from varcon.reproduce.gather import FROM_JOURNALS, Gathered
from varcon.reproduce.paper import MEMORY
from varcon.reproduce.scales import SCALES
from varcon.reproduce.setup import Runs, Setup, parse_data, set_up
from varcon.runs import Planned, Result, check_run
from varcon.sweep import folder_name, plain

__all__ = [
    "ARTIFACTS",
    "SCALES",
    "Plan",
    "Setup",
    "check_needs",
    "chosen",
    "parse_data",
    "plan",
    "set_up",
    "write",
]


@dataclass(frozen=True)
class Plan:
    """What one name takes."""

    name: str
    artifact: Artifact
    setup: Setup
    entries: list[Entry]
    runs: dict[Runs, list[Planned]]  # one for each seed
    impossible: list[Result]  # runs that cannot be begun on these data, with the reason

    @property
    def planned(self) -> list[Planned]:
        return [one for several in self.runs.values() for one in several]


def chosen(names: tuple[str, ...]) -> list[str]:
    for name in names:
        if name != "all" and name not in ARTIFACTS:
            raise InputError(
                f"there is no table or figure {name!r}{meant_or(name, ARTIFACTS)} "
                f"choose from {', '.join(ARTIFACTS)}, or all"
            )
    return list(ARTIFACTS) if "all" in names else list(dict.fromkeys(names))


def plan(name: str, setup: Setup, data: Data, seeds: list[int], progress: OnProgress) -> Plan:
    """The runs; what can be known to fail is found here, before anything is trained."""
    artifact = ARTIFACTS[name]
    check_needs(name, artifact, setup)
    entries = artifact.content(setup)
    evaluations: dict[Runs, dict[str, None]] = {}  # ordered sets
    for reading in readings_of(entries):
        found = evaluations.setdefault(reading.runs, dict.fromkeys(artifact.also))
        if reading.finding not in FROM_JOURNALS:
            found[reading.finding] = None
    if setup.scale.stands_in:
        if any(runs.half for runs in evaluations):
            stand_ins.write_halves(setup, data)
        if artifact.needs == "acceptable labels" and not setup.real_labels:
            stand_ins.write_acceptable(setup, data)
    loaded = {setup.base.data: data}  # by its settings
    runs: dict[Runs, list[Planned]] = {}
    impossible = []
    for which, needed in evaluations.items():
        label = setup.label(which)
        for seed in seeds:
            recipe = setup.recipe(which, seed)
            folder = setup.out / "runs" / f"{folder_name(label)}-seed{seed}"
            only, further = tuple(needed), setup.further(recipe)
            one = Planned(label, seed, recipe, folder, only, further)
            if recipe.data not in loaded:
                loaded[recipe.data] = load(recipe.data, progress)
            try:
                if not one.finished:
                    there = loaded[recipe.data]
                    check(run.build_method(recipe, there), recipe, there, processes=1)
            except InputError as error:
                impossible.append(Result(label, seed, failed=str(error)))
                continue
            check_run(one, loaded[recipe.data])
            runs.setdefault(which, []).append(one)
    return Plan(name, artifact, setup, entries, runs, impossible)


def check_needs(name: str, artifact: Artifact, setup: Setup) -> None:
    if setup.scale.stands_in:
        if artifact.needs == "targets" and not setup.targets and len(setup.counts) < 4:
            raise InputError(
                f"{name} learns from half of the classes and transfers to the others, which takes four, and "
                f"the data have {len(setup.counts)}; give another data set with --target NAME=PATH"
            )
        return
    if artifact.needs == "targets" and not setup.targets:
        raise InputError(
            f"{name} needs other data sets to transfer to: give --target NAME=PATH, several times if you like"
        )
    if artifact.needs == "acceptable labels" and not setup.real_labels:
        raise InputError(
            f"{name} needs the acceptable labels of the test images: give --real-labels FILE, a JSON list of "
            "lists of class numbers"
        )


def write(
    made: Plan, results: list[tuple[Planned, Result]], device: str, progress: OnProgress
) -> tuple[Path, tables.Grid, list[str]]:
    """The name's table, figure and report, from the runs that came to their end, and what a reader of the
    table must know."""
    folder = made.setup.out / made.name
    good = {one.folder for one, result in results if not result.failed}
    folders = {
        which: {one.seed: one.folder for one in several if one.folder in good}
        for which, several in made.runs.items()
    }
    gathered = Gathered({which: found for which, found in folders.items() if found})
    entries, artifact = made.entries, made.artifact
    if artifact.measured:
        from varcon.reproduce.memory import growth

        entries = entries + growth(made.setup, device, progress)
    failures = [result for _, result in results if result.failed] + made.impossible
    picture = None
    if artifact.figure:
        picture = artifact.figure.draw(made.setup, entries, gathered, artifact.setting)
    title = f"{artifact.title} ({artifact.place} of the paper)"
    notes = notes_of(made, failures, device)
    table = tables.write(
        folder, made.name, title, entries, gathered, artifact.place, artifact.setting, notes, picture
    )
    several = [one for found in gathered.folders.values() for one in found.values()]
    if several:
        run.report(list(dict.fromkeys(several)), folder / "report.html")
    return folder, table, notes


def notes_of(made: Plan, failures: list[Result], device: str) -> list[str]:
    setup, artifact = made.setup, made.artifact
    paper = f"Paper: {artifact.setting} ({artifact.place})."
    if artifact.measured:
        ours = f"Ours: the loss and its gradient alone, 128 dimensions, float32, on {device}."
        return [ours, paper, *artifact.notes]
    seeds = len({one.seed for one in made.planned})
    spread = "; ± is the standard deviation over the seeds" if seeds > 1 else ""
    if any(entry.paper and entry.paper.error is not None for entry in made.entries):
        spread += ", the paper's its standard error" if seeds > 1 else "; the paper's ± is its standard error"
    trained = f"{epochs_of(made)} unless a row says otherwise"
    ours = f"Ours: {setup.where}, {trained}, {seeds} seed{'s' if seeds > 1 else ''}{spread}."
    differ = "The two do not compare in value: data, encoder or training differ."
    alike = setup.scale.name == "paper" and setup.published in artifact.data
    if alike and setup.as_imagenet:
        differ = "The two compare roughly: batches are not the paper's, nor is all that it leaves unsaid."
    compared = any(entry.paper for entry in made.entries)
    other = [differ] if compared and (setup.as_imagenet or not alike) else []
    said = [ours, paper, *other, *trained_otherwise(made), *artifact.notes]
    if any((one.finding, one.score) == ("linear", "last") for one in readings_of(made.entries)):
        said.append("Ours are the linear probe's at its last epoch, where nothing else is said.")
    if seeds > 1 and isinstance(artifact.figure, Drawn | Losses | Maps | Tau2):
        said.append("The figure is of the first seed's runs.")
    if isinstance(artifact.content, Swept):
        said += artifact.content.left_out(setup)
    if setup.as_imagenet:
        said.append(
            "A run has one device, and by the paper's figure a ResNet-50 takes "
            f"{MEMORY['VarCon']:.0f} GB for every 512 images of a batch: so ours are batches of "
            f"{setup.base.train.batch_size} unless a row says otherwise, where the paper has 4096, with the "
            "learning rate in proportion."
        )
    if setup.base.data.per_class:
        said.append(
            f"To be brief, {setup.base.data.per_class} training images of each class were used, of "
            f"{setup.side} pixels a side."
        )
    if artifact.needs == "targets" and not setup.targets:
        said.append(stand_ins.TARGETS)
    if artifact.needs == "acceptable labels" and not setup.real_labels:
        said.append(stand_ins.LABELS)
    return said + [f"{one.label}, seed {one.seed} failed: {one.failed}" for one in failures]


def trained_otherwise(made: Plan) -> list[str]:
    """Which methods have augmentation or training of their own, and what it is."""
    setup = made.setup
    usual = recipe_to_dict(setup.base)
    methods: dict[str, list[str]] = {}
    for name in dict.fromkeys(reading.runs.method for reading in readings_of(made.entries)):
        own = differences(usual, recipe_to_dict(setup.recipe(Runs(name))))
        words = [
            f"{place} {plain(value)}"
            for place, (_, value) in own.items()
            if place.startswith(("augment.", "train.")) and place not in ("train.seed", "train.snapshots")
        ]
        if words:
            methods.setdefault(", ".join(words), []).append(name)
    return [f"Trained by settings of their own: {', '.join(of)} ({words})." for words, of in methods.items()]


def readings_of(entries: list[Entry]) -> Iterator[Reading]:
    return (reading for entry in entries for reading in (entry.ours, entry.less) if reading)


def epochs_of(made: Plan) -> str:
    """`350 epochs`, or by method where the paper's differ within a table."""
    usual = made.setup.base.train.epochs
    epochs = {
        one.runs.method: made.setup.recipe(one.runs).train.epochs if one.runs.epochs else usual
        for one in readings_of(made.entries)
    }
    if len(set(epochs.values())) > 1:
        return ", ".join(f"{method} {count} epochs" for method, count in epochs.items())
    return f"{next(iter(epochs.values()), usual)} epochs"
