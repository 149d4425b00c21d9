"""Random numbers that belong to an image and not to its batch.

Each number is a hash of the image's key and of the number's position (SplitMix64 of Steele, Lea and Flood,
2014), so that it is there without its predecessors, for all images at once and on any device. Numbers
have 65,536 levels: pixels have 256, and finer ones would not be seen.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LEVELS = 1 << 16
NUMBERS_PER_HASH = 4  # 64 bits hold four of 16


class Draws:
    """The numbers of images `indices`: a function of (seed, index, corruption, severity) alone.

    Each call takes the next numbers of every image and returns them as [N, *shape].
    """

    def __init__(self, seed: int, indices: Tensor, name: str, severity: int) -> None:
        digest = hashlib.blake2b(f"{seed} {name} {severity}".encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "little", signed=True)
        self.keys = scramble(scramble(indices.long()) ^ start)  # [N]
        self.hashes_used = 0

    def levels(self, *shape: int) -> Tensor:
        """Whole numbers 0..65535, int32."""
        count = math.prod(shape)
        hashes = -(-count // NUMBERS_PER_HASH)
        positions = torch.arange(self.hashes_used + 1, self.hashes_used + hashes + 1, device=self.keys.device)
        self.hashes_used += hashes
        bits = scramble(self.keys[:, None] + positions * _STEP)
        numbers = bits.view(torch.int16).int() + LEVELS // 2
        return numbers[:, :count].unflatten(1, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Strictly within (0, 1), float32, exactly."""
        return (self.levels(*shape).float() + 0.5) / LEVELS

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, by a table: a formula's last bit would depend on how a device computes it."""
        return look_up(_normal_table(self.keys.device), self.levels(*shape))

    def below(self, bound: int, *shape: int) -> Tensor:
        """Whole numbers 0..bound-1, int64."""
        return self.levels(*shape).long() * bound // LEVELS

    def direction(self, least: float, greatest: float) -> tuple[Tensor, Tensor]:
        """Cosine and sine [N, 1, 1], float32, of an angle uniform between two, in degrees."""
        return directions(self.levels(1, 1), least, greatest)


def directions(levels: Tensor, least: float, greatest: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32, of the angle that a number 0..65535 means between two, in degrees."""
    cosine, sine = look_up(_direction_table(least, greatest, levels.device), levels).unbind(-1)
    return cosine, sine


def look_up(table: Tensor, positions: Tensor) -> Tensor:
    return table.index_select(0, positions.flatten()).unflatten(0, positions.shape)


def scramble(bits: Tensor) -> Tensor:
    """SplitMix64's bijection of 64-bit words; products wrap around."""
    for shift, factor in _ROUNDS:
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * factor
    return bits ^ (bits >> 31 & (1 << 33) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_STEP = _signed(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _normal_table(device: torch.device) -> Tensor:
    from scipy.special import ndtri

    quantiles = ndtri((np.arange(LEVELS) + 0.5) / LEVELS)
    return torch.from_numpy(quantiles.astype(np.float32)).to(device)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _direction_table(least: float, greatest: float, device: torch.device) -> Tensor:
    angles = np.radians(least + (greatest - least) * (np.arange(LEVELS) + 0.5) / LEVELS)
    return torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)).to(device)
