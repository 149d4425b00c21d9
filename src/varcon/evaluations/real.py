"""Accuracy by reassessed labels ("Are we done with ImageNet?"): an image may have several, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from varcon.core import Data, Evaluation, Findings, InputError
from varcon.evaluations.frozen import FrozenEncoder

LEAST_SHARED = 0.5  # of the images' own labels among the acceptable; ImageNet's are at about 0.9


@dataclass(frozen=True)
class ReaL:
    """Of the share of images whose predicted class is among those that people found right for them."""

    labels: str = ""  # a JSON list of lists: each test image's acceptable class indices, in file order
    # The folder of the test images, where they lie in one folder a class: file order is then that of the
    # files' own names, whatever their class, as for ImageNet's validation images. "": the order of the data.
    images: str = ""

    def read(self, data: Data) -> list[list[int]]:
        """The acceptable labels of each test image, in the data's order."""
        if not self.labels:
            raise InputError("real.labels is empty; set it to the JSON file of acceptable labels")
        path, labels = Path(self.labels), data.test.labels.tolist()
        acceptable = read_labels(path, len(data.classes))
        if len(acceptable) != len(labels):
            raise InputError(
                f"{path} has {len(acceptable)} lists and there are {len(labels)} test images; "
                "give one list for each image"
            )
        if self.images:
            acceptable = [acceptable[place] for place in file_order(Path(self.images), len(labels))]
        judged = [own in several for own, several in zip(labels, acceptable, strict=True) if several]
        if not judged:
            raise InputError(f"{path} finds no label acceptable for any image; there is nothing to score")
        if sum(judged) < LEAST_SHARED * len(judged):
            raise InputError(
                f"{path} accepts the own label of only {sum(judged)} of {len(judged)} images, so its order "
                "is not the data's; for images in one folder a class set real.images to the folder of these"
            )
        return acceptable


class RealAccuracy:
    """The predictions of other evaluations, judged anew."""

    def __init__(self, settings: ReaL, classifiers: Mapping[str, Evaluation]) -> None:
        """Each of the classifiers finds `predictions`, and its name begins those of its scores."""
        self.settings, self.classifiers = settings, classifiers

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        acceptable = self.settings.read(data)  # first: a wrong file is found before the features are computed
        judged = np.array([len(several) > 0 for several in acceptable])
        scores = {"judged": float(judged.sum()), "left_out": float((~judged).sum())}
        arrays = {"judged": judged}
        for name, classifier in self.classifiers.items():
            guesses = classifier(encoder, data).arrays["predictions"]
            hits = np.array([guess in right for guess, right in zip(guesses, acceptable, strict=True)])
            scores[f"{name}_top1"] = 100 * float(hits[judged].mean())  # of images that have a label
            arrays |= {f"{name}_predictions": guesses, f"{name}_hits": hits}
        return Findings(scores, arrays)


def read_labels(path: Path, num_classes: int) -> list[list[int]]:
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror}); correct real.labels") from None
    except ValueError:  # of JSON, or of UTF-8
        lists = None
    if not isinstance(lists, list) or not all(isinstance(several, list) for several in lists):
        raise InputError(f"{path} is not a JSON list of lists of labels; write [[3], [], [1, 7], ...]")
    for place, several in enumerate(lists):
        for label in several:
            if type(label) is not int or not 0 <= label < num_classes:
                raise InputError(
                    f"{path} holds {label!r} at image {place}; labels are whole numbers from 0 to "
                    f"{num_classes - 1}"
                )
    return lists


def file_order(folder: Path, count: int) -> list[int]:
    """Of each image below a folder with one folder a class, in the data's order, its file name's place."""
    from varcon.data.listing import class_folders, list_images

    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; correct real.images")
    files, _ = list_images(folder, [entry.name for entry in class_folders(folder)])
    names = [file.name for file in files]
    if len(names) != count or len(set(names)) != count:
        raise InputError(
            f"{folder} has {len(names)} images with {len(set(names))} names for {count} test images; "
            "set real.images to the folder that the test images come from"
        )
    place = {name: number for number, name in enumerate(sorted(names))}
    return [place[name] for name in names]
