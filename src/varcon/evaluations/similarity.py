"""Which classes does the embedding hold for alike, and are they those that belong together?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from varcon.core import Data, Findings, InputError
from varcon.data.similarity import of_superclasses
from varcon.evaluations.clustering import class_tree, cut, labelled_features, present_class_means
from varcon.evaluations.frozen import FrozenEncoder
from varcon.limits import at_least, declared


@dataclass(frozen=True)
class ClassSimilarity:
    """Cosines between the classes' centroids of the test features, and how well a hierarchy shows in them."""

    pairs: int = 20  # the closest pairs of classes that are listed
    # "auto": CIFAR-100's superclasses where the classes are its own; "none"; or the path of a JSON file
    # {"class": "superclass", ...}.
    superclasses: str = "auto"

    def __post_init__(self) -> None:
        declared(self, of="similarity")
        at_least(1, self, "pairs", of="similarity")
        if not self.superclasses:
            raise InputError("similarity.superclasses is empty; use auto, none or a JSON file's path")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        groups = superclass_of_each(self.superclasses, data.classes)
        centroids, classes = present_class_means(*labelled_features(encoder, data, normalize=True))
        tree, order = class_tree(centroids)
        cosines = (centroids @ centroids.T).clamp(-1, 1).cpu().numpy()  # [C, C]
        left, right = np.triu_indices(len(classes), k=1)
        between = cosines[left, right]
        closest = np.argsort(-between, kind="stable")[: self.pairs]
        scores = {"mean": float(between.mean()), "highest": float(between.max())}
        arrays = {
            "similarity": cosines.astype(np.float32),
            "classes": classes,  # of the rows and columns: those with test images
            "order": order,  # of the rows and columns for display: along the centroids' dendrogram
            "linkage": tree,
            "pairs": np.stack([classes[left[closest]], classes[right[closest]]], axis=1),  # class indices
            "pair_similarity": between[closest].astype(np.float32),
        }
        if groups is not None:
            scores |= recovery(cosines, tree, groups[classes])
            arrays["superclasses"] = groups[classes]
        return Findings(scores, arrays)


def superclass_of_each(source: str, names: list[str]) -> np.ndarray | None:
    """A number for each class that classes of one superclass share; None where no hierarchy is known."""
    if source == "none":
        return None
    if source == "auto":
        try:
            return (of_superclasses(names) > 0).int().argmax(dim=1).numpy()
        except InputError:  # other classes than CIFAR-100's
            return None
    table = read_table(Path(source))
    missing = [name for name in names if name not in table]
    if missing:
        raise InputError(f"{source} has no superclass for {missing[0]!r}; give one for each class")
    return np.unique([table[name] for name in names], return_inverse=True)[1]


def read_table(path: Path) -> dict[str, str]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"superclasses {path} cannot be opened ({error.strerror}); use auto, none or a JSON file's path"
        ) from None
    except ValueError:  # of JSON, or of UTF-8
        table = None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise InputError(f'{path} is not a table of superclasses; write JSON {{"class": "superclass", ...}}')
    return table


def recovery(cosines: np.ndarray, tree: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """How well superclasses show in the similarity of classes: each score, and what chance would give.

    Classes that are alone in their superclass have no fellow to find and count as strangers only.
    """
    from sklearn.metrics import adjusted_rand_score, roc_auc_score

    count = len(groups)
    other = ~np.eye(count, dtype=bool)
    fellow = (groups[:, None] == groups) & other
    if not fellow.any() or (fellow == other).all():
        return {}  # a superclass for each class, or one for all: nothing to recover
    strangers_last = np.argsort(np.where(other, -cosines, np.inf), axis=1, kind="stable")[:, :-1]
    found = np.take_along_axis(fellow, strangers_last, axis=1)  # [C, C-1], the most similar class first
    found = found[found.any(axis=1)]
    fellows = found.sum(axis=1)
    places = np.arange(1, count)
    precision = (found * found.cumsum(axis=1) / places).sum(axis=1) / fellows
    harmonic = (1 / places).sum()
    by_chance = (harmonic + (fellows - 1) / max(count - 2, 1) * (count - 1 - harmonic)) / (count - 1)
    pairs = np.triu_indices(count, k=1)
    auc = roc_auc_score(fellow[pairs], cosines[pairs])
    return {
        # The share of classes whose nearest other class is of their superclass.
        "nearest_in_superclass": float(found[:, 0].mean()),
        "nearest_in_superclass_chance": float((fellows / (count - 1)).mean()),
        # Mean average precision of the other classes, by similarity, as a search for the superclass.
        "superclass_map": float(precision.mean()),
        "superclass_map_chance": float(by_chance.mean()),
        # The centroids' tree, cut at the number of superclasses.
        "superclass_ari": float(adjusted_rand_score(groups, cut(tree, len(np.unique(groups))))),
        "superclass_ari_chance": 0.0,
        # Rank-biserial: of all pairs of pairs, how much more often that within a superclass is more similar.
        "superclass_rank_correlation": float(2 * auc - 1),
        "superclass_rank_correlation_chance": 0.0,
    }
