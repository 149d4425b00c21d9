"""All of a model but its weights, in files that need no Python to be read: config.json and two matrices."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from varcon.core import InputError
from varcon.encoders import ENCODERS, EncoderSettings
from varcon.files import replacing, write_json

FORMAT = "varcon model, version 2"
CONFIG, CENTROIDS, CLASSIFIER = "config.json", "centroids.npy", "classifier.npy"

STEPS = [
    "turn the image upright by its EXIF orientation",
    "convert it to RGB; of 16-bit grey the upper 8 bits count",
    "cut out the central square",
    "resize it to image_size x image_size: bilinear, antialiased, as Pillow does",
    "divide the pixels by 255, subtract mean and divide by std, channel by channel; channels first",
]
RULES = {
    "direction": "an image's features, divided by their length",
    "score": "direction times each row of classifier.npy but for its last number, plus that number",
    "probability": "softmax(score), in the order of classes, if they are as frequent as in training",
    "cosine": "direction times each row of centroids.npy",
    "likelihood": "log(mean(exp(cosine / likelihood_temperature)))",
    "unlike_anything_seen": "likelihood < threshold, as of 1 % of the test images; of < 100, of 1 or none",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    encoder: EncoderSettings
    features: int
    image_size: int
    mean: tuple[float, ...]  # per channel, of images scaled to [0, 1]
    std: tuple[float, ...]
    classes: list[str]
    centroids: np.ndarray  # [C, F] float32 unit vectors
    classifier: np.ndarray  # [C, F + 1] float32: log odds by directions, the last column a bias
    likelihood_temperature: float  # the method's own
    threshold: float  # an image of lower likelihood is unlike anything seen
    measured: dict[str, float] = field(default_factory=dict)  # on the test images
    origin: dict[str, Any] = field(default_factory=dict)  # the run that this is from

    def scores(self, directions: np.ndarray) -> np.ndarray:
        """Log odds of the classes [N, C], by features of length 1 [N, F]."""
        return directions @ self.classifier[:, :-1].T + self.classifier[:, -1]

    def write(self, folder: Path) -> None:
        for name, matrix in ((CENTROIDS, self.centroids), (CLASSIFIER, self.classifier)):
            with replacing(folder / name) as temporary, temporary.open("wb") as file:
                np.save(file, matrix)
        write_json(folder / CONFIG, self.to_dict())  # last: it marks the folder as complete

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "encoder": {"name": self.encoder.name, "stem": self.encoder.stem, "features": self.features},
            "preprocessing": {
                "steps": STEPS,
                "image_size": self.image_size,
                "mean": self.mean,
                "std": self.std,
            },
            "classes": self.classes,
            "prediction": {
                "rules": RULES,
                "likelihood_temperature": self.likelihood_temperature,
                "threshold": self.threshold,
            },
            "measured": self.measured,
            "origin": self.origin,
        }


def read_config(folder: Path) -> Config:
    path = folder / CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        form = str(values.get("format"))
        if form != FORMAT and form.startswith(FORMAT.split(",")[0]):
            raise InputError(
                f"{path} is of {form}, and this varcon reads version {FORMAT[-1]}; export it again"
            )
        if form != FORMAT:
            raise InputError(f"{path} is not that of a varcon model; name a run or a folder that it exported")
        encoder, preprocessing, prediction = values["encoder"], values["preprocessing"], values["prediction"]
        if encoder["name"] not in ENCODERS:
            raise KeyError(encoder["name"])
        found = Config(
            encoder=EncoderSettings(encoder["name"], encoder["stem"]),
            features=encoder["features"],
            image_size=preprocessing["image_size"],
            mean=tuple(preprocessing["mean"]),
            std=tuple(preprocessing["std"]),
            classes=values["classes"],
            centroids=np.load(folder / CENTROIDS, allow_pickle=False),
            classifier=np.load(folder / CLASSIFIER, allow_pickle=False),
            likelihood_temperature=prediction["likelihood_temperature"],
            threshold=prediction["threshold"],
            measured=values["measured"],
            origin=values["origin"],
        )
        for name, matrix, more in ((CENTROIDS, found.centroids, 0), (CLASSIFIER, found.classifier, 1)):
            if matrix.shape != (len(found.classes), found.features + more):
                raise ValueError(f"{name} has the shape {matrix.shape}")
    except InputError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} does not hold a whole model ({error}); export it again") from None
    return found
