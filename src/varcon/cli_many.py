"""The commands that carry out many runs: compare, sweep and reproduce."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from varcon import compare as comparison
from varcon import parallel, run, run_folder, runs
from varcon import reproduce as paper
from varcon import sweep as grids
from varcon.arguments import Compare, Reproduce, Sweep, parse, read_seeds
from varcon.cli_train import refuse_torchrun
from varcon.core import Data, InputError, RunError
from varcon.encoders import FOR_VECTORS
from varcon.engine.interrupt import Interrupted
from varcon.evaluations import FurtherSettings, chosen_evaluations
from varcon.evaluations.transfer import Target, given_target, given_targets
from varcon.methods import METHODS
from varcon.recipe import Recipe, load_recipe
from varcon.reproduce import Setup
from varcon.runs import Planned, Result
from varcon.terminal import Bar, bars, show

EQUAL_TERMS = (
    "All methods are trained as {} says (augmentation {}, learning rate {:g}, weight decay {:g}); only "
    "method settings and views are a method's own. What suits the method that these were chosen for may not "
    "suit the others."
)
ONE_BY_ONE = (
    "on several GPUs, train each run with `torchrun --nproc-per-node N -m varcon train RECIPE --out RUN`, "
    "evaluate it, then `varcon report RUN RUN ...`"
)
CHOOSING = (
    "These are scores on the test images: to choose by them, hold out training images instead, with "
    "--set data.held_out=0.1, and judge what was chosen on the test images once."
)

HELD_OUT = "These are scores on training images that were held out, not on the test images."
BUDGETS = {"images": "see equally many images", "time": "train equally long"}


def compare(arguments: list[str], console: Console) -> None:
    chosen = parse(Compare, "compare", arguments)
    refuse_torchrun("compare", ONE_BY_ONE)
    command = shlex.join(["varcon", "compare", *arguments])
    ending = "-time" if chosen.budget == "time" else ""
    out = chosen.out or run_folder.RUNS / f"compare-{run_folder.run_name(chosen.recipe)}{ending}"
    methods = [name.strip() for name in chosen.methods.split(",")]
    seeds, where, devices = read_seeds(chosen.seeds), chosen.data_path, chosen_devices(chosen.devices)
    judges = read_judges(chosen.only, chosen.target, load_recipe(chosen.recipe))
    device = devices[0] if devices else None
    with going_on_with(command):
        with Bar(console, "planning") as bar:
            planned = comparison.plan(
                chosen.recipe, methods, seeds, out, chosen.budget, bar.progress, where, device
            )
        base = planned[0].recipe
        note = EQUAL_TERMS.format(
            chosen.recipe.name, base.augment.policy, base.train.learning_rate, base.train.weight_decay
        )
        epochs = {one.label: one.recipe.train.epochs for one in planned}
        counted = ", ".join(f"{name} {count}" for name, count in epochs.items())
        note += f" Epochs are such that all {BUDGETS[chosen.budget]}: {counted}."
        # The table has the runs of earlier calls too.
        earlier = {path.name.rpartition("-seed")[0] for path in out.glob("*-seed*")}
        shown = [name for name in METHODS if name in {*methods, *earlier}]
        if unset := comparison.by_default(chosen.recipe, shown):
            alone = f"Beside {chosen.recipe} lies no recipe of {', '.join(unset)}: method settings are the "
            alone += "defaults, and views this recipe's, or as many as a method needs."
            note = f"{note} {alone}"
            console.print(alone, soft_wrap=True)
        judged, order = judges.of(planned), comparison.in_order
        tabulate(judged, devices, out, "compare", "method", order, note, command, console)


class Judges(NamedTuple):
    names: tuple[str, ...]
    targets: tuple[Target, ...]

    def of(self, planned: list[Planned]) -> list[Planned]:
        """The same runs, to be judged by these evaluations."""
        if "maps" in self.names and not all(one.recipe.train.snapshots for one in planned):
            raise InputError(
                "maps are of encoders that runs keep on their way, and these keep none: set train.snapshots "
                "in the recipe, as in [0, 10, 50]"
            )
        further = FurtherSettings().to_targets(self.targets)
        return [
            replace(one, only=self.names, further=further.at_temperature(one.recipe.method))
            for one in planned
        ]


def read_judges(only: str, targets: tuple[str, ...], recipe: Recipe[Any]) -> Judges:
    names = chosen_evaluations(only, of_vectors=recipe.encoder.name in FOR_VECTORS)
    judges = Judges(names, given_targets(targets, names))
    if "transfer" in judges.names and not targets:
        raise InputError("--only names transfer; say where to with --target NAME=PATH")
    if "real" in judges.names:
        raise InputError(
            "real takes a file of labels, which this command has no flag for; judge the runs afterwards: "
            "varcon evaluate RUN --only real --real.labels FILE"
        )
    return judges


def chosen_devices(text: str | None) -> list[str]:
    """None of them where the recipe says which."""
    return parallel.read_devices(text) if text else []


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
    refuse_torchrun("sweep", ONE_BY_ONE)
    base = load_recipe(chosen.recipe).with_data_path(chosen.data_path)
    devices, judges = chosen_devices(chosen.devices), read_judges(chosen.only, chosen.target, base)
    if devices:
        base = replace(base, train=replace(base.train, device=devices[0]))
    out = chosen.out or run_folder.RUNS / f"sweep-{run_folder.run_name(chosen.recipe)}"
    command = shlex.join(["varcon", "sweep", *arguments])
    with going_on_with(command):
        with Bar(console, "planning") as bar:
            grid = grids.parse_grid(list(chosen.set))
            if "method.name" in grid:
                raise InputError(
                    "sweep changes settings of one method; several side by side: "
                    f"varcon compare {chosen.recipe} --methods {','.join(map(str, grid['method.name']))}"
                )
            planned = judges.of(grids.plan(base, grid, read_seeds(chosen.seeds), out, bar.progress))
        order = {(one.label, one.seed): place for place, one in enumerate(planned)}

        def in_order(results: list[Result]) -> list[Result]:
            return sorted(results, key=lambda result: order[result.label, result.seed])

        note = "" if all(one.recipe.data.held_out for one in planned) else CHOOSING
        tabulate(planned, devices, out, "sweep", "settings", in_order, note, command, console)


def tabulate(
    planned: list[Planned],
    devices: list[str],
    out: Path,
    name: str,
    what: str,
    order: Callable[[list[Result]], list[Result]],
    note: str,
    command: str,
    console: Console,
) -> None:
    """Trains and judges every run, keeping the table up to date, and ends with the report."""
    if all(one.recipe.data.held_out for one in planned):
        note = f"{note} {HELD_OUT}".strip()
    results: list[Result] = []
    for _, result in with_bars(planned, devices, command, console):
        results = order([*results, result])
        there = {(result.label, result.seed) for result in results}
        pending = [one for one in planned if one.finished and (one.label, one.seed) not in there]
        runs.write(out, results, name, what, note, pending)
    show(runs.table(results, what), console)
    if note:
        console.print(note, soft_wrap=True)
    console.print(f"table: {out / f'{name}.md'}", soft_wrap=True)
    places = {(one.label, one.seed): one.folder for one in planned}
    folders = [places[result.label, result.seed] for result in results if result.scores]
    if folders:
        console.print(f"report: {run.report(folders, out / 'report.html', note)}", soft_wrap=True)
    failed = [f"{one.label}, seed {one.seed}" for one in results if one.failed]
    if failed:
        why = f"{out / f'{name}.md'} says why"
        raise RunError(f"{len(failed)} of {len(results)} runs failed ({'; '.join(failed)}): {why}")


def reproduce(arguments: list[str], console: Console) -> None:
    help_text = f"{cleandoc(Reproduce.__doc__ or '')}\n\n{names_of_the_paper()}"
    chosen = parse(Reproduce, "reproduce", arguments, description=help_text)
    if chosen.names in ((), ("list",)):
        console.print(names_of_the_paper(), end="", soft_wrap=True)
        return
    refuse_torchrun("reproduce", ONE_BY_ONE)
    names, seeds = paper.chosen(chosen.names), read_seeds(chosen.seeds)
    devices = parallel.read_devices(chosen.devices)
    ending = f"-{paper.parse_data(chosen.data).name}" if chosen.data else ""
    out = chosen.out or run_folder.RUNS / f"reproduce-{chosen.scale}{ending}"
    run_folder.refuse_run_folder(out, "tables")
    targets = tuple(given_target(text) for text in chosen.target)
    command = shlex.join(["varcon", "reproduce", *arguments])
    failed = []
    with going_on_with(command):
        with Bar(console, "planning") as bar:
            setup, data = paper.set_up(
                chosen.scale,
                chosen.data,
                out,
                bar.progress,
                targets,
                store=str(chosen.store or ""),
                corrupted=str(chosen.corrupted or ""),
                real_labels=str(chosen.real_labels or ""),
            )
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
    results = list(with_bars(made.planned, devices, command, console))
    with Bar(console, name) as bar:
        folder, table, notes = paper.write(made, results, run.pick_device(devices[0]), bar.progress)
    console.print(f"{made.artifact.title} ({made.artifact.place})", soft_wrap=True)
    show(table, console)
    for note in notes:
        console.print(note, soft_wrap=True)
    console.print(f"{name}: {folder / 'table.md'}", soft_wrap=True)
    return [one.title for one, result in results if result.failed] + [one.label for one in made.impossible]


def names_of_the_paper() -> str:
    width = max(map(len, paper.ARTIFACTS))
    names = [f"  {name:{width}}  {one.shows} ({one.place})" for name, one in paper.ARTIFACTS.items()]
    scales = [f"  {name:{width}}  {one.text}" for name, one in paper.SCALES.items()]
    return "\n".join(["tables and figures:", *names, "", "scales:", *scales, ""])


def with_bars(
    planned: list[Planned], devices: list[str], command: str, console: Console
) -> Iterator[tuple[Planned, Result]]:
    """Every run as it comes to its end, with a line that says so."""
    devices = devices or [planned[0].recipe.train.device if planned else "auto"]
    with (
        bars(console, len(devices)) as places,
        closing(parallel.carry_out(planned, devices, command, places)) as ended,
    ):
        for one, result in ended:
            titles = (title for title in ("kNN top-1", "linear probe, last") if title in result.scores)
            score = next((f"{title.split()[0]} {result.scores[title]:.2f} %" for title in titles), "done")
            places[0].note(f"{one.title}: {result.failed or score}")
            yield one, result
