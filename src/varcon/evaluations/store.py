"""Features on disk, so that a second evaluation of a run does not encode its images again."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from varcon.core import Data, Split
from varcon.files import file_digest, replacing

BYTES_AT_ONCE = 2**24


class FeatureStore:
    """A folder of arrays, each named for the weights and for the images that it was made from."""

    def __init__(self, folder: Path, weights: Path, data: Data) -> None:
        self.folder = folder
        self._normalisation = np.array([*data.mean, *data.std])
        self._weights = file_digest(weights)

    def read(self, split: Split) -> Tensor | None:
        path = self._path(split)
        try:
            features = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):  # absent, or cut short: it is made again
            return None
        return torch.from_numpy(features) if len(features) == len(split) else None

    def write(self, split: Split, features: Tensor) -> None:
        """Keeps the features; those of weights that are no longer there go."""
        with suppress(OSError):  # a full disk costs the next evaluation its time, and this one nothing
            self.folder.mkdir(exist_ok=True)
            for old in self.folder.glob("*.npy"):
                if not old.name.startswith(self._weights):
                    old.unlink()
            with replacing(self._path(split)) as temporary, temporary.open("wb") as file:
                np.save(file, features.cpu().numpy())

    def _path(self, split: Split) -> Path:
        digest = hashlib.blake2b(self._normalisation.tobytes(), digest_size=8)
        digest.update(repr(tuple(split.images.shape)).encode())
        if isinstance(split.images, Tensor):
            pixels = split.images.cpu().contiguous().view(-1).numpy()
            for part in np.array_split(pixels, 1 + pixels.size // BYTES_AT_ONCE):
                digest.update(part.data)
        else:
            digest.update(split.images.digest())
        return self.folder / f"{self._weights}-{digest.hexdigest()}.npy"
