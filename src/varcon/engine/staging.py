"""Where a step finds its images on the device: among all of them or, where there is no room for all, in a
batch that is brought there while the device is at work on the step before."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from varcon.core import Split
from varcon.data.stored import StoredImages
from varcon.engine.order import batches
from varcon.recipe import TrainSettings

ROOM_FOR_IMAGES = 0.5  # of the device's free memory; the encoder's activations need the rest


class Resident:
    """All training images, on the device."""

    def __init__(self, split: Split, device: torch.device) -> None:
        assert isinstance(split.images, Tensor)
        self.images, self.labels = split.images.to(device), split.labels.to(device)

    def places(self, indices: Tensor) -> Tensor | None:
        """In `images`, of a step's own."""
        return indices

    def batches(self, settings: TrainSettings, step: int) -> Generator[Tensor, None, None]:
        """This process's indices of step `step` and of all that follow, on the device."""
        return batches(self.labels, settings, step)


class Slot(NamedTuple):
    """A step's images on their way, in memory that a GPU can fetch from by itself."""

    images: Tensor
    indices: Tensor
    fetched: torch.cuda.Event | None  # by the GPU, after which the slot may be filled anew


class Staged:
    """One step's images; with `batches` come those of the next. A thread fills a slot while the device
    fetches from the other and computes."""

    def __init__(self, split: Split, batch_size: int, device: torch.device) -> None:
        self._split, self._device = split, device
        shape, dtype, on_gpu = (
            (batch_size, *split.images.shape[1:]),
            split.images.dtype,
            device.type == "cuda",
        )
        self.images, self.labels = torch.empty(shape, dtype=dtype, device=device), split.labels.to(device)
        self._slots = [
            Slot(
                torch.empty(shape, dtype=dtype, pin_memory=on_gpu),
                torch.empty(batch_size, dtype=torch.int64, pin_memory=on_gpu),
                torch.cuda.Event() if on_gpu else None,
            )
            for _ in range(2)
        ]

    def places(self, indices: Tensor) -> Tensor | None:
        return None  # as they are

    def batches(self, settings: TrainSettings, step: int) -> Generator[Tensor, None, None]:
        coming = batches(self._split.labels, settings, step)
        slot, other = self._slots
        with ThreadPoolExecutor(1, "images") as reader:
            filling = reader.submit(self._fill, slot, next(coming))
            while True:
                filling.result()
                filling = reader.submit(self._fill, other, next(coming))
                yield self._fetch(slot)
                slot, other = other, slot

    def _fill(self, slot: Slot, indices: Tensor) -> None:
        if slot.fetched:
            slot.fetched.synchronize()
        slot.indices.copy_(indices)
        if isinstance(self._split.images, Tensor):
            # In this thread alone: a second team of torch's threads would contend with the one that trains.
            # Indices are known to be right; to check them, numpy would make a copy first.
            pixels = self._split.images.numpy()
            np.take(pixels, indices.numpy(), axis=0, out=slot.images.numpy(), mode="clip")
        else:
            self._split.images.only(indices).read_into(slot.images)

    def _fetch(self, slot: Slot) -> Tensor:
        """In the order of the device's work: after the last step, which reads `images`, before the next."""
        self.images.copy_(slot.images, non_blocking=True)
        indices = slot.indices.to(self._device, non_blocking=True, copy=True)
        if slot.fetched:
            # By name: the current stream may be another device's.
            slot.fetched.record(torch.cuda.current_stream(self._device))
        return indices


def where_images_stay(images: Tensor | StoredImages, device: torch.device) -> str:
    """While a run trains: on the device, in memory or on disk."""
    if not isinstance(images, Tensor):
        return "disk"
    if device.type == "cuda" and images.nbytes > ROOM_FOR_IMAGES * torch.cuda.mem_get_info(device)[0]:
        return "memory"
    return "device"


def images_for_steps(split: Split, batch_size: int, device: torch.device) -> Resident | Staged:
    """`batch_size` is that of this process."""
    if where_images_stay(split.images, device) == "device":
        return Resident(split, device)
    return Staged(split, batch_size, device)
