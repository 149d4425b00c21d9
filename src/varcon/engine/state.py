"""What a run must remember to go on as if it had never stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from varcon.core import InputError, Method
from varcon.engine import distributed
from varcon.engine.checkpoint import load_checkpoint, save_checkpoint, unreadable
from varcon.engine.samples import SampleRecord
from varcon.recipe import Recipe, differences, recipe_to_dict

# Settings that change how a run is carried out and not what it computes; resuming may change them.
FREE_ON_RESUME = (
    "train.device",
    "train.compile",
    "train.cuda_graph",
    "train.checkpoint_seconds",
    "data.path",
    "evaluate",
)


@dataclass
class TrainingState:
    path: Path | None  # of the checkpoint; None: a run in memory, which is not saved
    recipe: Recipe[Any]
    conditions: dict[str, Any]  # what must be as it was for a run to go on
    method: Method
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator  # of this process's augmentation
    record: SampleRecord
    step: int = 0

    def save(self) -> None:
        if self.path is None:
            return
        generators = distributed.gather(self.generator.get_state().cpu())
        records = distributed.gather(self.record.state())
        if distributed.is_main():
            state = {
                "recipe": recipe_to_dict(self.recipe),
                "conditions": self.conditions,
                "step": self.step,
                "method": self.method.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "generators": generators,
                "records": records,
            }
            save_checkpoint(self.path, state)
        distributed.barrier()

    def load(self) -> None:
        assert self.path is not None
        state = load_checkpoint(self.path)
        try:
            check_recipe(state["recipe"], self.recipe, self.path.parent)
            for name, before in state["conditions"].items():
                if before != self.conditions[name]:
                    raise InputError(
                        f"{self.path.parent} was begun with {name} = {before} and cannot go on with "
                        f"{self.conditions[name]}; restore that, or start another run with --out FOLDER"
                    )
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            self.generator.set_state(state["generators"][distributed.rank()])
            self.record.restore(state["records"][distributed.rank()])
            self.step = state["step"]
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError):
            raise InputError(unreadable(self.path)) from None


def check_recipe(stored: dict[str, Any], recipe: Recipe[Any], folder: Path) -> None:
    """A run goes on with the recipe it was begun with."""
    for name, (before, now) in differences(stored, recipe_to_dict(recipe)).items():
        if not name.startswith(FREE_ON_RESUME):
            raise InputError(
                f"{folder} was begun with {name} = {before!r} and cannot go on with {now!r}; "
                "take the change back, or start another run with --out FOLDER"
            )
