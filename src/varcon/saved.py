"""An estimator as one .safetensors file, the rest as JSON in its head: reading it runs no code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from varcon.core import InputError
from varcon.files import replacing
from varcon.layers import ProjectionHead
from varcon.recipe import recipe_from_dict

if TYPE_CHECKING:
    from varcon.estimator import VarConEmbedding

Estimator = TypeVar("Estimator", bound="VarConEmbedding")
Module = TypeVar("Module", bound=nn.Module)

KEY = "varcon"  # of the JSON
ARRAYS = ("mean_", "scale_", "centroids_", "bias_")
MODULES = ("encoder_", "head_")
PLAIN = ("n_features_in_", "temperature_")


def write(path: Path, estimator: VarConEmbedding) -> None:
    learned = vars(estimator)
    tensors = {name: torch.from_numpy(learned[name]) for name in ARRAYS if name in learned}
    for name in MODULES:
        module: nn.Module | None = learned.get(name)
        if module is not None:
            tensors |= {f"{name}.{key}": value.contiguous() for key, value in module.state_dict().items()}
    settings = estimator.get_params(deep=False)
    if settings["augment"] is not None:
        settings["augment"] = dataclasses.asdict(settings["augment"])
    if not isinstance(settings["random_state"], int | np.integer):
        settings["random_state"] = None  # a generator, which has moved on
    facts = {
        "estimator": type(estimator).__name__,
        "settings": settings,
        "shape": list(estimator.sample_shape_),
        "classes": labels_to_json(estimator.classes_),
        "feature_names": list(learned["feature_names_in_"]) if "feature_names_in_" in learned else None,
        "learned": {name: learned[name] for name in PLAIN if name in learned},
    }
    head = {KEY: json.dumps(facts, default=lambda value: value.item())}  # numbers may be numpy's
    try:
        with replacing(path) as temporary:
            save_file(tensors, temporary, head)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} cannot be written ({error}); save it elsewhere or free some space"
        ) from None


def read(path: Path, fresh: Estimator) -> Estimator:
    """`fresh` becomes what was saved, on its own device."""
    tensors, facts = read_file(path)
    name = type(fresh).__name__
    if facts.get("estimator") != name:
        raise InputError(f"{path} holds a {facts.get('estimator')}; load it with that class, not with {name}")
    try:
        settings = {**facts["settings"], "device": fresh.device}
        if settings["augment"] is not None:
            settings["augment"] = recipe_from_dict({"augment": settings["augment"]}).augment
        fresh.set_params(**settings)
        fresh.sample_shape_ = tuple(facts["shape"])
        fresh.classes_ = labels_from_json(facts["classes"])
        if facts["feature_names"] is not None:
            fresh.feature_names_in_ = np.array(facts["feature_names"], dtype=object)
        for key in PLAIN:
            if key in facts["learned"]:
                setattr(fresh, key, facts["learned"][key])
        for key in ARRAYS:
            if key in tensors:
                setattr(fresh, key, tensors[key].numpy())
        with torch.device("meta"):  # no first weights: the saved ones take their place
            encoder = fresh._encoder_settings().build(fresh.sample_shape_)
            if "head_.2.weight" in tensors:
                dimensions = len(tensors["head_.2.weight"])
                fresh.head_ = filled(ProjectionHead(encoder.features, dimensions), tensors, "head_.")
            fresh.encoder_ = filled(encoder, tensors, "encoder_.")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path} does not hold a whole {name} ({error}); save it again") from None
    return fresh


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[KEY])
            return {name: file.get_tensor(name) for name in file.keys()}, dict(facts)  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a saved estimator ({error}); write one with its method save"
        ) from None


def filled(module: Module, tensors: dict[str, Tensor], prefix: str) -> Module:
    own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    module.load_state_dict(own, assign=True)
    return module.eval().requires_grad_(False)


def labels_to_json(labels: np.ndarray) -> dict[str, Any]:
    values = labels.tolist()
    if labels.dtype.kind not in "biuf" and not all(isinstance(value, str) for value in values):
        raise InputError(f"labels of type {labels.dtype} cannot be saved; use numbers or strings")
    return {"type": labels.dtype.str, "values": values}


def labels_from_json(stored: dict[str, Any]) -> np.ndarray:
    kind = np.dtype(object if stored["type"] == "|O" else stored["type"])
    return np.array(stored["values"], dtype=kind)
