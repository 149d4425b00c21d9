"""Checkpoints for resuming and weights for sharing; reading either never runs code."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from varcon.core import InputError, RunError
from varcon.files import replacing


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    try:
        with replacing(path) as temporary:
            torch.save(state, temporary)
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        # A full disk is known to torch by a place in a file that is not where it should be.
        full = "inline_container" in reason
        raise RunError(_unwritable(path, "the disk seems to be full" if full else reason)) from None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads tensors, numbers and strings; a file that asks for anything more is refused, not run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"there is no checkpoint {path}; start the run without --resume") from None
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        if wanted:
            raise InputError(
                f"{path} asks to run {wanted[1]}, which no checkpoint needs, and was not loaded; "
                "start the run anew in another folder"
            ) from None
        raise InputError(unreadable(path)) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError):
        raise InputError(unreadable(path)) from None


def unreadable(path: Path) -> str:
    return f"{path} is truncated or not a checkpoint; restore it from a copy or start anew in another folder"


def save_weights(path: Path, module: nn.Module) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    try:
        with replacing(path) as temporary:
            save_file(tensors, temporary)
    except SafetensorError as error:
        raise RunError(_unwritable(path, str(error).removeprefix("Error while serializing: "))) from None


def snapshot_path(folder: Path, epoch: int) -> Path:
    """Of the encoder as it was after this many epochs."""
    return folder / f"encoder-epoch{epoch:04d}.safetensors"


def _unwritable(path: Path, reason: str) -> str:
    return f"{path} cannot be written ({reason}); free some space and start again, training with --resume"


def load_weights(path: Path, module: nn.Module) -> None:
    try:
        module.load_state_dict(read_weights(path), assign=True)
    except RuntimeError:
        raise InputError(f"the weights in {path} do not fit its recipe") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as weights ({error}); train the run again") from None
