"""Files that are whole or absent: checkpoints for resuming and weights for sharing."""

from __future__ import annotations

import json
import os
import pickle
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from varcon.core import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place once it is complete and on the disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        torch.save(state, temporary)


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
        raise InputError(_unreadable(path)) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError):
        raise InputError(_unreadable(path)) from None


def _unreadable(path: Path) -> str:
    return f"{path} is truncated or not a checkpoint; restore it from a copy or start anew in another folder"


def save_encoder(path: Path, encoder: nn.Module) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary)


def load_encoder(path: Path, encoder: nn.Module) -> None:
    try:
        encoder.load_state_dict(load_file(path), assign=True)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as weights ({error}); train the run again") from None
    except RuntimeError:
        raise InputError(f"the weights in {path} do not fit the encoder named in its recipe") from None
