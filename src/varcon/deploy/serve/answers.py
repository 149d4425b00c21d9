"""What the API answers, as plain values that become JSON."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from varcon.deploy.card import scores_of
from varcon.deploy.model import Model
from varcon.deploy.serve.gallery import Gallery
from varcon.deploy.serve.uploads import FILE_BYTES, FILES, REQUEST_BYTES, Refused
from varcon.deploy.vectors import readable, unit

TOP = 5  # classes of an image
NEIGHBOURS = 6

Answer = dict[str, Any]


@dataclass(frozen=True)
class Answers:
    model: Model
    gallery: Gallery | None  # an exported model has no images of its own
    # In the addresses of thumbnails: a browser may keep them, but not for another run on the same port.
    session: str = field(default_factory=lambda: secrets.token_hex(4))

    def about(self) -> Answer:
        config, gallery = self.model.config, self.gallery
        recipe = config.origin.get("recipe", {})
        return {
            "name": self.model.weights.resolve().parent.name,
            "encoder": config.encoder.name,
            "method": recipe.get("method", {}).get("name"),
            "image_size": config.image_size,
            "features": config.features,
            "classes": config.classes,
            "scores": self.scores(),
            "train_images": config.origin.get("train_images"),
            "test_images": config.origin.get("test_images"),
            "images": gallery
            and {
                "title": readable(gallery.title),
                "count": len(gallery),
                "labels": gallery.labels_are,
                "on_map": len(gallery.map.ids) if gallery.map else 0,
            },
            "session": self.session,
            "limits": {"file_bytes": FILE_BYTES, "request_bytes": REQUEST_BYTES, "files": FILES},
        }

    def scores(self) -> dict[str, float]:
        """In percent, on test images: of the rule that predicts here, and what `varcon evaluate` has left."""
        found = {"prediction top-1": self.model.config.measured.get("top1")}
        found |= scores_of(self.model.weights.parent)
        return {title: value for title, value in found.items() if value is not None}

    def predict(self, pixels: list[np.ndarray]) -> list[Answer]:
        """Of images [size, size, 3] of the model's own size."""
        if not pixels:
            return []
        features = self.model.embed_pixels(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
        directions = unit(features)
        around: list[list[Answer]] = [[] for _ in pixels]
        if self.gallery:
            around = [self.near(found) for found in self.gallery.around(directions, NEIGHBOURS)]
        return [
            {
                "label": one.label,
                "probability": one.probability,
                "unlike_anything_seen": one.unlike_anything_seen,
                "likelihood": one.likelihood,
                "top": [{"label": label, "probability": share} for label, share in one.top],
                "neighbours": near,
                "place": self.place(direction),
            }
            for one, near, direction in zip(
                self.model.predict_features(features, TOP, neighbours=0), around, directions, strict=True
            )
        ]

    def place(self, direction: np.ndarray) -> Answer | None:
        if not (self.gallery and self.gallery.map):
            return None
        (x, y), near = self.gallery.map.place(direction)
        return {"x": float(x), "y": float(y), "near": near.tolist()}

    def neighbours(self, number: int) -> Answer:
        gallery = self.known(number)
        found = gallery.around(gallery.vectors[number : number + 1], NEIGHBOURS + 1)[0]
        others = [(other, cosine) for other, cosine in found if other != number][:NEIGHBOURS]
        return {"image": self.near([(number, 1.0)])[0], "neighbours": self.near(others)}

    def map(self) -> Answer:
        """Column by column, as there are thousands; labels are places in the list of classes."""
        if not (self.gallery and self.gallery.map):
            return {"ids": [], "x": [], "y": [], "labels": []}
        found = self.gallery.map
        x, y = np.round(found.points.astype(np.float64), 3).T
        labels = self.gallery.labels_of(found.ids)
        return {"ids": found.ids.tolist(), "x": x.tolist(), "y": y.tolist(), "labels": labels.tolist()}

    def near(self, found: list[tuple[int, float]]) -> list[Answer]:
        assert self.gallery
        labels = self.gallery.labels_of(np.array([number for number, _ in found], np.int64))
        return [
            {
                "id": number,
                "label": self.model.classes[label],
                "cosine": cosine,
                "name": readable(self.gallery.name_of(number)),
                "thumbnail": f"/api/thumbnail/{number}?session={self.session}",
            }
            for (number, cosine), label in zip(found, labels, strict=True)
        ]

    def known(self, number: int) -> Gallery:
        """Nothing is looked up by what a visitor says but a number of this gallery's own."""
        if self.gallery is None or not 0 <= number < len(self.gallery):
            count = len(self.gallery) if self.gallery else 0
            raise Refused(404, f"there is no image {number}; there are {count}, counted from 0")
        return self.gallery
