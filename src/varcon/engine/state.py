"""What a run must remember to go on as if it had never stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from varcon.core import InputError, Method
from varcon.engine import distributed
from varcon.engine.checkpoint import load_checkpoint, save_checkpoint
from varcon.recipe import Recipe, differences, recipe_to_dict

# Settings that change how a run is carried out and not what it computes; resuming may change them.
FREE_ON_RESUME = ("train.device", "train.compile", "train.checkpoint_every", "data.path", "evaluate")


@dataclass
class TrainingState:
    path: Path  # of the checkpoint
    recipe: Recipe[Any]
    method: Method
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator  # of this process's augmentation
    step: int = 0

    def save(self) -> None:
        generators = distributed.gather(self.generator.get_state())
        if distributed.is_main():
            state = {
                "recipe": recipe_to_dict(self.recipe),
                "step": self.step,
                "method": self.method.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "generators": generators,
            }
            save_checkpoint(self.path, state)
        distributed.barrier()

    def load(self) -> None:
        state = load_checkpoint(self.path)
        self._check(state)
        self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generators"][distributed.rank()])
        self.step = state["step"]

    def _check(self, state: dict[str, Any]) -> None:
        folder = self.path.parent
        if not isinstance(state, dict) or not {"recipe", "step", "method", "generators"} <= set(state):
            raise InputError(f"{self.path} is no checkpoint of a run; start anew in another folder")
        for name, (before, now) in differences(state["recipe"], recipe_to_dict(self.recipe)).items():
            if not name.startswith(FREE_ON_RESUME):
                raise InputError(
                    f"{folder} was begun with {name} = {before!r} and cannot go on with {now!r}; "
                    "take the change back, or start another run with --out FOLDER"
                )
        if len(state["generators"]) != distributed.world_size():
            raise InputError(
                f"{folder} was begun with {len(state['generators'])} processes and cannot go on with "
                f"{distributed.world_size()}; start as many again, or another run with --out FOLDER"
            )
