"""What a run's images say beyond its encoder, gathered once and kept in the run's folder `deploy`.

A linear classifier of features, class centroids and a threshold for what is unlike anything seen, and the
training images' features, among which a new image finds its neighbours.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from varcon.core import Data, InputError, OnProgress
from varcon.data import DataSettings, load
from varcon.data.listing import find_images, with_held_out
from varcon.deploy.config import Config, read_config
from varcon.deploy.keeping import place_to_keep
from varcon.deploy.vectors import map_rows, npy_rows
from varcon.evaluations import FurtherSettings
from varcon.evaluations.calibration import cosine_scores, judge, summary
from varcon.evaluations.centroid import complete_centroids
from varcon.evaluations.discriminant import Discriminant, fit_discriminant
from varcon.evaluations.frozen import FrozenEncoder, checked_features, row_blocks
from varcon.evaluations.store import FeatureStore
from varcon.files import file_digest, write_json
from varcon.recipe import Recipe, recipe_to_dict
from varcon.run import load_encoder
from varcon.run_folder import (
    finished_weights,
    is_trained_on,
    names_digest,
    recorded_facts,
    stored_recipe,
    without_lost_store,
)

FOLDER, TRAINING, VECTORS = "deploy", "training.json", "training.npy"
UNUSUAL = 0.01  # share of the test images that count as unlike anything seen
ENOUGH = 100  # test images, of which that share is one or more
ROWS_AT_ONCE = 4096
FIT = 2  # how the classifier is fitted: what was kept of another way is made again


@dataclasses.dataclass(frozen=True)
class Training:
    """The training images, for neighbours."""

    vectors: np.ndarray  # [N, F] of length 1, mapped from the disk
    labels: list[int]
    files: list[str] | None  # of data that are a folder, relative to `root`
    root: str  # absolute: this stays on the machine, and no export has it


def of_run(
    folder: Path, data_path: str | Path | None, device: torch.device, progress: OnProgress | None
) -> tuple[Config, Training]:
    recipe = stored_recipe(folder)
    weights = finished_weights(folder)
    digest = file_digest(weights)
    if data_path and not Path(data_path).expanduser().exists():
        raise InputError(f"there is no {data_path}; say where the data of {folder} are with --data.path")
    found = held(folder / FOLDER, digest)
    if found is None:
        found = read(learn(folder, recipe, weights, digest, data_path, device, progress))
    root = absolute(data_path or found[1].root)
    if sorted_anew(folder, found[1], Path(root)):
        found = read(learn(folder, recipe, weights, digest, root, device, progress))
    config, training = found
    return config, dataclasses.replace(training, root=root)


def sorted_anew(folder: Path, training: Training, root: Path) -> bool:
    """Whether the images of training lie in other class folders than when they were learned from. Where some
    are gone, what is kept stays all that there is."""
    if not root.is_dir() or all((root / file).exists() for file in training.files or ()):
        return False
    try:
        now = with_held_out(find_images(root), root).train_files
    except InputError:  # such as a folder to which no disk is mounted
        return False
    return recorded_facts(folder).get("files") == names_digest(map(str, now))


def absolute(path: str | Path) -> str:
    """For the folder in which training was started is not the one in which a run is used."""
    return str(Path(path).expanduser().resolve())


def held(kept: Path, digest: str) -> tuple[Config, Training] | None:
    """What is kept, if it is whole and of these weights; what is damaged is made again."""
    try:
        config, training = read(kept)
        fits = config.origin["weights"] == digest and config.origin["fit"] == FIT
        return (config, training) if fits else None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read(kept: Path) -> tuple[Config, Training]:
    config = read_config(kept)
    facts = json.loads((kept / TRAINING).read_text(encoding="utf-8"))
    training = Training(map_rows(kept / VECTORS), **facts)
    count = len(training.labels)
    if training.vectors.shape != (count, config.features) or len(training.files or training.labels) != count:
        raise ValueError(f"{TRAINING} and {VECTORS} are not of the same images")
    return config, training


def learn(
    folder: Path,
    recipe: Recipe[Any],
    weights: Path,
    digest: str,
    data_path: str | Path | None,
    device: torch.device,
    progress: OnProgress | None,
) -> Path:
    """The folder that it has written."""
    source = recipe.with_data_path(data_path).data
    data = data_of(folder, source, progress)
    if data.train.images.ndim == 2:
        raise InputError(
            f"{folder} was trained on vectors, and this is for images; VarConClassifier predicts from vectors"
        )
    encoder = load_encoder(recipe, weights, data)
    frozen = FrozenEncoder(encoder, data, device, progress, FeatureStore(folder / "features", weights, data))
    train, labels = checked_features(frozen, data.train)
    test = checked_features(frozen, data.test)[0]
    further = FurtherSettings().at_temperature(recipe.method)
    centroids = complete_centroids(train, labels, data.classes).directions
    classifier, crossed = fit_discriminant(frozen, data)
    judged = judge(torch.nn.Identity(), crossed, data.test.labels.to(device))
    scores = summary(judged, further.calibration.bins).scores
    tau1 = further.outliers.temperature
    config = Config(
        encoder=recipe.encoder,
        features=encoder.features,
        image_size=data.train.images.shape[-1],
        mean=data.mean,
        std=data.std,
        classes=data.classes,
        centroids=centroids.cpu().numpy().astype(np.float32),
        classifier=as_matrix(classifier),
        likelihood_temperature=tau1,
        threshold=threshold_of(train, test, centroids, tau1),
        measured={name: scores[name] for name in ("top1", "ece", "nll")},
        origin=origin_of(recipe, data, digest),
    )
    kept = place_to_keep(folder, FOLDER)
    with npy_rows(kept / VECTORS, encoder.features) as append:
        for rows in train.split(ROWS_AT_ONCE):
            append(F.normalize(rows, dim=1).cpu().numpy())
    write_json(
        kept / TRAINING,
        {
            "labels": data.train.labels.tolist(),
            "files": data.train.files,
            "root": absolute(source.path),
        },
    )
    config.write(kept)
    return kept


def data_of(folder: Path, source: DataSettings, progress: OnProgress | None) -> Data:
    """The run's data, which must be those that it was trained on."""
    try:
        data = load(without_lost_store(folder, source), progress)
    except InputError as error:
        raise InputError(
            f"{folder} is used for the first time, or by another version, and needs its training data once: "
            f"{error}; if they have moved, say where with --data.path"
        ) from None
    if not is_trained_on(folder, data):
        raise InputError(
            f"{folder} was trained on other data than lie at {source.path!r} now; say where those are with "
            "--data.path"
        )
    return data


def as_matrix(classifier: Discriminant) -> np.ndarray:
    """[C, F + 1]: temperature and prior are in the numbers."""
    bias = classifier.bias / classifier.temperature + classifier.prior
    matrix = torch.cat([classifier.weight / classifier.temperature, bias[:, None]], dim=1)
    return matrix.cpu().numpy()


def threshold_of(
    train: torch.Tensor, test: torch.Tensor, centroids: torch.Tensor, temperature: float
) -> float:
    """The likelihood below which one in a hundred test images lies. Of few that is the lowest, which chance
    may have put above many training images: then only one in a hundred of these may lie below it too.

    Not the quantile of all together: where training images are many and fit better, as they do once they are
    learned by heart, every test image is among the lowest hundredth.
    """
    parts = (test,) if len(test) >= ENOUGH else (test, train)
    return min(float(np.quantile(likelihoods(part, centroids, temperature), UNUSUAL)) for part in parts)


@torch.no_grad()
def likelihoods(features: torch.Tensor, centroids: torch.Tensor, temperature: float) -> np.ndarray:
    """log p(z) of equally frequent classes, but for a constant, as the evaluation `outliers` has it."""
    parts = []
    for block in row_blocks(len(features), len(centroids)):
        scores = cosine_scores(centroids, temperature)(features[block]).double()
        parts.append(scores.logsumexp(1) - np.log(len(centroids)))
    return torch.cat(parts).cpu().numpy()


def origin_of(recipe: Recipe[Any], data: Data, digest: str) -> dict[str, Any]:
    """The recipe but for the places of files, which tell of a machine and not of the model."""
    settings = recipe_to_dict(recipe)
    settings["data"]["path"] = Path(recipe.data.path).name
    settings["data"]["store"] = Path(recipe.data.store).name
    settings["encoder"]["weights"] = Path(recipe.encoder.weights).name
    return {
        "weights": digest,
        "fit": FIT,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "recipe": settings,
    }
