"""The rows of metrics.jsonl, shown as they come in TensorBoard or Weights & Biases: `train.track`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from varcon.core import InputError
from varcon.files import write_text
from varcon.recipe import Recipe, recipe_to_dict

Track = Callable[[dict[str, float]], None]  # takes a row


def check_tracker(recipe: Recipe[Any]) -> None:
    """The package that the recipe asks for is there."""
    name = recipe.train.track
    if name != "none":
        try:
            import_module(name)
        except ImportError:
            raise InputError(
                f"train.track is {name!r}, which is not installed; "
                f"install it: pip install 'varcon[{name}]', or set train.track to none"
            ) from None


@contextmanager
def tracking(recipe: Recipe[Any], folder: Path | None, resumed_at: int) -> Iterator[Track]:
    """Takes the rows after step `resumed_at`; without a folder, as in all processes but the first, none."""
    if recipe.train.track == "none" or folder is None:
        yield lambda row: None
        return
    with TRACKERS[recipe.train.track](recipe, folder, resumed_at) as track:
        yield track


@contextmanager
def to_tensorboard(recipe: Recipe[Any], folder: Path, resumed_at: int) -> Iterator[Track]:
    """Event files in the run's folder: tensorboard --logdir runs."""
    from torch.utils.tensorboard import SummaryWriter

    # What an earlier process wrote past its last checkpoint comes again, and is hidden.
    with closing(SummaryWriter(folder / "tensorboard", purge_step=resumed_at + 1)) as writer:

        def track(row: dict[str, float]) -> None:
            for name, value in row.items():
                if name != "step":
                    writer.add_scalar(name, value, int(row["step"]))
            writer.flush()

        yield track


@contextmanager
def to_wandb(recipe: Recipe[Any], folder: Path, resumed_at: int) -> Iterator[Track]:
    """A run of project varcon, or of WANDB_PROJECT; wandb's own environment variables say the rest."""
    import wandb

    identity = folder / "wandb-id.txt"  # by which a resumed run goes on under its own name
    if not identity.exists():
        write_text(identity, secrets.token_hex(4) + "\n")
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "varcon"),
            name=folder.name,
            dir=folder,
            id=identity.read_text(encoding="utf-8").strip(),
            resume="allow",
            config=recipe_to_dict(recipe),
            reinit="create_new",  # a run that the caller has open is not ours to write to
            settings=wandb.Settings(console="off"),  # a progress bar is no log
        )
    except wandb.Error as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"Weights & Biases does not start ({reason}); log in with: wandb login, "
            "or keep the record on this machine with the environment variable WANDB_MODE=offline"
        ) from None
    with run:
        first = run.step  # the rows before it are there already, also those past the checkpoint

        def track(row: dict[str, float]) -> None:
            if row["step"] >= first:
                run.log({name: value for name, value in row.items() if name != "step"}, int(row["step"]))

        yield track


TRACKERS: dict[str, Callable[[Recipe[Any], Path, int], AbstractContextManager[Track]]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
}
