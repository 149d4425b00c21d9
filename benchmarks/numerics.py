"""Compare training with and without kernels and graphs: `python benchmarks/numerics.py --cifar100 FOLDER`.

First one step: how far the gradient of a fresh network is from that of float64, by Triton kernels and by
plain torch. Then whole runs of the same recipes and seeds, once by kernels in captured steps, once by plain
torch kernel after kernel. Both round, and training amplifies that, so two runs drift apart as two seeds do:
the difference of the means is to be judged by the spread over seeds. The recipes are the digits', in full,
and one epoch of CIFAR-100's for ResNet-18.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timing import surroundings, write_table

from varcon import run
from varcon.augment import draw_views
from varcon.core import Batch
from varcon.data import load
from varcon.engine.precision import DTYPES
from varcon.recipe import DIGITS, Recipe, load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
SEEDS = tuple(range(8))
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
        for precision in ("fp32", "bf16"):
            errors = [gradient_error(recipe, precision, way == WAYS[1]) for way in WAYS]
            exactness = " | ".join(f"{error:.2e}" for error in errors)
            lines.append(f"| {name} | relative error of a gradient, {precision} | {exactness} | |")
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


def gradient_error(recipe: Recipe[Any], precision: str, plain: bool) -> float:
    data = load(recipe.data)
    labels = data.train.labels[: recipe.train.batch_size].cuda()
    images = data.train.images[: recipe.train.batch_size].cuda()
    method = run.build_method(recipe, data).to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    generator = torch.Generator("cuda").manual_seed(0)
    views = draw_views(images, recipe.augment, data.mean, data.std, generator)

    def gradient(dtype: torch.dtype, plain: bool) -> torch.Tensor:
        module = deepcopy(method).to(dtype) if dtype == torch.float64 else deepcopy(method)
        inputs = Batch([view.to(dtype) for view in views], labels, labels)
        with (
            plain_torch() if plain else nullcontext(),
            torch.autocast("cuda", dtype, dtype == torch.bfloat16),
        ):
            module(inputs).loss.backward()
        return torch.cat([p.grad.double().flatten() for p in module.parameters() if p.grad is not None])

    exact = gradient(torch.float64, plain=True)
    return float((gradient(DTYPES[precision], plain) - exact).norm() / exact.norm())


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
