"""Noise of the sensor: Gaussian, shot and impulse."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from varcon.data.corruptions.draws import LEVELS, Draws, look_up


def gaussian_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    return images.float() / 255 + deviation * draws.normal(*images.shape[1:])


def shot_noise(images: Tensor, draws: Draws, photons: float) -> Tensor:
    """A pixel's brightness is a count of photons, which is Poisson: by inversion, from a table."""
    levels = draws.levels(*images.shape[1:])
    return look_up(_poisson_table(photons, images.device), images.int() * LEVELS + levels)


def impulse_noise(images: Tensor, draws: Draws, amount: float) -> Tensor:
    """Each value of each channel is lost with probability `amount`, to black or white alike."""
    chance = draws.uniform(*images.shape[1:])
    values = images.masked_fill(chance < amount / 2, 0)
    return values.masked_fill_(chance > 1 - amount / 2, 255)


@lru_cache(maxsize=2)  # 17 MB each, needed for one severity after the other
@torch.inference_mode(False)
def _poisson_table(photons: float, device: torch.device) -> Tensor:
    """The uint8 value that each of 256 values turns into at each of 65,536 levels of chance."""
    from scipy.special import pdtr

    values, counts = np.arange(256), np.arange(int(np.ceil(photons)) + 1)  # the last count: this or more
    distribution = pdtr(counts, values[:, None] / 255 * photons)  # P(count <= counts)
    distribution[:, -1] = 1
    up_to = np.floor(distribution * LEVELS + 0.5).astype(np.int64)  # levels that mean this count or less
    lengths = np.diff(up_to, axis=1, prepend=0)
    seen = np.rint(255 * np.minimum(counts / photons, 1)).astype(np.uint8)
    return torch.from_numpy(np.concatenate([np.repeat(seen, length) for length in lengths])).to(device)
