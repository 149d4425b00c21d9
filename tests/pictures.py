"""Images that tests make, and a brief recipe for some."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> Image.Image:
    """Something that survives JPEG."""
    small = Image.fromarray(noise(4, 4))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def save(file: Path, image: Any, **options: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, **options)
    return file


def write_recipe(folder: Path, epochs: int = 2) -> Path:
    """Two kinds of images, dark and bright, and a brief recipe for them."""
    chance = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = (chance.integers(0, 60, (48, 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    path = folder / "few.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    recipe = folder / "base.toml"
    recipe.write_text(
        f"[data]\nname = 'npz'\npath = '{path}'\n"
        f"[train]\nepochs = {epochs}\nbatch_size = 16\ndevice = 'cpu'\n"
        "[evaluate.knn]\nk = 1\nalso = []\n[evaluate.linear]\nepochs = 2\n[evaluate.map2d]\npoints = 20\n"
    )
    return recipe
