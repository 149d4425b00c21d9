"""Compare training with and without kernels and graphs: `python benchmarks/numerics.py --cifar100 FOLDER`.

The same recipes and seeds, once by Triton kernels in captured steps, once by plain torch kernel after kernel.
They round differently, so two runs drift apart as two seeds do: the difference of the means is to be judged
by the spread over seeds. The recipes are the digits', in full, and one epoch of CIFAR-100's for ResNet-18.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timing import surroundings, write_table

from varcon import run
from varcon.recipe import DIGITS, Recipe, load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
SEEDS = (0, 1, 2)
WAYS = ("kernels and graph", "plain torch")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cifar100", help="the folder that holds cifar-100-python; without it, digits alone")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here, so training has neither kernels nor graphs to do without")
    recipes: dict[str, Recipe[Any]] = {"digits": DIGITS}
    if arguments.cifar100:
        cifar = load_recipe(RECIPES / "cifar100/varcon_r18.toml")
        data = replace(cifar.data, path=arguments.cifar100)
        # Of a run of 100 epochs the first, without the slow beginning: more is learnt in it.
        train = replace(cifar.train, epochs=1, warmup_epochs=0.1)
        recipes["CIFAR-100, one epoch"] = replace(cifar, data=data, train=train)
    lines = ["| data | what | " + " | ".join(WAYS) + " | difference |", "|---|---|---:|---:|---:|"]
    for name, recipe in recipes.items():
        print(f"training on {name}", file=sys.stderr)
        found = {way: [trained(recipe, seed, way == WAYS[1]) for seed in SEEDS] for way in WAYS}
        for what in ("loss of the last epoch", "kNN, %"):
            values = [[one[what] for one in found[way]] for way in WAYS]
            cells = [f"{statistics.fmean(v):.3f} ± {statistics.stdev(v):.3f}" for v in values]
            difference = statistics.fmean(values[0]) - statistics.fmean(values[1])
            lines.append(f"| {name} | {what} | {' | '.join(cells)} | {difference:+.3f} |")
    head = f"Seeds {', '.join(map(str, SEEDS))}, mean ± deviation; {surroundings('cuda', 'triton')}"
    write_table("Training with and without kernels and graphs", head, lines, arguments.out)
    return 0


def trained(recipe: Recipe[Any], seed: int, plain: bool) -> dict[str, float]:
    train = replace(recipe.train, seed=seed, cuda_graph=not plain)
    with tempfile.TemporaryDirectory() as folder, plain_torch() if plain else nullcontext():
        made = run.train(replace(recipe, train=train), Path(folder) / "run")
        found = run.evaluate(made, recipe.evaluate, only=("knn",))
        rows = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    last = [row["loss"] for row in rows if row["epoch"] > train.epochs - 1]
    return {"loss of the last epoch": statistics.fmean(last), "kNN, %": found["knn"].scores["top1"]}


@contextmanager
def plain_torch() -> Iterator[None]:
    """As if Triton were absent."""
    with (
        mock.patch("varcon.kernels.HAS_TRITON", False),
        mock.patch("varcon.kernels.norms.HAS_TRITON", False),
        mock.patch("varcon.augment.policies.HAS_TRITON", False),
    ):
        yield


if __name__ == "__main__":
    sys.exit(main())
