"""A recipe for a folder of images that has none: chosen from what lies there, and explained."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from varcon.augment import AugmentSettings
from varcon.core import InputError, OnProgress
from varcon.data import DataSettings
from varcon.data.assemble import available_memory, processes_here
from varcon.data.folder import usual_size
from varcon.data.listing import class_folders, find_images, find_splits, left_out, with_held_out
from varcon.data.subset import hold_out, rank_in_class
from varcon.encoders import EncoderSettings, stem_for
from varcon.evaluations.linear import LinearProbe
from varcon.files import refuse_other_than_utf8
from varcon.methods.varcon import VarConSettings
from varcon.recipe import Recipe, TrainSettings, recipe_to_toml

MEASURED = 200  # images whose size is looked at
UNEVEN = (
    3  # times as many images in the largest class as in the smallest, from which classes are drawn evenly
)
MOST_NEIGHBOURS = 20  # that vote
FEW = 5  # images of a class, below which little can be learned of it
TABLES = (".csv", ".tsv", ".parquet", ".feather", ".xlsx")
SEAL = "# As it was chosen:"


@dataclass(frozen=True)
class Suggestion:
    recipe: Recipe[Any]
    reasons: list[str]  # each a sentence

    def as_recipe_file(self, command: str) -> str:
        """With the command and the reasons at its head, and at its end what shows whether it was edited."""
        head = [command, "", *self.reasons]
        text = "".join(f"# {line}".rstrip() + "\n" for line in head) + recipe_to_toml(self.recipe)
        return text + seal(text)


def seal(text: str) -> str:
    """Of all but the command in the first line, which flags change and the choice does not."""
    digest = hashlib.sha256(text.partition("\n")[2].encode()).hexdigest()[:16]
    return f"\n{SEAL} {digest}\n"


def is_edited(text: str) -> bool:
    """Whether a recipe file is other than it was written; one that this program did not write is, too."""
    return text != unsealed(text) + seal(unsealed(text))


def unsealed(text: str) -> str:
    return text.rpartition(f"\n{SEAL}")[0]


def suggest(
    path: Path, device: str, progress: OnProgress | None = None, data: DataSettings | None = None
) -> Suggestion:
    """`device` is cpu or cuda: where there is no GPU, images and encoder are small. `data` has what the user
    asks of the images: how many are left to train on decides how long."""
    refuse_other_data(path)
    found = find_images(path)
    images, classes = len(found.train_files), len(found.classes)
    if classes < 2:
        (one,) = class_folders(find_splits(path)[0])
        hint = f"; if {one} holds their folders, give that" if class_folders(one) else ""
        raise InputError(f"{path} has images of one class alone; to tell classes apart it takes two{hint}")
    drawn = with_held_out(found, path)
    side = usual_side(found.train_files, progress)
    asked = data or DataSettings("folder", str(path))
    left = left_to_train(drawn.train_labels, asked).tolist()
    training, tests = len(left), len(drawn.test_files)
    fewer = training < len(drawn.train_files)
    counts = Counter(left if fewer else found.train_labels)
    split = (
        f"and {tests:,} to judge by"
        if found.test_files
        else f"{tests:,} of them held out to judge by, as there is no folder of test images"
    )
    reasons = [f"{images:,} images of {classes} classes, {split}.", *left_out(path)]
    if fewer:
        reasons.append(f"{training:,} are left to train on (data.per_class, data.held_out).")

    in_memory = 0 if asked.store else images + len(found.test_files)
    size, encoder, why = chosen_encoder(side, images, in_memory, device)
    reasons.append(why)
    epochs, batch_size, why = chosen_budget(training, device)
    reasons.append(why)
    method, augment, whys = chosen_method(batch_size, classes, asked.image_size or size, device)
    reasons += whys
    fewest, most = min(counts.values()), max(counts.values())
    balanced = most > UNEVEN * fewest
    if balanced:
        reasons.append(
            f"Classes have from {fewest:,} to {most:,} images: each is drawn equally often (train.balanced)."
        )
    half = median_low(Counter(left).values())  # held-out images do not vote
    if half < MOST_NEIGHBOURS:
        reasons.append(
            f"Half of the classes have {half} training images or fewer: the nearest {half} vote "
            "(evaluate.knn.k)."
            if half > 1
            else "Half of the classes have one training image alone: the nearest one votes (evaluate.knn.k)."
        )
    small = [found.classes[label] for label, count in sorted(counts.items()) if count < FEW]
    if small:
        named = ", ".join(small[:5]) + (" and others" if len(small) > 5 else "")
        reasons.append(
            f"Fewer than {FEW} images: {named}. Little can be learned of these; add some if you can."
        )
    reasons.append(
        "Mirrored images count as the same; where they do not (text, digits), set augment.flip to 0."
    )
    train = TrainSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=0.1,
        weight_decay=5e-4,
        warmup_epochs=chosen_warmup(epochs),
        precision="auto",
        balanced=balanced,
    )
    recipe: Recipe[Any] = Recipe(
        data=DataSettings("folder", str(path), size),
        augment=augment,
        encoder=encoder,
        method=method,
        train=train,
    )
    knn = replace(recipe.evaluate.knn, k=min(MOST_NEIGHBOURS, half))
    linear = replace(recipe.evaluate.linear, batch_size=chosen_probe_batch(training))
    evaluate = replace(recipe.evaluate, knn=knn, linear=linear)
    return Suggestion(replace(recipe, evaluate=evaluate), reasons)


def left_to_train(labels: Sequence[int], asked: DataSettings) -> Tensor:
    """The labels of the images that `varcon.data.load` leaves; more of a class than there are, it refuses."""
    left = torch.tensor(labels)
    if asked.held_out:
        left = left[hold_out(left, asked.held_out, seed=0)[0]]
    if asked.per_class:
        left = left[rank_in_class(left, asked.per_class_seed) < asked.per_class]
    return left


def refuse_other_data(path: Path) -> None:
    """What is no folder, by what may be meant."""
    if path.is_dir():
        refuse_other_than_utf8(path)
        return
    if not path.exists():
        raise InputError(f"there is no folder {path.absolute()}: give --data a folder of images")
    kind = path.suffix.lower()
    if kind == ".npz":
        cure = (
            f'train by a recipe whose section [data] has name = "npz" and path = "{path}" '
            "(docs/own-data.md has examples)"
        )
    elif kind in TABLES:
        cure = "for a table there is VarConClassifier, in Python (docs/scikit-learn.md)"
    else:
        cure = "give the folder in which each class has a folder of its own, unpacked if need be"
    raise InputError(f"{path} is a file, and --data takes a folder of images: {cure}")


def usual_side(files: list[Path], progress: OnProgress | None) -> int:
    """The median short side of images taken evenly from all of them."""
    return usual_size(files[:: max(1, len(files) // MEASURED)], progress, largest=None)


def chosen_encoder(side: int, images: int, in_memory: int, device: str) -> tuple[int, EncoderSettings, str]:
    """`in_memory` counts the test images too, which live there with the others."""
    if device != "cuda":
        size = min(side, 32)
        why = f"Without a GPU: images at {size} pixels and a small encoder."
        return size, EncoderSettings("small"), why
    size = wanted = min(side, 128 if images < 20_000 else 224)
    free = available_memory()
    while free is not None and size > 32 and processes_here() * 3 * in_memory * size * size > free // 2:
        size //= 2
    name = "resnet18" if images < 50_000 else "resnet50"
    why = f"Images are {side} pixels wide or high and are read at {size}; the encoder is a {name}."
    if size < wanted:
        why += (
            f" Memory has no room for them at {wanted}; a folder on a fast disk has, by --data.store FOLDER."
        )
    return size, EncoderSettings(name, stem_for(size)), why  # type: ignore[arg-type]


def chosen_method(
    batch_size: int, classes: int, size: int, device: str
) -> tuple[VarConSettings, AugmentSettings, list[str]]:
    if device != "cuda":
        why = (
            "What learns soonest is chosen: one view of an image, shifted and mirrored, and for each class a "
            "learned vector to compare its features with (augment.policy, augment.shift, method.references, "
            "method.classes, method.head)."
        )
        method = VarConSettings(references="learned", classes="all", head="none")
        shift = min(AugmentSettings.shift, size // 8)  # of 8 pixels, one already is a good part
        return method, AugmentSettings("crop-flip", views=1, shift=shift), [why]
    augment = AugmentSettings(crop_area=(0.3, 1.0))
    if batch_size < 2 * classes:
        why = (
            f"A batch has fewer than two images of each of the {classes} classes: a class is represented by "
            "its running mean rather than by those in the batch (method.references)."
        )
        return VarConSettings(references="ema"), augment, [why]
    return VarConSettings(), augment, []


def chosen_warmup(epochs: int) -> int:
    return min(max(1, epochs // 20), epochs - 1)


def chosen_probe_batch(images: int) -> int:
    """Ten steps an epoch: of the usual batches a small folder fills one or two, in whose few steps a linear
    probe does not get far."""
    batch = LinearProbe.batch_size
    while batch > 16 and batch * 10 > images:
        batch //= 2
    return batch


def chosen_budget(images: int, device: str) -> tuple[int, int, str]:
    """Epochs that show the encoder about as many images whatever the number of different ones."""
    shown, least, most, largest = (4_000_000, 50, 400, 512) if device == "cuda" else (160_000, 20, 120, 128)
    epochs = min(most, max(least, shown // images))
    batch_size = largest
    while batch_size > images // 2:
        batch_size //= 2
    batch_size = max(2, batch_size)
    return epochs, batch_size, f"{epochs} epochs in batches of {batch_size}."
