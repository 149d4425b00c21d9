"""A model that is ready for use: images in, features and predictions out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varcon.augment import prepare
from varcon.core import InputError, OnProgress
from varcon.deploy import learned
from varcon.deploy.config import CONFIG, Config, read_config
from varcon.deploy.images import Images, pixel_blocks
from varcon.deploy.learned import Training
from varcon.deploy.vectors import nearest, unit
from varcon.engine.checkpoint import load_weights
from varcon.run import pick_device
from varcon.run_folder import runs_in

IMAGES_AT_ONCE = 64  # through the encoder, which takes most of the memory
SAME = 0.999  # cosine above which an image is the same as one of training, but for its file

Encode = Callable[[Tensor], Tensor]  # prepared images [n, 3, size, size] to features [n, F]


@dataclass(frozen=True)
class Neighbour:
    """A training image."""

    index: int  # among the training images
    label: str
    cosine: float
    path: str | None = None  # where the data are a folder
    name: str = ""  # short, for people


@dataclass(frozen=True)
class Prediction:
    label: str
    probability: float
    unlike_anything_seen: bool  # of lower likelihood than 99 % of the test images: think before you trust it
    likelihood: float  # log p of the features, but for a constant
    top: list[tuple[str, float]]  # the most likely classes and their probabilities, as many as asked for
    neighbours: list[Neighbour]  # the nearest first; none in a model that was exported


class Model:
    """`load` makes it."""

    def __init__(
        self,
        encode: Encode,
        config: Config,
        weights: Path,
        device: torch.device,
        training: Training | None = None,
    ) -> None:
        self.config, self.weights, self.device = config, weights, device
        self._encode, self.training = encode, training

    def __repr__(self) -> str:
        size = self.config.image_size
        return f"<varcon model {self.weights.parent}: {len(self.classes)} classes, {size} x {size} pixels>"

    @property
    def classes(self) -> list[str]:
        return self.config.classes

    @property
    def features(self) -> int:
        return self.config.features

    def embed(self, images: Images) -> np.ndarray:
        """The encoder's features [N, F] of paths, PIL images, or uint8 arrays or tensors; one is N = 1."""
        blocks = pixel_blocks(images, self.config.image_size)
        nothing = np.empty((0, self.features), np.float32)
        return np.concatenate([nothing, *(self.embed_pixels(pixels) for pixels in blocks)])

    def predict(self, images: Images, top: int = 1, neighbours: int = 3) -> list[Prediction]:
        """Of each image the class, the `top` most likely classes and the nearest training images."""
        return self.predict_features(self.embed(images), top, neighbours)

    @torch.inference_mode()
    def embed_pixels(self, pixels: Tensor) -> np.ndarray:
        """Of images [N, 3, size, size] uint8 of the model's own size."""
        features = np.empty((len(pixels), self.features), np.float32)
        for start in range(0, len(pixels), IMAGES_AT_ONCE):
            part = pixels[start : start + IMAGES_AT_ONCE].to(self.device)
            encoded = self._encode(prepare(part, self.config.mean, self.config.std))
            features[start : start + len(part)] = encoded.float().cpu().numpy()
        return features

    def predict_features(self, features: np.ndarray, top: int = 1, neighbours: int = 3) -> list[Prediction]:
        """Of features that `embed` gave."""
        if top < 1 or neighbours < 0:
            raise InputError(f"top is {top} and neighbours {neighbours}; ask for 1 class or more")
        if not np.isfinite(features).all():
            raise InputError(
                "the features hold NaN or infinity; train the encoder with a lower learning rate"
            )
        from scipy.special import logsumexp, softmax

        directions = unit(features)
        cosines = (directions @ self.config.centroids.T).astype(np.float64)  # [N, C]
        scores = self.config.scores(directions).astype(np.float64)  # [N, C]
        probabilities = softmax(scores, axis=1)
        likelihoods = logsumexp(cosines / self.config.likelihood_temperature, axis=1) - np.log(
            len(self.classes)
        )
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        unlike = self._unlike(directions, likelihoods)
        around = self._neighbours(directions, neighbours)
        predictions = []
        for row, places in enumerate(order):
            likely = [(self.classes[place], float(probabilities[row, place])) for place in places]
            predictions.append(
                Prediction(*likely[0], bool(unlike[row]), float(likelihoods[row]), likely, around[row])
            )
        return predictions

    def _unlike(self, directions: np.ndarray, likelihoods: np.ndarray) -> np.ndarray:
        """Whether each image is unlike anything seen [N]: a training image is not, however odd it is."""
        unlike = likelihoods < self.config.threshold
        if self.training is not None:
            cosines, _ = nearest(directions[unlike], self.training.vectors, 1)
            unlike[unlike] = cosines[:, 0] <= SAME
        return unlike

    def _neighbours(self, directions: np.ndarray, count: int) -> list[list[Neighbour]]:
        training = self.training
        if training is None or not count:
            return [[] for _ in directions]

        def neighbour(index: int, cosine: float) -> Neighbour:
            label = self.classes[training.labels[index]]
            if training.files is None:
                return Neighbour(index, label, cosine, None, f"training image {index} ({label})")
            name = training.files[index]
            return Neighbour(index, label, cosine, str(Path(training.root, name)), name)

        return [
            [neighbour(int(row), float(cosine)) for row, cosine in zip(rows, cosines, strict=True)]
            for cosines, rows in zip(*nearest(directions, training.vectors, count), strict=True)
        ]


def load(
    path: str | Path,
    device: str = "auto",
    data_path: str | Path | None = None,
    progress: OnProgress | None = None,
) -> Model:
    """A model from the folder of a finished run, or from a folder or file that `varcon export` wrote.

    The first time a run is loaded its training and test images are encoded, where `varcon evaluate` has not
    done so already; `data_path` says where they lie, if not where the recipe has them.
    """
    place = Path(path).expanduser()
    where = torch.device(pick_device(device))
    check_model(place)
    if (place / "recipe.json").exists():
        config, training = learned.of_run(place, data_path, where, progress)
        weights = place / "encoder.safetensors"
        return Model(from_weights(weights, config, where), config, weights, where, training)
    weights = exported(place)[0]
    config = read_config(weights.parent)
    return Model(READERS[weights.name](weights, config, where), config, weights, where)


def check_model(place: Path) -> None:
    if not place.exists():
        raise InputError(f"there is no run or exported model {place}")
    if not (place / "recipe.json").exists() and not exported(place):
        raise InputError(
            f"{place} is neither a run nor an exported model: it has no recipe.json, and not both of "
            f"{CONFIG} and one of {', '.join(READERS)}" + (f"; {hint}" if (hint := runs_in(place)) else "")
        )


def exported(place: Path) -> list[Path]:
    """What `varcon export` wrote there as weights or a program; none where that cannot be used."""
    folder = place if place.is_dir() else place.parent
    found = [folder / name for name in READERS if (folder / name).exists()]
    return [path for path in found if place in (folder, path) and (folder / CONFIG).exists()]


def encoder_of(weights: Path, config: Config) -> torch.nn.Module:
    # Not on the device "meta", where drawing the first weights imports torch's compiler and takes seconds.
    with torch.random.fork_rng(devices=[]):
        encoder = config.encoder.build()
    load_weights(weights, encoder)
    return encoder.eval().requires_grad_(False)


def from_weights(weights: Path, config: Config, device: torch.device) -> Encode:
    encoder: Any = encoder_of(weights, config)
    return encoder.to(device, memory_format=torch.channels_last)


def from_program(weights: Path, config: Config, device: torch.device) -> Encode:
    from torch.export.passes import move_to_device_pass

    try:
        program = torch.export.load(weights)
    except Exception as error:  # of zip, JSON and torch's own kinds
        raise InputError(f"{weights} cannot be read as a program ({error}); export it again") from None
    return move_to_device_pass(program, device).module()


def from_onnx(weights: Path, config: Config, device: torch.device) -> Encode:
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"{weights} needs onnxruntime: pip install 'varcon[onnx]'") from None

    available = onnxruntime.get_available_providers()
    wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    providers = [name for name in (*wanted, "CPUExecutionProvider") if name in available]
    try:
        session = onnxruntime.InferenceSession(weights, providers=providers)
    except Exception as error:  # of its own kinds, which it does not export
        raise InputError(f"{weights} cannot be read as ONNX ({error}); export it again") from None

    def encode(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["features"], {"images": np.ascontiguousarray(images.cpu())})[0])

    return encode


READERS: dict[str, Callable[[Path, Config, torch.device], Encode]] = {
    "model.safetensors": from_weights,
    "model.pt2": from_program,
    "model.onnx": from_onnx,
}
