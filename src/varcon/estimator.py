"""scikit-learn estimators: fit, transform, predict. They train in memory and leave no run behind.

    classifier = VarConClassifier(random_state=0).fit(X_train, y_train)
    classifier.score(X_test, y_test)

X is uint8 images [N, H, W], [N, H, W, 3] or [N, 3, H, W], or vectors [N, d] of any numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from varcon import saved
from varcon.augment import AugmentSettings
from varcon.core import Data, InputError, Method, Split
from varcon.data.arrays import any_images
from varcon.data.assemble import channel_statistics
from varcon.encoders import EncoderSettings, stem_for
from varcon.engine.check import check
from varcon.engine.loop import fit
from varcon.engine.order import evenly
from varcon.evaluations.centroid import class_centroids
from varcon.evaluations.frozen import IMAGES_AT_ONCE, FrozenEncoder
from varcon.layers import ProjectionHead, unit
from varcon.methods.varcon import VarConSettings
from varcon.posterior import fit_posterior
from varcon.recipe import DIGITS, Recipe, TrainSettings
from varcon.run import build_method, memory_errors, no_watcher, pick_device

# Running references: means of a batch in which a class is rare let all embeddings collapse into the
# direction of the frequent one.
METHOD = VarConSettings(references="ema", reference_momentum=0.99)
IMAGES: Recipe[VarConSettings] = replace(DIGITS, method=METHOD)
# Chosen on held-out parts of other tables than those of benchmarks/tabular.py.
VECTORS: Recipe[VarConSettings] = Recipe(
    augment=AugmentSettings(policy="vectors"),
    encoder=EncoderSettings("mlp"),
    method=METHOD,
    train=TrainSettings(learning_rate=0.8, weight_decay=2e-2),
)
LEAST_STEPS = 200  # of training where `epochs` is not given: small data are gone through more often
WARMUP = 0.05  # of the epochs
VIEWS = 4  # of each training sample to which the posterior's temperature and weights are fitted


class VarConEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Learns features in which the classes lie apart; `transform` computes them, as float32.

    encoder: one of varcon.encoders.ENCODERS; None: "small" for images, "mlp" for vectors.
    augment: a varcon.augment.AugmentSettings; None: for images small crops and changes of colour without
        mirroring, for vectors values taken from other samples. Vectors are standardised.
    epochs: passes over the data; None: 40, or more where these would be fewer than 200 steps.
    batch_size: samples in a step, or all of them where there are fewer.
    learning_rate: at batch size 256 and in proportion to `batch_size`; None: 0.4 for images, 0.8 for vectors.
    weight_decay: None: 0.002 for images; for vectors 0.02, and less in proportion to steps beyond 200.
    temperature, epsilon, learn_epsilon: as in a recipe.
    balanced: every class counts alike, however few its samples; probabilities then suppose as many of each.
    device: "auto" takes a GPU where there is one.
    random_state: None, a number or a numpy RandomState.
    verbose: 1 shows the training's progress.

    `fit` learns `encoder_`, a torch module, and `sample_shape_`, that of one sample as the encoder reads it.
    """

    def __init__(
        self,
        encoder: str | None = None,
        augment: AugmentSettings | None = None,
        epochs: int | None = None,
        batch_size: int = TrainSettings.batch_size,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        temperature: float = VarConSettings.temperature,
        epsilon: float = VarConSettings.epsilon,
        learn_epsilon: bool = VarConSettings.learn_epsilon,
        balanced: bool = TrainSettings.balanced,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.encoder = encoder
        self.augment = augment
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.temperature = temperature
        self.epsilon = epsilon
        self.learn_epsilon = learn_epsilon
        self.balanced = balanced
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        with self._unchanged_unless_done():
            self._fit(X, y)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The encoder's features [N, F]."""
        return self._features(X).cpu().numpy()

    def save(self, path: str | Path) -> None:
        """Writes all that was learned to one .safetensors file."""
        check_is_fitted(self)
        saved.write(Path(path).expanduser(), self)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """What `save` wrote; reading it runs no code."""
        return saved.read(Path(path).expanduser(), cls(device=device))

    @contextmanager
    def _unchanged_unless_done(self) -> Iterator[None]:
        """A fit that fails or is stopped must not leave the new data's scale before the old encoder."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit(self, X: Any, y: Any) -> None:
        self._learn(X, y)

    def _learn(self, X: Any, y: Any) -> tuple[Method, Data, AugmentSettings]:
        samples, targets = self._first_samples(X, y)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            name = type(self).__name__
            raise InputError(f"{name} tells classes apart and y has one class; give it two or more")
        data, recipe = self._data(samples, torch.from_numpy(labels)), self._recipe(len(samples))
        method = build_method(recipe, data)
        check(method, recipe, data, processes=1)
        with self._bar() as bar, memory_errors():
            watch = bar.step if bar else no_watcher
            fit(method, data, recipe, None, self._device(), resume=False, watch=watch)
        method.cpu().eval().requires_grad_(False)  # a pickle of it then opens on any machine
        self.encoder_ = method.encoder
        if samples.ndim == 2:  # float32 rounds a row's features differently with other rows beside it
            self.encoder_.double()
        return method, data, recipe.augment

    def _recipe(self, count: int) -> Recipe[VarConSettings]:
        base = VECTORS if len(self.sample_shape_) == 1 else IMAGES
        rate = base.train.learning_rate if self.learning_rate is None else self.learning_rate
        # Refuses what is no number, before it is computed with.
        replace(
            base.train,
            batch_size=self.batch_size,
            epochs=self.epochs or 1,
            learning_rate=rate,
            warmup_epochs=0,
        )
        if not isinstance(self.augment, AugmentSettings | None):
            raise InputError(f"augment is {self.augment!r}; give a varcon.augment.AugmentSettings, or None")
        batch = min(self.batch_size, count)
        steps = max(1, count // max(1, batch))  # of an epoch
        epochs = self.epochs
        if epochs is None:
            epochs = max(base.train.epochs, math.ceil(LEAST_STEPS / steps))
        decay = self.weight_decay
        if decay is None:
            decay = base.train.weight_decay
            if base is VECTORS:  # a longer training must not forget more
                decay *= min(1, LEAST_STEPS / max(1, epochs * steps))
        # Few samples learn as fast as a usual batch would; one that is larger and not full asks for no more.
        as_fast_as = min(self.batch_size, max(batch, TrainSettings.batch_size))
        train = replace(
            base.train,
            epochs=epochs,
            batch_size=batch,
            learning_rate=rate * as_fast_as / batch,
            weight_decay=decay,
            warmup_epochs=WARMUP * epochs,
            balanced=self.balanced,
            seed=int(check_random_state(self.random_state).randint(2**31)),
        )
        method = replace(
            base.method,
            temperature=self.temperature,
            epsilon=self.epsilon,
            learn_epsilon=self.learn_epsilon,
        )
        augment = base.augment if self.augment is None else self.augment
        return replace(base, augment=augment, encoder=self._encoder_settings(), method=method, train=train)

    def _encoder_settings(self) -> EncoderSettings:
        base = VECTORS if len(self.sample_shape_) == 1 else IMAGES
        stem = stem_for(max(self.sample_shape_[1:], default=0))
        return EncoderSettings(self.encoder or base.encoder.name, stem)  # type: ignore[arg-type]

    def _device(self) -> torch.device:
        return torch.device(pick_device(self.device))

    def _bar(self) -> Any:
        if not self.verbose:
            return nullcontext()
        from varcon.terminal import Bar, PlainConsole

        return Bar(PlainConsole(stderr=True), type(self).__name__)

    def _first_samples(self, X: Any, y: Any) -> tuple[Tensor, np.ndarray]:
        """X as the engine takes it and y as it is; learns what is subtracted from X and divides it."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if dimensions(X) > 2:
            samples = any_images(X)
            check_consistent_length(X, y)
            for name in ("n_features_in_", "feature_names_in_"):  # of a table that it learned from before
                self.__dict__.pop(name, None)
            mean, std = channel_statistics(samples)
            self.mean_, self.scale_ = np.array(mean), np.array(std)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                scaler = StandardScaler().fit(X)
            if not np.isfinite(scaler.var_).all():
                raise InputError("X holds values so large that their variance is infinite; scale them down")
            self.mean_, self.scale_ = scaler.mean_, scaler.scale_
            samples = self._standardised(X)
        self.sample_shape_ = tuple(samples.shape[1:])
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return samples, y

    def _samples(self, X: Any) -> Tensor:
        check_is_fitted(self)
        if len(self.sample_shape_) == 1:
            return self._standardised(validate_data(self, X, dtype=np.float64, reset=False))
        samples = any_images(X)
        if samples.shape[1:] != self.sample_shape_:
            raise InputError(
                f"{type(self).__name__} has learned from images of {shown(self.sample_shape_)} pixels and X "
                f"holds images of {shown(samples.shape[1:])}; bring them to that size"
            )
        return samples

    def _standardised(self, X: np.ndarray) -> Tensor:
        # In float64: a large mean would leave a float32 few digits for what differs.
        with np.errstate(over="ignore"):  # what that makes infinite is refused once it is encoded
            return torch.from_numpy(((X - self.mean_) / self.scale_).astype(np.float32))

    def _data(self, samples: Tensor, labels: Tensor | None = None) -> Data:
        split = Split(samples, torch.zeros(len(samples), dtype=torch.int64) if labels is None else labels)
        names = [str(name) for name in self.classes_]
        if samples.ndim == 2:  # standardised already
            width = samples.shape[1]
            return Data(split, split, names, (0.0,) * width, (1.0,) * width)
        return Data(split, split, names, tuple(self.mean_.tolist()), tuple(self.scale_.tolist()))

    def _frozen(self, data: Data) -> FrozenEncoder:
        device = self._device()
        encoder = self.encoder_ if device.type == "cpu" else copy.deepcopy(self.encoder_)
        return FrozenEncoder(encoder, data, device)

    def _features(self, X: Any) -> Tensor:
        data = self._data(self._samples(X))
        frozen = self._frozen(data)  # whose device may not be here, which is no fault of X
        try:
            return frozen.features(data.train)
        except InputError:  # they are no numbers
            raise InputError(
                f"X holds values so far from those that {type(self).__name__} has learned from that float32 "
                "does not reach; correct them"
            ) from None

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class VarConClassifier(ClassifierMixin, VarConEmbedding):
    """Predicts by the class-conditional likelihood that VarCon trains.

    A class's posterior is the softmax of cosine / temperature + bias, of the cosines between a sample's
    projection and the mean projection of every class's training samples. Temperature and biases are fitted
    to augmented training samples, of which the encoder is less sure than of the samples themselves.
    The parameters are those of VarConEmbedding, and `transform` gives the same features.

    `fit` learns also `head_`, a torch module, `centroids_`, `temperature_` and `bias_`.
    """

    def _fit(self, X: Any, y: Any) -> None:
        method, data, augment = self._learn(X, y)
        assert isinstance(method.head, ProjectionHead)
        self.head_ = method.head.double()
        frozen, labels = self._frozen(data), data.train.labels
        projections = self._project(frozen.features(data.train))
        self.centroids_ = class_centroids(projections, labels, len(self.classes_)).numpy()
        seed = int(check_random_state(self.random_state).randint(2**31))
        chance = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(labels), generator=chance).repeat(VIEWS)
        if self.balanced:
            order = evenly(order, labels, chance)
        drawing = torch.Generator(frozen.device).manual_seed(seed)
        cosines = []
        for part in order.split(IMAGES_AT_ONCE):
            images = data.train.images[part].to(frozen.device)
            cosines.append(self._cosines(frozen.augmented_features(images, augment, drawing)))
        self.temperature_, self.bias_ = fit_posterior(
            np.concatenate(cosines), labels[order].numpy(), self.temperature
        )

    def predict_proba(self, X: Any) -> np.ndarray:
        return softmax(self._cosines(self._features(X)) / self.temperature_ + self.bias_, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(axis=1)]

    def _project(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return unit(self.head_(features.cpu().double()))

    def _cosines(self, features: Tensor) -> np.ndarray:
        return self._project(features).numpy() @ self.centroids_.T


def dimensions(X: Any) -> int:
    return X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim


def shown(shape: tuple[int, ...]) -> str:
    return f"{shape[-2]} x {shape[-1]}"
