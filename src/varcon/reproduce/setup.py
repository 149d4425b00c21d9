"""How runs are trained at a scale on somebody's data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from varcon.augment import AugmentSettings
from varcon.budget import full_views
from varcon.core import Data, InputError, OnProgress
from varcon.data import DATASETS, DataSettings, load
from varcon.data.corrupted_folder import locate
from varcon.data.corruptions import NAMES, SEVERITIES
from varcon.data.listing import find_splits
from varcon.evaluations import FurtherSettings
from varcon.evaluations.real import ReaL
from varcon.evaluations.robustness import Robustness
from varcon.evaluations.transfer import Target
from varcon.limits import meant_or
from varcon.methods import METHODS
from varcon.recipe import Recipe, differences, recipe_to_dict
from varcon.reproduce.scales import (
    IMAGENET,
    IMAGENET_SIZE,
    ON_IMAGENET,
    SCALES,
    SMOKE_IMAGES,
    SMOKE_SIDE,
    Scale,
    Settings,
)
from varcon.sweep import combinations, plain


@dataclass(frozen=True)
class Runs:
    """Of one method with some settings; one run for every seed."""

    method: str
    settings: Settings = field(default_factory=dict)
    half: bool = False  # on half of the classes, where the other half is what it transfers to
    epochs: int = 0  # at the paper's scale, where the paper trains these for more or less than its others

    def __hash__(self) -> int:
        return hash((self.method, repr(sorted(self.settings.items())), self.half, self.epochs))


VARCON_200 = Runs("varcon", epochs=200)  # of the maps over training


@dataclass(frozen=True)
class Setup:
    """A scale on somebody's data, and what else was given."""

    scale: Scale
    base: Recipe[Any]
    counts: tuple[int, ...]  # training images of each class
    side: int  # of an image, in pixels
    out: Path
    targets: tuple[Target, ...] = ()
    corrupted: str = ""  # a folder of corrupted test images
    real_labels: str = ""  # a file of acceptable labels

    @property
    def where(self) -> str:
        """In words: what our numbers are of."""
        return f"{self.base.data.name}, {self.base.encoder.name} encoder"

    @property
    def published(self) -> str:
        """Which data of the paper's these are; empty: none, or not to be told."""
        if self.base.data.name == "folder":
            return "ImageNet" if (len(self.counts), sum(self.counts)) == IMAGENET_SIZE else ""
        return {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}.get(self.base.data.name, "")

    @property
    def fewest(self) -> int:
        return min(self.counts)

    @property
    def as_imagenet(self) -> bool:
        """Whether the paper's settings for ImageNet are in use."""
        return self.scale.name == "paper" and self.base.data.name == "folder"

    def half_data(self, which: str) -> DataSettings:
        return DataSettings("npz", str(self.out / "stand-ins" / f"{which}-classes.npz"))

    def recipe(self, runs: Runs, seed: int = 0) -> Recipe[Any]:
        recipe = self._recipe(runs, seed)
        if self.label(runs) != self.label(VARCON_200):
            return recipe
        # The maps over training want the encoder on its way; of these runs only, for the disk's sake.
        quarters = sorted({round(recipe.train.epochs * part / 4) for part in (1, 2, 3)} - {0})
        return with_settings(recipe, {"train.snapshots": quarters})

    def _recipe(self, runs: Runs, seed: int) -> Recipe[Any]:
        own = self.scale.own.get(runs.method, {})
        recipe = with_settings(replace(self.base, method=METHODS[runs.method].Settings()), own)
        # As many images seen as by the others: a method of one view gets twice the epochs.
        shown = full_views(self.base.augment, self.side) / full_views(recipe.augment, self.side)
        epochs = max(1, round(self.base.train.epochs * shown))
        if self.scale.name == "paper" and runs.epochs:
            epochs = runs.epochs
        settings = {"train.epochs": epochs, "train.seed": seed, **runs.settings}
        if set(self.counts) == {settings.get("data.per_class")}:
            del settings["data.per_class"]  # these are all images, and the run is the plain one
        elif "data.per_class" in settings:
            settings["data.per_class_seed"] = seed  # a part of its own for each seed
        recipe = with_settings(recipe, settings)
        if runs.half:
            recipe = replace(recipe, data=self.half_data("first"))
        batch_size = min(recipe.train.batch_size, self.images(runs))
        return replace(recipe, train=replace(recipe.train, batch_size=batch_size))

    def images(self, runs: Runs) -> int:
        if runs.half:
            return sum(self.counts[: len(self.counts) // 2])
        if "data.per_class" in runs.settings:
            return runs.settings["data.per_class"] * len(self.counts)
        return sum(self.counts)

    def label(self, runs: Runs) -> str:
        """The method and the settings that its plain run has not, so that equal runs have equal labels."""
        usual, here = (recipe_to_dict(self._recipe(which, 0)) for which in (Runs(runs.method), runs))
        changed = {name: value for name, (_, value) in differences(usual, here).items()}
        words = [f"{name.split('.')[-1]} {plain(value)}" for name, value in changed.items() if value != ""]
        if runs.half:
            words = [word for word in words if not word.startswith(("name ", "path ", "per_class "))]
            words.append("half the classes")
        return ", ".join([runs.method, *words])

    def further(self, recipe: Recipe[Any]) -> FurtherSettings:
        """Of the evaluations that a recipe does not set."""
        usual = FurtherSettings().at_temperature(recipe.method)
        robustness = Robustness(path=self.corrupted)
        if self.scale.name == "smoke":
            robustness = replace(robustness, images=200, steps=300)
        if self.scale.name == "paper":  # all test images, and epochs of the training images
            robustness = replace(robustness, images=50_000, steps=10_000)
        targets = self.targets or ((Target("other classes", self.half_data("second"))),)
        labels = self.real_labels or str(self.out / "stand-ins" / "acceptable.json")
        return replace(
            usual,
            robustness=robustness,
            transfer=replace(usual.transfer, targets=targets),
            real=replace(usual.real, labels=labels),
        )


def with_settings(recipe: Recipe[Any], settings: Settings) -> Recipe[Any]:
    (changed,) = combinations(recipe, {name: [value] for name, value in settings.items()}).values()
    return changed


def set_up(
    scale_name: str,
    data: str,
    out: Path,
    progress: OnProgress,
    targets: tuple[Target, ...] = (),
    store: str = "",
    corrupted: str = "",
    real_labels: str = "",
) -> tuple[Setup, Data]:
    """What can be known to fail, such as missing data, is found here."""
    scale = SCALES.get(scale_name)
    if scale is None:
        raise InputError(
            f"there is no scale {scale_name!r}{meant_or(scale_name, SCALES)} "
            f"choose one of {', '.join(SCALES)}"
        )
    chosen = parse_data(data) if data else scale.data
    if chosen.name != "digits" and not chosen.path:
        raise InputError(
            f"--scale {scale.name} needs data: give --data {chosen.name}=FOLDER, "
            "or a folder with train/ and test/, or an .npz file"
        )
    chosen = replace(chosen, store=store)
    base = replace(scale.base, data=chosen)
    if scale.name == "smoke" and chosen.name != "digits":
        base = replace(base, augment=AugmentSettings())  # mirrored or closely cropped they stay what they are
    if chosen.name == "folder":
        base = replace(base, data=replace(chosen, image_size=scale.image_size))
        if scale.name == "paper":
            base, scale = with_settings(base, IMAGENET), replace(scale, own=ON_IMAGENET)
    loaded = load(base.data, progress)
    if scale.name == "smoke":
        brief = within_smoke(base.data, loaded)
        loaded = loaded if brief == base.data else load(brief, progress)
        base = replace(base, data=brief)
    counts = tuple(loaded.train.labels.bincount(minlength=len(loaded.classes)).tolist())
    side = loaded.train.images.shape[-1]
    if corrupted:
        for kind in NAMES:
            for severity in SEVERITIES:
                locate(corrupted, kind, severity)
    if real_labels:
        ReaL(labels=real_labels).read(loaded)
    return Setup(scale, base, counts, side, out, targets, corrupted, real_labels), loaded


def within_smoke(settings: DataSettings, data: Data) -> DataSettings:
    """Fewer images of fewer pixels, where there are more than a smoke run has time for."""
    if data.train.images.shape[-1] > SMOKE_SIDE:
        settings = replace(settings, image_size=SMOKE_SIDE)
    if len(data.train) > SMOKE_IMAGES:
        fewest = int(data.train.labels.bincount(minlength=len(data.classes)).min())
        settings = replace(settings, per_class=min(fewest, max(1, SMOKE_IMAGES // len(data.classes))))
    return settings


def parse_data(text: str) -> DataSettings:
    """NAME=PATH, `digits`, or a path that shows what it is."""
    name, equals, path = text.partition("=")
    if equals and name in DATASETS:
        return DataSettings(name, path)  # type: ignore[arg-type]
    if equals and not Path(text).exists():
        raise InputError(
            f"--data is {text!r}: there is no kind of data {name!r}{meant_or(name, DATASETS)} "
            f"choose one of {', '.join(DATASETS)}"
        )
    if text == "digits":
        return DataSettings("digits")
    root = Path(text).expanduser()
    if not root.exists():
        raise InputError(
            f"--data is {text!r}, and there is no such file or folder; write NAME=PATH or a path"
        )
    if root.suffix == ".npz":
        return DataSettings("npz", text)
    for kind, inside in (("cifar100", "cifar-100-python"), ("cifar10", "cifar-10-batches-py")):
        if root.name == inside or (root / inside).is_dir():
            return DataSettings(kind, text)  # type: ignore[arg-type]
    if root.is_dir() and find_splits(root)[1]:
        return DataSettings("folder", text)
    raise InputError(
        f"--data is {text!r}, which is neither an .npz file, nor a folder with train/ and test/, nor CIFAR; "
        "say what it is, as in cifar100=FOLDER"
    )
