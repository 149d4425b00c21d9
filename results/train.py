"""Train, judge and keep the runs behind RESULTS.md, which experiments.toml beside this file lists.

    python results/train.py --list                                  # every run's command, and which are kept
    python results/train.py --data FOLDER search                    # a group, what is not kept of it
    python results/train.py --data FOLDER cifar100/r18-ce search/r18-auto
    python results/train.py --data FOLDER --again cifar100/r18-ce   # kept or not
    python results/train.py --data FOLDER --minutes 25 search       # only what will be done by then

FOLDER holds CIFAR as `data.path` of a recipe names it. A run that was stopped goes on where it was. How long
one takes is known by the kept runs of its encoder on the same device; where there are none, it is begun
whatever the time.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import results
import torch

from varcon.cli import main as varcon
from varcon.cli_train import parse_train
from varcon.evaluations import chosen_evaluations
from varcon.evaluations.linear import LinearProbe
from varcon.recipe import Recipe, load_recipe
from varcon.run import pick_device
from varcon.run_folder import device_name
from varcon.terminal import flush_or_drop

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "results/experiments.toml"
LONGER = 1.1  # than the quickest kept run, which a run may take
ON_CROPS = LinearProbe(augment="resized-crop")
SECONDS_AROUND = 45.0  # for reading the data and judging


@dataclass(frozen=True)
class Experiment:
    name: str  # where it is kept: group, name and seed
    arguments: tuple[str, ...]  # of `varcon train`
    judge: str  # evaluations, for `varcon evaluate --only`
    crops: bool = False  # whether a linear probe on crops, as the authors' program has it, judges it too

    @property
    def command(self) -> str:
        return shlex.join(["varcon", "train", *self.arguments])

    @property
    def recipe(self) -> Recipe[Any]:
        with contextlib.chdir(ROOT):
            return parse_train(load_recipe(self.arguments[0]), [*self.arguments]).settings

    @property
    def kept(self) -> bool:
        return (results.HERE / self.name).exists()

    @property
    def state(self) -> str:
        """Whether it is kept, and what of its evaluations is lacking since they have become more."""
        if not self.kept:
            return ""
        found = {path.stem for path in (results.HERE / self.name / "findings").iterdir()}
        wanted = [*chosen_evaluations(self.judge), *[ON_CROPS.name] * self.crops]
        lacking = [name for name in wanted if name not in {*found, "classifier"}]
        return f" (kept, without {', '.join(lacking)})" if lacking else " (kept)"


def experiments(path: Path) -> Iterator[Experiment]:
    groups = tomllib.loads(path.read_text(encoding="utf-8"))
    judges = {group: described.pop("judge") for group, described in groups.items()}
    runs = {f"{group}/{name}": one for group, described in groups.items() for name, one in described.items()}
    for name, one in runs.items():
        for seed in one.get("seeds", [0]):
            of_seed = ["--train.seed", str(seed)] if seed else []
            yield Experiment(
                f"{name}-seed{seed}",
                (*changed(runs, name), *of_seed),
                judges[name.partition("/")[0]],
                one.get("crops", False),
            )


def changed(runs: dict[str, dict[str, Any]], name: str) -> list[str]:
    """A recipe and the settings changed in it, after those of the run that this one is `like`."""
    one = runs[name]
    start = changed(runs, one["like"]) if "like" in one else [one["recipe"]]
    return start + shlex.split(one.get("settings", ""))


def expected_seconds(recipe: Recipe[Any], device: str) -> float:
    """By the quickest kept run of this encoder on the device; 0 where there is none."""

    def passes(settings: dict[str, Any]) -> float:
        seen = 1 - settings["data"]["held_out"]
        return settings["train"]["epochs"] * settings["augment"]["views"] * seen

    records = [run for run in results.every_run() if run.device == device]
    of_one = [
        run.training_seconds / passes(run.recipe)
        for run in records
        if run.setting("encoder.name") == recipe.encoder.name and run.training_seconds
    ]
    return LONGER * min(of_one) * passes(asdict(recipe)) + SECONDS_AROUND if of_one else 0.0


def train(one: Experiment, data: Path, runs: Path) -> int:
    """All in this process: what a run has compiled serves the next."""
    run = runs / one.name
    of_data = ["--data.path", str(data)]
    again = ["--resume"] if run.exists() else []
    judging = [["--only", one.judge]]
    if one.crops:
        judging.append(["--only", "linear", "--linear.augment", ON_CROPS.augment])
    with contextlib.chdir(ROOT):  # where recipes/ is
        status = varcon(["train", *one.arguments, *of_data, "--out", str(run), *again])
        for settings in judging:
            status = status or varcon(["evaluate", str(run), *settings, *of_data])
            if not status:
                results.keep(run, one.name)  # each time: what is judged last takes longest
    return status


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="groups or runs, a run with or without its seed; none: all")
    parser.add_argument("--data", type=Path, help="the folder that holds the data sets")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/results"), help="where whole runs are written"
    )
    parser.add_argument("--again", action="store_true", help="also what is kept, in place of it")
    parser.add_argument("--minutes", type=float, help="begin no run that takes longer than is left of these")
    parser.add_argument("--list", action="store_true", help="show commands, train nothing")
    chosen = parser.parse_args(arguments)
    every = list(experiments(EXPERIMENTS))
    for name in chosen.names:
        if not any(named(one, name) for one in every):
            parser.error(f"{EXPERIMENTS.name} has no run or group {name!r}; --list shows them")
    # In the order asked for.
    wanted = list(dict.fromkeys(one for name in chosen.names for one in every if named(one, name))) or every
    if chosen.list:
        with contextlib.suppress(BrokenPipeError):  # the reader, such as head, has seen enough
            for one in wanted:
                print(f"{one.name}{one.state}: {one.command}")
        flush_or_drop()
        return 0
    if chosen.data is None:
        parser.error("give the folder of the data with --data")
    ends = time.monotonic() + 60 * chosen.minutes if chosen.minutes else None
    failed = []
    for one in wanted:
        if one.kept and not chosen.again:
            print(f"{one.name} is kept; --again trains it again")
            continue
        if (
            ends
            and (needs := expected_seconds(one.recipe, this_device(one.recipe))) > ends - time.monotonic()
        ):
            left = max(0.0, ends - time.monotonic())
            print(f"{one.name} is not begun: it takes {needs / 60:.1f} minutes and {left / 60:.1f} are left")
            continue
        status = train(one, chosen.data.resolve(), chosen.runs.resolve())
        if status > 128:  # asked to stop
            return status
        if status:
            failed.append(one.name)
    if failed:
        print(f"not kept: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def this_device(recipe: Recipe[Any]) -> str:
    return device_name(torch.device(pick_device(recipe.train.device)))


def named(one: Experiment, name: str) -> bool:
    group, _, rest = one.name.partition("/")
    return name in (group, one.name, f"{group}/{rest.rpartition('-seed')[0]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
