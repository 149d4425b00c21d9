"""How much a frozen encoder makes of few labels: accuracy over the number of labelled images per class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch.nn.functional as F

from varcon.core import Data, Findings, InputError
from varcon.data.subset import few_indices
from varcon.evaluations.centroid import class_centroids
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.metrics import top1
from varcon.limits import at_least, declared, seed

USUAL = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class FewShot:
    """Classifiers on random class-balanced parts of the training features, judged on all test images.

    Subset s of N images per class is what data.subset.few_per_class draws with the seed `seed` + s. The
    logistic regression chooses its penalty within the subset: labels outside of it are not looked at. An
    encoder trained with all labels has seen them, though; few labels altogether are a run on few_per_class.
    """

    per_class: tuple[int, ...] = ()  # images; empty: 1, 2, 5, 10, 20, 50, 100 as far as every class has them
    subsets: int = 5  # for each number
    seed: int = 0  # of the first subset
    probe: LogisticProbe = field(default_factory=LogisticProbe)

    def __post_init__(self) -> None:
        declared(self, of="fewshot")
        if self.per_class and min(self.per_class) < 1:
            raise InputError(f"fewshot.per_class is {self.per_class}; images count from 1")
        if len(set(self.per_class)) < len(self.per_class):
            raise InputError(f"fewshot.per_class is {self.per_class}; name each number once")
        at_least(1, self, "subsets", of="fewshot")
        seed(self, of="fewshot")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        labels, test_labels = data.train.labels.to(encoder.device), data.test.labels.to(encoder.device)
        counts = labels.bincount(minlength=len(data.classes)).tolist()
        numbers = self._numbers(counts, data.classes)
        whole = [{number} == set(counts) for number in numbers]  # where every subset is all there is
        train, test = encoder.features(data.train), encoder.features(data.test)
        directions = F.normalize(test, dim=1)
        shape = (len(numbers), self.subsets)
        logistic, centroid, penalties = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for place, (row, subset) in enumerate(np.ndindex(*shape)):
            encoder.progress(place, logistic.size, "learning from few labels")
            if whole[row] and subset:
                for found in (logistic, centroid, penalties):
                    found[row, subset] = found[row, 0]
                continue
            few = few_indices(labels, numbers[row], self.seed + subset)
            chosen = self.probe.fit(train[few], labels[few], len(data.classes))
            logistic[row, subset] = top1(chosen.model.scores(test), test_labels)
            penalties[row, subset] = chosen.penalty
            centroids = class_centroids(train[few], labels[few], len(data.classes))
            centroid[row, subset] = top1(directions @ centroids.T, test_labels)
        encoder.progress(logistic.size, logistic.size, "learning from few labels")
        scores = {}
        for row, number in enumerate(numbers):
            for name, accuracy in (("logistic", logistic[row]), ("centroid", centroid[row])):
                scores[f"{name}@{number}"] = float(accuracy.mean())
                if self.subsets > 1 and not whole[row]:
                    scores[f"{name}_error@{number}"] = standard_error(accuracy)
        arrays = {"per_class": np.array(numbers), "logistic": logistic, "centroid": centroid}
        return Findings(scores, {**arrays, "penalties": penalties})

    def _numbers(self, counts: list[int], classes: list[str]) -> list[int]:
        fewest = min(counts)
        if fewest < 1:
            raise InputError(
                f"class {classes[counts.index(0)]!r} has no training image; give it one at least"
            )
        if len(classes) < 2:
            raise InputError("few-shot learning tells classes apart and there is only one; give two or more")
        if self.per_class and max(self.per_class) > fewest:
            raise InputError(
                f"fewshot.per_class asks for {max(self.per_class)} images of each class and "
                f"{classes[counts.index(fewest)]!r} has {fewest}; ask for no more than that"
            )
        return sorted(self.per_class) or [number for number in USUAL if number <= fewest]


def standard_error(values: np.ndarray) -> float:
    """Of the mean; the subsets overlap where they take much of the data, and it then comes out too small."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))
