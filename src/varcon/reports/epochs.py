"""What a run's journal tells of its loss: its terms epoch by epoch, and how soon it came down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from varcon.core import InputError

# Only VarCon's methods have more than the first, and tau1 where it moves.
TERMS = ("loss", "kl", "nll", "confidence", "tau1", "tau2", "epsilon")
SHARES = (90, 95, 99)  # percent of the whole decrease


def epoch_means(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The epochs of metrics.jsonl, and the means of each term over them.

    A row holds means over the steps since the one before, so it weighs as many as those are.
    """
    if not rows or not all({"step", "epoch", "loss"} <= row.keys() for row in rows):
        raise InputError("the run's metrics.jsonl has no rows of step, epoch and loss; train the run first")
    steps = np.diff([0, *(row["step"] for row in rows)])
    numbers = np.ceil(np.array([row["epoch"] for row in rows], float)).astype(int)  # a row may end inside one
    epochs, places = np.unique(numbers, return_inverse=True)
    total = np.bincount(places, steps)
    names = [name for name in TERMS if all(name in row for row in rows)]
    return epochs, {
        name: np.bincount(places, steps * np.array([row[name] for row in rows], float)) / total
        for name in names
    }


def convergence(epochs: np.ndarray, loss: np.ndarray) -> dict[str, float]:
    """The first epoch with 90, 95 and 99 % of the whole decrease, and the area under the loss, scaled so that
    it falls from 1 to 0 in a time of 1: a straight fall has 0.5, one at once 0. Empty where nothing fell."""
    from scipy.integrate import trapezoid

    decrease = loss[0] - loss[-1]
    if len(loss) < 2 or not decrease > 0:
        return {}
    left = (loss - loss[-1]) / decrease
    done = 100 * (1 - left) + 1e-9  # for rounding
    reached = {f"epoch_at_{share}": float(epochs[np.argmax(done >= share)]) for share in SHARES}
    area = trapezoid(left, (epochs - epochs[0]) / (epochs[-1] - epochs[0]))
    return {**reached, "area": float(area)}
