"""What a run is made of: the settings dataclasses and their strict loading from TOML or JSON.

Every default has one home: the dataclass field. A recipe file holds what differs.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, get_type_hints

from varcon.augment import AugmentSettings
from varcon.core import InputError
from varcon.data import DataSettings
from varcon.encoders import EncoderSettings
from varcon.evaluations import EvaluateSettings
from varcon.files import from_home
from varcon.limits import (
    above_zero,
    at_least,
    below_one,
    checked,
    declared,
    did_you_mean,
    meant_or,
    not_negative,
    seed,
)
from varcon.methods import METHODS

MethodSettings = TypeVar("MethodSettings")
NAMED = ("method", "name")  # the one setting that a recipe file always has


@dataclass(frozen=True)
class TrainSettings:
    epochs: int = 40  # passes over the training images
    batch_size: int = 128  # images per step, over all processes
    learning_rate: float = 0.4  # at batch size 256; scaled in proportion to the batch size
    optimizer: Literal["sgd", "lars"] = "sgd"  # lars: a rate for each layer, for batches of thousands
    momentum: float = 0.9  # of the optimizer
    nesterov: bool = False  # look ahead along the momentum
    weight_decay: float = 2e-3  # of convolutions and other matrices
    decay_norms: bool = False  # weight decay for norms and biases too; epsilon it always spares
    average: float = 0.0  # momentum of a moving average of the weights, which is then what is kept; 0: none
    warmup_epochs: float = 2.0  # of linear growth before the cosine
    balanced: bool = False  # draw every class equally often, however many images it has
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """of the network's arithmetic; auto: bf16, which is faster, where the device computes in it, else fp32"""
    device: str = "auto"  # auto: cuda where there is one, otherwise cpu
    compile: bool = False  # torch.compile instead of the project's own kernels for BatchNorm; on cuda only
    cuda_graph: bool = True  # replay each step as one CUDA graph; on one cuda device, not in fp16
    seed: int = 0  # of the first weights and of all that is drawn at random
    checkpoint_seconds: float = 30.0  # saved at the first epoch's end after this long; 0: at every one's
    snapshots: tuple[int, ...] = ()  # epochs after which the encoder is kept; 0: as it is before training
    track: Literal["none", "tensorboard", "wandb"] = "none"  # where the metrics are shown as well

    def __post_init__(self) -> None:
        declared(self, of="train")
        at_least(1, self, "epochs", "batch_size", of="train")
        above_zero(self, "learning_rate", of="train")
        not_negative(self, "weight_decay", "warmup_epochs", "checkpoint_seconds", of="train")
        below_one(self, "momentum", "average", of="train")
        seed(self, of="train")
        if self.nesterov and not self.momentum:
            raise InputError(
                "train.nesterov looks ahead along the momentum, which is 0; raise train.momentum"
            )
        if self.nesterov and self.optimizer == "lars":
            raise InputError("train.nesterov is for train.optimizer sgd; turn it off, or take sgd")
        beyond = [epoch for epoch in self.snapshots if not 0 <= epoch <= self.epochs]
        if beyond:
            raise InputError(
                f"train.snapshots has epoch {beyond[0]} and train.epochs is {self.epochs}; "
                f"choose epochs from 0, which is before training, to {self.epochs}"
            )


@dataclass(frozen=True)
class Recipe(Generic[MethodSettings]):
    """One run."""

    data: DataSettings = field(default_factory=DataSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    method: MethodSettings = field(default_factory=METHODS["varcon"].Settings)
    train: TrainSettings = field(default_factory=TrainSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)

    def __post_init__(self) -> None:
        for section, hint in get_type_hints(Recipe).items():
            value = getattr(self, section)
            if section != "method" and not isinstance(value, hint):
                raise InputError(f"{section} is {value!r}; give a {hint.__name__}")
        if not dataclasses.is_dataclass(self.method) or isinstance(self.method, type):
            raise InputError(f"method is {self.method!r}; give the settings of one, such as VarConSettings()")
        # The other sections see to it as they are made; the settings of a method of one's own need not.
        declared(self.method, of="method")
        declared(self.evaluate, of="evaluate")

    @property
    def method_name(self) -> str:
        return next(name for name, method in METHODS.items() if method.Settings is type(self.method))

    def with_data_path(self, path: str | Path | None, store: str | Path | None = None) -> Self:
        """The same for data that lie elsewhere, or are decoded elsewhere, where a path is given."""
        if not path and not store:
            return self
        data = replace(self.data, path=str(path or self.data.path), store=str(store or self.data.store))
        return replace(self, data=data)


# recipes/digits/varcon.toml, for the demo: an installed package has no folder of recipes. The other
# settings' defaults suit the digits already; mirrored or closely cropped they would be other digits.
DIGITS: Recipe[Any] = Recipe(augment=AugmentSettings(flip=0.0, crop_area=(0.6, 1.0)))


def load_recipe(path: str | Path) -> Recipe[Any]:
    """Reads a recipe from a .toml file, or from the recipe.json of a run."""
    path = from_home(path)
    if path.is_dir():
        of_run, inside = path / "recipe.json", sorted(path.glob("*.toml"))
        if of_run.exists():
            cure = f"the recipe of this run is {of_run}"
        elif inside:
            cure = f"name one of its recipes, for example {inside[0]}"
        else:
            cure = f"for a folder of images: {shlex.join(['varcon', 'train', '--data', str(path)])}"
        raise InputError(f"{path} is a folder, not a recipe; {cure}")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except FileNotFoundError:
        raise InputError(f"there is no recipe {path}{did_you_mean(str(path), _recipes_near(path))}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the recipe {path} cannot be read: {error}") from None
    try:
        values = json.loads(text)["recipe"] if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = path.suffix.lstrip(".").upper()
        raise InputError(f"the recipe {path} is not valid {kind}: {error}") from None
    except (KeyError, TypeError):
        raise InputError(f"{path} holds no recipe; give a .toml file or the recipe.json of a run") from None
    try:
        return recipe_from_dict(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def recipe_from_dict(values: dict[str, Any]) -> Recipe[Any]:
    chosen = dict(_table(_table(values, "the recipe").get("method", {}), "method"))
    name = chosen.pop("name", "varcon")
    if name not in METHODS:
        raise InputError(
            f"there is no method {name!r}{meant_or(str(name), METHODS)} methods: {', '.join(METHODS)}"
        )
    method = _build(METHODS[name].Settings, chosen, "method", f"method {name}")
    rest = _build(Recipe, {key: value for key, value in values.items() if key != "method"}, "", "a recipe")
    return dataclasses.replace(rest, method=method)


def recipe_to_dict(recipe: Recipe[Any]) -> dict[str, Any]:
    values = dataclasses.asdict(recipe)
    return {**values, "method": {"name": recipe.method_name, **values["method"]}}


def recipe_to_toml(recipe: Recipe[Any]) -> str:
    """A recipe file: what differs from the defaults, and the method's name."""
    defaults = recipe_to_dict(dataclasses.replace(Recipe(), method=type(recipe.method)()))
    lines: list[str] = []
    for section, values in recipe_to_dict(recipe).items():
        lines += _toml_section(section, values, defaults[section])
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_section(section: str, values: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    chosen = [name for name, value in plain.items() if value != defaults[name] or (section, name) == NAMED]
    lines = [f"\n[{section}]", *(f"{name} = {_toml(plain[name])}" for name in chosen)] if chosen else []
    for name, value in values.items():
        if isinstance(value, dict):
            lines += _toml_section(f"{section}.{name}", value, defaults[name])
    return lines


def _toml(value: Any) -> str:
    # A JSON string, number, boolean or list of these is a TOML one.
    return json.dumps(value, ensure_ascii=False)


def differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted names of the settings in which two recipes differ, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in {**ours, **theirs}:
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            found |= differences(mine, other, f"{prefix}{key}.")
        elif _plain(mine) != _plain(other):
            found[prefix + key] = (mine, other)
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _build(cls: Any, values: Any, where: str, title: str) -> Any:
    """A dataclass from a table, refusing what the dataclass does not declare."""
    hints = get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    arguments = {}
    for key, value in _table(values, title).items():
        if key not in known:
            raise InputError(
                f"{title} has no setting {key!r}{meant_or(key, known)} settings: {', '.join(known)}"
            )
        place = f"{where}.{key}" if where else key
        if dataclasses.is_dataclass(hints[key]):
            arguments[key] = _build(hints[key], value, place, place)
        else:
            arguments[key] = checked(value, hints[key], place)
    return cls(**arguments)


def _table(values: Any, title: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InputError(f"{title} is {values!r}; it must be a table of settings, like [{title}]")
    return values


def _recipes_near(path: Path) -> list[str]:
    """Of a name like its own: folder and ending would make any two alike."""
    found = (*path.parent.glob("*.toml"), *Path("recipes").glob("*/*.toml"))
    return [
        str(one)
        for one in found
        if did_you_mean(path.stem, [one.stem]) and one.name != "pyproject.toml"  # of other settings
    ]
