"""First weights from a file: torchvision's, or those of an encoder trained before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from varcon.core import Encoder, InputError

NESTED = ("state_dict", "model")  # where training scripts put the weights of a larger file


def start_from(encoder: Encoder, path: Path) -> None:
    """Gives the encoder a file's weights; what the file has beyond them, such as a last layer, is left."""
    tensors, own = read_tensors(path), encoder.state_dict()
    first = next(iter(own))
    # A network that holds the encoder has a word before its names: module., encoder., backbone.
    prefixes = [name.removesuffix(first) for name in tensors if name.endswith(first)]
    prefix = min(prefixes, key=len, default="")
    for name, value in own.items():
        found = tensors.get(prefix + name)
        if found is None:
            if name.endswith("num_batches_tracked"):  # which older files lack, and nothing reads
                continue
            raise InputError(
                f"{path} has no weights {name!r}, so they are of another encoder; set encoder.name to theirs"
            )
        if found.shape != value.shape:
            raise InputError(
                f"{name!r} has the shape {list(found.shape)} in {path} and {list(value.shape)} in the "
                "encoder; set encoder.name and encoder.stem to theirs (ImageNet's weights need stem imagenet)"
            )
        value.copy_(found)


def refuse_absent(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no file of weights {path}; correct encoder.weights")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Of a .safetensors file, or of one that torch.save has written; reading either never runs code."""
    refuse_absent(path)
    try:
        found: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception:  # of bytes that are no pickle torch's reader raises seven kinds or more
        raise InputError(
            f"{path} cannot be read as weights; it takes a .safetensors file, or a state_dict written by "
            "torch.save"
        ) from None
    for name in NESTED:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__} and not weights by name; save a state_dict")
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
