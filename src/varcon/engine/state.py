"""What a run must remember to go on as if it had never stopped."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from varcon import distributed
from varcon.core import InputError, Method
from varcon.engine.average import WeightAverage
from varcon.engine.checkpoint import load_checkpoint, save_checkpoint, unreadable
from varcon.engine.journal import Averages
from varcon.engine.samples import SampleRecord
from varcon.files import write_json
from varcon.recipe import Recipe, differences, recipe_to_dict

# Settings that change how a run is carried out and not what it computes; resuming may change them.
FREE_ON_RESUME = (
    "train.device",
    "train.compile",
    "train.cuda_graph",
    "train.checkpoint_seconds",
    "train.track",
    "data.path",
    "data.store",
    "evaluate",
)


WRITER = ThreadPoolExecutor(1, "checkpoint")  # on a ResNet-50 a file takes a second, of which a step has 30


@dataclass(kw_only=True)
class TrainingState:
    path: Path | None  # of the checkpoint; None: a run in memory, which is not saved
    recipe: Recipe[Any]
    conditions: dict[str, Any]  # what must be as it was for a run to go on
    method: Method
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator  # of this process's augmentation
    record: SampleRecord
    averages: Averages
    average: WeightAverage | None
    step: int = 0
    writing: Future[None] | None = None  # the file of the latest save, while the next steps run

    def save(self) -> None:
        """Copies all there is and leaves the writing to another thread; `close` waits for it."""
        if self.path is None:
            return
        generators = distributed.gather(self.generator.get_state().cpu())
        records = distributed.gather(self.record.state())
        averages = distributed.gather(self.averages.state())
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
                "averages": averages,
                "average": self.average.kept.state_dict() if self.average else {},
            }
            self.close()
            self.writing = WRITER.submit(save_checkpoint, self.path, copied(state))
        distributed.barrier()

    def close(self) -> None:
        """The latest save is on the disk, or its error is raised here."""
        if self.writing:
            writing, self.writing = self.writing, None
            writing.result()

    def load(self) -> None:
        assert self.path is not None
        state = load_checkpoint(self.path)
        try:
            check_recipe(state["recipe"], self.recipe, self.path.parent)
            for name, before in state["conditions"].items():
                if before != self.conditions[name]:
                    with_them = " (torchrun --nproc-per-node)" if name == "processes" else ""
                    raise InputError(
                        f"{self.path.parent} was begun with {name} = {before} and cannot go on with "
                        f"{self.conditions[name]}; restore that{with_them}, or start another run with "
                        "--out FOLDER"
                    )
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            self.generator.set_state(state["generators"][distributed.rank()])
            self.record.restore(state["records"][distributed.rank()])
            self.averages.restore(state["averages"][distributed.rank()], self.generator.device)
            if self.average:
                self.average.kept.load_state_dict(state["average"])
            self.step = state["step"]
        except InputError:  # a ValueError too
            raise
        except (RuntimeError, ValueError):  # of load_state_dict, of modules and of the optimizer
            raise InputError(
                f"{self.path} holds other weights than its recipe asks for now: it is another version's; go "
                "on with that version, or start another run with --out FOLDER"
            ) from None
        except (KeyError, IndexError, TypeError, AttributeError):
            raise InputError(unreadable(self.path)) from None


def copied(state: Any) -> Any:
    """Nested tensors in memory of their own, off the device."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: copied(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state


def check_recipe(stored: dict[str, Any], recipe: Recipe[Any], folder: Path) -> None:
    """A run goes on with the recipe it was begun with."""
    for name, (before, now) in differences(stored, recipe_to_dict(recipe)).items():
        if not name.startswith(FREE_ON_RESUME):
            raise InputError(
                f"{folder} was begun with {name} = {before!r} and cannot go on with {now!r}; "
                "take the change back, or start another run with --out FOLDER"
            )


def keep_recipe(folder: Path, recipe: Recipe[Any]) -> None:
    """What a resumed run was free to change is what its recipe.json says from then on."""
    path = folder / "recipe.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        changed = differences(facts["recipe"], recipe_to_dict(recipe))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} cannot be read; restore it from a copy, then go on with --resume") from None
    if changed:
        write_json(path, {**facts, "recipe": recipe_to_dict(recipe)})
