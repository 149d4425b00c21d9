"""The only importer of torch.distributed; in one process each function here is the identity."""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from varcon.core import InputError

if dist.is_available():
    # torch imports it sooner or later, and its functions keep the group that is there by then, as a default:
    # one that is never destroyed, whose threads abort the process if they are still at work at its end.
    import torch.distributed.nn


# Each process reads the data, and the first to be done waits for the last.
LONGEST_WAIT = timedelta(minutes=30)
GROUPS = itertools.count()  # that this process has joined


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    return dist.get_world_size() if active() else 1


def rank() -> int:
    return dist.get_rank() if active() else 0


def is_main() -> bool:
    return rank() == 0


def will_be_main() -> bool:
    """The same before torchrun's processes have joined."""
    return is_main() if active() else os.environ.get("RANK", "0") == "0"


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of every process's tensor. No gradient flows through it."""
    if world_size() > 1:
        tensor = tensor.clone(memory_format=torch.contiguous_format)  # the caller's stays as it is
        dist.all_reduce(tensor)
    return tensor


class _GatherBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return sum_over_processes(gradient).chunk(world_size())[rank()]


def gather_batch(tensor: Tensor) -> Tensor:
    """Every process's rows, one process after another; all hold equally many. The gradient flows.

    A loss that each process takes over its own rows, averaged as DistributedDataParallel averages
    gradients, has exactly the gradient of the loss over the whole batch.
    """
    return _GatherBatch.apply(tensor) if world_size() > 1 else tensor


def own_positions(rows: Tensor) -> Tensor:
    """Where this process's rows stand in what gather_batch returns."""
    return torch.arange(len(rows), device=rows.device) + rank() * len(rows)


def own_share(rows: Tensor) -> Tensor:
    """This process's part of rows that every process holds; parts differ by one row at most."""
    return rows.tensor_split(world_size())[rank()]


def union_over_processes(values: Tensor) -> Tensor:
    """The sorted distinct values that any process holds."""
    values = values.unique()
    if not active():
        return values
    found = {value for part in gather(values.tolist()) for value in part}
    return torch.tensor(sorted(found), device=values.device)


def gather(value: Any) -> list[Any]:
    """One process's value after another; tensors in it should lie on the CPU."""
    if not active():
        return [value]
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, value)
    return parts


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process."""
    if world_size() == 1:
        return flag
    return bool(sum_over_processes(torch.tensor([float(flag)], device=device)).item())


def barrier() -> None:
    if active():
        dist.barrier()


def synchronised(method: nn.Module, device: torch.device) -> nn.Module:
    """The method with its gradients averaged over the processes."""
    if world_size() == 1:  # also under torchrun
        return method
    return nn.parallel.DistributedDataParallel(
        method, device_ids=[device.index] if device.type == "cuda" else None
    )


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Joins torchrun's processes for the duration of a run and gives this process its device.

    Outside torchrun, or where the caller has joined already, it only names the device.
    """
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ and not active()
    kind = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device)
    if kind.type == "cuda":
        check_devices(device, kind.index or 0)
        torch.cuda.set_device(kind)
    if started:
        join("nccl" if kind.type == "cuda" else "gloo")
    failed = False
    try:
        yield kind
    except BaseException as error:
        failed = True
        if started:
            # The error's frames would keep the method and what averages its gradients alive beyond the group:
            # freed later, that waits for a thread of the group, which waits for Python's lock.
            for each in chain(error):
                traceback.clear_frames(each.__traceback__)
        raise
    finally:
        # On GPUs leaving waits for the other processes, which may be waiting for this one; where it has
        # failed it ends without a word to them, and torchrun ends them.
        if started and not (failed and kind.type == "cuda"):
            dist.destroy_process_group()


def join(backend: str) -> None:
    # torchrun's store outlives a group: by the same names, the next one would find the last one's addresses.
    store, own_rank, processes = next(dist.rendezvous("env://", timeout=LONGEST_WAIT))
    own = dist.PrefixStore(f"varcon-{next(GROUPS)}", store)
    dist.init_process_group(backend, store=own, rank=own_rank, world_size=processes, timeout=LONGEST_WAIT)


def check_devices(device: str, index: int) -> None:
    """In every process alike, so that the first one says it."""
    here, processes = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if max(index + 1, processes) > here:
        raise InputError(
            f"this machine has {here} CUDA devices and {max(index + 1, processes)} are needed; start as many "
            "processes as devices"
        )
    if processes > 1 and device != "cuda":
        raise InputError(
            f"train.device is {device!r} and torchrun has started {processes} processes; set it to cuda, and "
            "each takes a device of its own"
        )


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came of."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__context__
