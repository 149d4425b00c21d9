"""What a frozen encoder is worth on data it was not trained on: logistic regression on other data sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from varcon.core import Data, Findings, InputError
from varcon.data import DataSettings, load
from varcon.data.voc import load_voc
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.metrics import METRICS, mean_per_class, top1
from varcon.limits import meant_or

Metric = Literal["top1", "mean-per-class", "map"]

# The paper's twelve data sets and how each is measured there; "map" is VOC2007's own, by 11 points.
MEASURED_BY: dict[str, Metric] = {
    "food": "top1",
    "cifar10": "top1",
    "cifar100": "top1",
    "birdsnap": "top1",
    "sun397": "top1",
    "cars": "top1",
    "aircraft": "mean-per-class",
    "voc2007": "map",
    "dtd": "top1",
    "pets": "mean-per-class",
    "caltech101": "mean-per-class",
    "flowers": "mean-per-class",
}
UNKNOWN_TO_VOC = ("held_out", "per_class", "store")  # settings of data that its reader leaves aside
ALIASES = {"food101": "food", "flowers102": "flowers", "oxfordpets": "pets", "stanfordcars": "cars"}
ALIASES |= {"fgvcaircraft": "aircraft", "voc": "voc2007", "pascalvoc2007": "voc2007"}


@dataclass(frozen=True)
class Target:
    """A data set to transfer to. Its name chooses the measure where it is one of the paper's twelve."""

    name: str
    data: DataSettings  # image_size 0: that of the encoder's training images
    metric: Metric | Literal[""] = ""  # empty: the paper's for this name, top1 for all others

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a transfer target has no name; give it one, as in flowers=PATH")
        if "/" in self.name or "\\" in self.name:  # findings of fine-tuning on it are files of its name
            raise InputError(f"transfer target {self.name!r} has a slash in its name; choose a plain one")
        if self.metric and self.metric not in METRICS:
            raise InputError(
                f"transfer target {self.name} has metric {self.metric!r}; choose one of {', '.join(METRICS)}"
            )
        if self.measure == "map" and self.data.name != "folder":
            raise InputError(
                f"transfer target {self.name} is measured by mAP over several classes an image, which only "
                "VOC's folder has; give its path"
            )
        unread = [name for name in UNKNOWN_TO_VOC if getattr(self.data, name)]
        if self.measure == "map" and unread:
            raise InputError(
                f"transfer target {self.name} sets data.{unread[0]}, and VOC's images are all read, into "
                "memory; leave it out"
            )

    @property
    def measure(self) -> Metric:
        return self.metric or MEASURED_BY.get(plain_name(self.name), "top1")


@dataclass(frozen=True)
class Transfer:
    """Each target is brought to the size and the normalisation that the encoder was trained with."""

    targets: tuple[Target, ...] = ()
    probe: LogisticProbe = field(default_factory=LogisticProbe)

    def __post_init__(self) -> None:
        names = [target.name for target in self.targets]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"two transfer targets are named {twice[0]!r}; give each its own name")
        if "mean" in names:
            raise InputError("a transfer target is named 'mean', which is the score over all; rename it")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        if not self.targets:
            raise InputError("transfer has no targets; name some: --target flowers=PATH")
        scores: dict[str, float] = {}
        rows = []
        for number, target in enumerate(self.targets):
            encoder.progress(number, len(self.targets), f"transfer to {target.name}")
            other = open_target(target, encoder, data)
            # An encoder of its own for each: the shared one would keep every target's images in memory.
            fresh = FrozenEncoder(encoder.encoder, data, encoder.device, encoder.progress)
            scores[target.name], accuracy, per_class, penalty = judge(
                fresh, other, target.measure, self.probe
            )
            rows.append((target.name, target.measure, accuracy, per_class, penalty))
        values = list(scores.values())
        scores["mean"] = sum(values) / len(values)
        names, measures, accuracies, per_classes, penalties = zip(*rows, strict=True)
        arrays = {
            "names": np.array(names),
            "measures": np.array(measures),
            "values": np.array(values),
            "top1": np.array(accuracies),
            "mean_per_class": np.array(per_classes),
            "penalties": np.array(penalties),
        }
        return Findings(scores, arrays)


def judge(
    encoder: FrozenEncoder, data: Data, measure: Metric, probe: LogisticProbe
) -> tuple[float, float, float, float]:
    """The measure, top-1 and mean per class accuracy (NaN for images of several classes), and the penalty.

    The penalty is chosen by the measure that is reported. Labels [N, classes] make one-vs-rest regressions.
    """
    labels, test_labels = data.train.labels.to(encoder.device), data.test.labels.to(encoder.device)
    if (measure == "map") != (labels.ndim == 2):
        raise InputError(f"{measure} does not suit these labels; use map for several an image, and only then")
    train = encoder.features(data.train)
    chosen = probe.fit(train, labels, len(data.classes), METRICS[measure], encoder.progress)
    outputs = chosen.model.scores(encoder.features(data.test))
    value = METRICS[measure](outputs, test_labels)
    if measure == "map":
        return value, float("nan"), float("nan"), chosen.penalty
    return value, top1(outputs, test_labels), mean_per_class(outputs, test_labels), chosen.penalty


def open_target(target: Target, encoder: FrozenEncoder, data: Data) -> Data:
    """The target's images in its own size or, without one, in that of `data`, the encoder's own."""
    size = target.data.image_size or data.train.images.shape[-1]
    try:
        if target.measure == "map":
            return load_voc(target.data.path, size, encoder.progress)
        return load(replace(target.data, image_size=size), encoder.progress)
    except InputError as error:
        raise InputError(f"transfer target {target.name}: {error}") from None


def given_targets(texts: tuple[str, ...], only: tuple[str, ...]) -> tuple[Target, ...]:
    """Of a command that carries out some evaluations."""
    if texts and not {"transfer", "finetune"} & {*only}:
        raise InputError("--target is for transfer and finetune; ask for one of them with --only transfer")
    return tuple(given_target(text) for text in texts)


def given_target(text: str) -> Target:
    """As below, of data that are there: known before anything is trained or encoded."""
    target = parse_target(text)
    if target.data.path and not Path(target.data.path).expanduser().exists():
        raise InputError(f"--target {text}: there is no {target.data.path}; correct the path")
    return target


def parse_target(text: str) -> Target:
    """NAME=PATH or NAME:METRIC=PATH, as a command line has it; `digits` and the like need no path.

    cifar10, cifar100 and voc2007 are read as their authors publish them, a path that ends in .npz as arrays,
    and every other one as a folder of images.
    """
    head, _, path = text.partition("=")
    name, _, metric = head.partition(":")
    if metric and metric not in METRICS:
        raise InputError(
            f"{text!r}: there is no metric {metric!r}{meant_or(metric, METRICS)} "
            f"choose one of {', '.join(METRICS)}"
        )
    kind = plain_name(name)
    if kind == "digits" and not path:
        return Target(name, DataSettings("digits"), metric)  # type: ignore[arg-type]
    if not path:
        raise InputError(f"{text!r} names no path; write NAME=PATH, as in flowers=/data/flowers102")
    if kind in ("cifar10", "cifar100"):
        reader: Literal["cifar10", "cifar100", "npz", "folder"] = kind  # type: ignore[assignment]
    else:
        reader = "npz" if path.endswith(".npz") else "folder"
    return Target(name, DataSettings(reader, path), metric)  # type: ignore[arg-type]


def plain_name(name: str) -> str:
    """Caltech-101, caltech_101 and caltech101 are one."""
    plain = "".join(character for character in name.lower() if character.isalnum())
    return ALIASES.get(plain, plain)
