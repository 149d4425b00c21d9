"""Predict with the model in this folder: python use_model.py IMAGE [IMAGE ...]

It needs numpy, Pillow and onnxruntime (of a folder with model.pt2: torch instead), and nothing else. A line
of JSON for each image says what `varcon predict --json -` says, but for the neighbours, and a training image
may be marked as unlike anything seen here.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

FOLDER = Path(__file__).resolve().parent
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")


def read_pixels(path: str | Path, size: int) -> np.ndarray:
    """The central square of an image, upright, in RGB: [size, size, 3] uint8."""
    with Image.open(path, formats=FORMATS) as image:
        image.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
        image.load()
        with suppress(Exception):  # a broken EXIF block says nothing against the pixels
            ImageOps.exif_transpose(image, in_place=True)
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        if image.mode.startswith("I;16"):
            upper = (np.asarray(image) >> 8).astype(np.uint8)
            rgb = Image.fromarray(upper).convert("RGB")
        elif image.mode in ("I", "F"):
            raise ValueError(f"{path}: its pixels have 32 bits and no known range; save it with 8")
        else:
            rgb = image.convert("RGB")
        box = (left, top, left + side, top + side)
        return np.asarray(rgb.resize((size, size), Image.Resampling.BILINEAR, box))


class Model:
    def __init__(self, folder: Path = FOLDER) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.centroids = np.load(folder / "centroids.npy")  # [classes, features], of length 1
        self.classifier = np.load(folder / "classifier.npy")  # [classes, features + 1]
        self.encode = onnx_encoder(folder) if (folder / "model.onnx").exists() else torch_encoder(folder)

    def embed(self, paths: list[str]) -> np.ndarray:
        """The features [N, F] of image files."""
        how = self.config["preprocessing"]
        pixels = np.stack([read_pixels(path, how["image_size"]) for path in paths])
        mean, std = np.float32(how["mean"]), np.float32(how["std"])
        images = (pixels.astype(np.float32) / np.float32(255) - mean) / std
        return self.encode(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))

    def predict(self, paths: list[str], top: int = 1) -> list[dict[str, Any]]:
        features, rule, classes = self.embed(paths), self.config["prediction"], self.config["classes"]
        directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        cosines = (directions @ self.centroids.T).astype(np.float64)  # [N, classes]
        scores = directions @ self.classifier[:, :-1].T + self.classifier[:, -1]
        scores = scores.astype(np.float64)
        probabilities = np.exp(scores - log_sum_exp(scores))
        likelihoods = log_sum_exp(cosines / rule["likelihood_temperature"]) - np.log(len(classes))
        results = []
        for path, probability, (likelihood,) in zip(paths, probabilities, likelihoods, strict=True):
            order = np.argsort(-probability, kind="stable")[:top]
            results.append(
                {
                    "path": path,
                    "label": classes[order[0]],
                    "probability": float(probability[order[0]]),
                    "unlike_anything_seen": bool(likelihood < rule["threshold"]),
                    "likelihood": float(likelihood),
                    "top": [{"label": classes[i], "probability": float(probability[i])} for i in order],
                }
            )
        return results


def log_sum_exp(values: np.ndarray) -> np.ndarray:
    most = values.max(axis=1, keepdims=True)
    return most + np.log(np.exp(values - most).sum(axis=1, keepdims=True))  # [N, 1]


def onnx_encoder(folder: Path) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda images: session.run(["features"], {"images": images})[0]


def torch_encoder(folder: Path) -> Any:
    import torch

    program = torch.export.load(folder / "model.pt2").module()
    return lambda images: program(torch.from_numpy(images)).detach().numpy()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        model = Model()
    except ModuleNotFoundError as error:
        sys.exit(f"this model needs {error.name}: pip install {error.name}")
    unread = 0
    for path in sys.argv[1:]:  # one by one: memory stays small, however many there are
        try:
            found = model.predict([path])[0]
        except Exception as error:  # Pillow raises a dozen kinds
            print(f"there is no prediction of {path}: {error}", file=sys.stderr)
            unread += 1
            continue
        print(json.dumps(found))
    sys.exit(1 if unread else 0)
