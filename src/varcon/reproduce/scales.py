"""The settings of each scale, and what a method's differ in there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from varcon.data import DataSettings
from varcon.encoders import EncoderSettings
from varcon.evaluations import EvaluateSettings
from varcon.evaluations.knn import KNN
from varcon.evaluations.map2d import Map2D
from varcon.recipe import DIGITS, Recipe, TrainSettings

Settings = Mapping[str, Any]  # by their dotted names in a recipe

NEIGHBOURS = (1, 5, 10, 20, 40, 80, 200)  # of the figure over K
MAP = Map2D(perplexity=50)  # of tsne-compare, as the paper has it

SMOKE_IMAGES, SMOKE_SIDE = 1500, 16  # that the smoke scale trains on, at most

# What a method's runs differ in from VarCon's, as in recipes/digits and recipes/cifar100.
ON_DIGITS: dict[str, Settings] = {
    "ce": {"augment.views": 1},
    "paco": {"method.queue": 1024, "method.momentum": 0.99},
    "gpaco": {"method.queue": 1024},
    "varcon-paco": {"method.queue": 1024, "method.momentum": 0.99},
    "varcon-gpaco": {"method.queue": 1024},
    "moco": {"method.queue": 1024, "method.momentum": 0.99},
    "byol": {"method.hidden": 256, "method.dimensions": 64, "method.momentum": 0.98},
    "swav": {"method.prototypes": 100, "method.hidden": 256, "method.dimensions": 64},
    "vicreg": {"method.dimensions": 256},
    "barlow": {"method.dimensions": 256},
}
PACO = {
    "method.alpha": 0.01,
    "method.temperature": 0.07,
    "method.queue": 1024,
    "train.learning_rate": 0.1,
    "train.weight_decay": 5e-4,
}
ON_CIFAR100: dict[str, Settings] = {
    "ce": {
        "augment.policy": "crop-flip",
        "augment.views": 1,
        "train.learning_rate": 0.1,
        "train.weight_decay": 5e-4,
        "train.warmup_epochs": 5,
    },
    **dict.fromkeys(("paco", "gpaco", "varcon-paco", "varcon-gpaco"), PACO),
    "moco": {"method.queue": 32768},
    "swav": {"method.queue": 3840},
    "vicreg": {"method.dimensions": 2048},
    "barlow": {"method.dimensions": 2048},
}
CIFAR100_TRAINING = TrainSettings(
    epochs=100,
    batch_size=512,
    learning_rate=0.05,
    weight_decay=1e-4,
    warmup_epochs=10,
    precision="bf16",
)


@dataclass(frozen=True)
class Scale:
    name: str
    text: str  # what it costs
    data: DataSettings  # its own; another may take its place
    base: Recipe[Any]  # of a VarCon run
    own: Mapping[str, Settings]  # in which other methods differ
    image_size: int  # of a folder's images
    stands_in: bool = False  # whether what is missing (targets, labels) is made from the data themselves


SCALES = {
    "smoke": Scale(
        "smoke",
        "digits, a small encoder, 12 epochs: minutes on two cores",
        DataSettings("digits"),
        replace(
            DIGITS,
            train=replace(DIGITS.train, epochs=12),
            evaluate=EvaluateSettings(knn=KNN(k=5, also=NEIGHBOURS), map2d=MAP),
        ),
        ON_DIGITS,
        image_size=SMOKE_SIDE,
        stands_in=True,
    ),
    "small": Scale(
        "small",
        "CIFAR-100, ResNet-18, 100 epochs: minutes a run on one GPU",
        DataSettings("cifar100"),
        Recipe(
            encoder=EncoderSettings("resnet18"),
            train=CIFAR100_TRAINING,
            evaluate=EvaluateSettings(knn=KNN(k=20, also=NEIGHBOURS), map2d=MAP),
        ),
        ON_CIFAR100,
        image_size=64,
    ),
    "paper": Scale(
        "paper",
        "ResNet-50, 200 epochs on CIFAR; 350 on a folder, in batches of 512: 43 GB of a GPU",
        DataSettings("cifar100"),
        Recipe(
            encoder=EncoderSettings("resnet50"),
            train=replace(CIFAR100_TRAINING, epochs=200),
            evaluate=EvaluateSettings(knn=KNN(k=20, also=NEIGHBOURS), map2d=MAP),
        ),
        ON_CIFAR100,
        image_size=224,
    ),
}
IMAGENET_SIZE = (1000, 1_281_167)  # classes and training images
# The methods' own defaults are those for ImageNet; what remains is how some of them are trained.
PACO_IMAGENET = {"train.optimizer": "sgd", "train.learning_rate": 0.04}
# Table 3 has the values of Table 1 and the figures in its rows of AutoAugment; which has no blur of its own.
AUTO_ON_IMAGENET = {"augment.policy": "auto", "augment.auto": "imagenet", "augment.blur": 0.0}
ON_IMAGENET: dict[str, Settings] = {
    **dict.fromkeys(("varcon", "supcon"), AUTO_ON_IMAGENET),
    "ce": {  # crop and flip, as everybody trains it there; the crop is of a part, not a shift as on CIFAR
        "augment.views": 1,
        "augment.jitter_probability": 0.0,
        "augment.grey": 0.0,
        "augment.blur": 0.0,
        "train.optimizer": "sgd",
        "train.learning_rate": 0.1,
        "train.warmup_epochs": 5,
    },
    **dict.fromkeys(("paco", "gpaco", "varcon-paco", "varcon-gpaco"), PACO_IMAGENET),
    "swav": {"method.queue": 3840},
}
# The paper's ImageNet settings; but it gives no rate for LARS, and SupCon's, which trains as long, serves.
# Its batches of 4096 lie on 8 GPUs: ours are what one of those holds, with the rate in proportion.
SIM_ON_IMAGENET = {"augment.policy": "sim", "augment.blur": 0.5}
IMAGENET = {
    **SIM_ON_IMAGENET,
    "encoder.stem": "imagenet",
    "augment.crop_area": [0.08, 1.0],
    "train.epochs": 350,
    "train.batch_size": 512,
    "train.optimizer": "lars",
    "train.learning_rate": 0.4,
}
