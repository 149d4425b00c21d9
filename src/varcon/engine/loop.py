"""The training loop. It knows no method by name: a method's hooks carry what is its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varcon.augment import augment
from varcon.core import Batch, Data, InputError, Method, Progress, RunError, StepOutput
from varcon.engine import distributed
from varcon.engine.checkpoint import load_checkpoint, save_checkpoint
from varcon.engine.journal import Averages, Journal
from varcon.engine.optimizers import build_optimizer, learning_rate, set_learning_rate
from varcon.recipe import Recipe, differences, recipe_to_dict

STEPS_PER_ROW = 10  # of metrics.jsonl; a row waits for the device, so not every step has one
AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Settings that change how a run is carried out and not what it computes; resuming may change them.
FREE_ON_RESUME = ("train.device", "train.compile", "train.checkpoint_every", "data.path", "evaluate")

Watcher = Callable[[Progress, dict[str, float] | None], None]


class Interrupted(RunError):
    """The user or the system asked the run to stop; it is saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


def fit(
    method: Method,
    data: Data,
    recipe: Recipe[Any],
    folder: Path,
    device: torch.device,
    resume: bool = False,
    watch: Watcher = lambda progress, row: None,
) -> None:
    """Trains `method` in place and keeps `folder`'s last.ckpt and metrics.jsonl up to date."""
    settings, world = recipe.train, distributed.world_size()
    share = settings.batch_size // world
    steps_per_epoch = len(data.train) // settings.batch_size
    total_steps = settings.epochs * steps_per_epoch

    method = method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    split = data.train.to(device)
    optimizer = build_optimizer(method, settings)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    generator = torch.Generator(device).manual_seed(mixed_seed(settings.seed, distributed.rank()))
    checkpoint = folder / "last.ckpt"
    step = 0
    if resume:
        step = restore(load_checkpoint(checkpoint), recipe, folder, method, optimizer, scaler, generator)
    model: Callable[[Batch], StepOutput] = distributed.synchronised(method, device)
    if settings.compile and device.type == "cuda":
        model = torch.compile(model)

    def save() -> None:
        generators = distributed.gather(generator.get_state())
        if distributed.is_main():
            state = {
                "recipe": recipe_to_dict(recipe),
                "step": step,
                "method": method.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "generators": generators,
            }
            save_checkpoint(checkpoint, state)
        distributed.barrier()

    averages = Averages()
    order = epoch_order(len(split), settings.seed, step // steps_per_epoch, device)
    with journal_of_main(folder, step) as journal, requests_to_stop() as stop:
        while step < total_steps:
            progress = Progress(step, total_steps, steps_per_epoch)
            position = step % steps_per_epoch
            if position == 0:
                order = epoch_order(len(split), settings.seed, progress.epoch, device)
            start = position * settings.batch_size + distributed.rank() * share
            indices = order[start : start + share]
            # All views in one call: on a GPU it is the launches that cost, not the images.
            images = split.images[indices].repeat(recipe.augment.views, 1, 1, 1)
            views = augment(images, recipe.augment, data.mean, data.std, generator).split(share)
            rate = learning_rate(settings, progress)
            set_learning_rate(optimizer, rate)
            method.before_step(progress)
            with torch.autocast(device.type, AUTOCAST[settings.precision], settings.precision != "fp32"):
                try:
                    output = model(Batch(list(views), split.labels[indices], indices))
                except InputError as error:  # the data were checked before: this is divergence
                    raise RunError(diverged(step, folder, str(error))) from None
            scaler.scale(output.loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1
            progress = Progress(step, total_steps, steps_per_epoch)
            method.after_step(progress)

            averages.add({"loss": output.loss, **output.metrics})
            epoch_ends = step % steps_per_epoch == 0
            row: dict[str, float] | None = None
            if epoch_ends or step % STEPS_PER_ROW == 0:
                row = {
                    "step": step,
                    "epoch": round(step / steps_per_epoch, 4),
                    **averages.take(share * world),
                }
                row["learning_rate"] = rate
                if row["loss"] - row["loss"] != 0:
                    raise RunError(diverged(step, folder, f"the loss is {row['loss']}"))
                journal.write(row)
            watch(progress, row)
            # Processes may only ask each other where they all wait for the device anyway.
            asked = stop.number
            if world > 1:
                asked = signal.SIGTERM if row and distributed.any_process(asked > 0, device) else 0
            if asked and step < total_steps:
                save()
                raise Interrupted(f"stopped and saved at step {step} of {total_steps}", asked)
            if epoch_ends and (progress.epoch % settings.checkpoint_every == 0 or step == total_steps):
                save()


def restore(
    state: dict[str, Any],
    recipe: Recipe[Any],
    folder: Path,
    method: Method,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    generator: torch.Generator,
) -> int:
    """Puts everything back as it was and returns the number of steps done."""
    changed = differences(state["recipe"], recipe_to_dict(recipe))
    for name, (before, now) in changed.items():
        if not name.startswith(FREE_ON_RESUME):
            raise InputError(
                f"{folder} was begun with {name} = {before!r} and cannot go on with {now!r}; "
                "take the change back, or start another run with --out FOLDER"
            )
    if len(state["generators"]) != distributed.world_size():
        raise InputError(
            f"{folder} was begun with {len(state['generators'])} processes and cannot go on with "
            f"{distributed.world_size()}; start as many again, or another run with --out FOLDER"
        )
    method.load_state_dict(state["method"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    generator.set_state(state["generators"][distributed.rank()])
    return state["step"]


def check_batch(batch_size: int, images: int, processes: int) -> None:
    if batch_size > images:
        raise InputError(
            f"train.batch_size is {batch_size} but there are only {images} training images; lower it"
        )
    if batch_size % processes:
        raise InputError(
            f"train.batch_size {batch_size} cannot be shared by {processes} processes; make it a multiple"
        )


def epoch_order(images: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """A permutation that depends on seed and epoch alone, the same in every process and after a resume."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(images, generator=generator).to(device)


def mixed_seed(*numbers: int) -> int:
    """32 bits, all that torch's CPU generator takes from a seed, different for different numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def diverged(step: int, folder: Path, what: str) -> str:
    kept = "; the last checkpoint is kept" if (folder / "last.ckpt").exists() else ""
    return (
        f"training diverged at step {step} ({what}): lower train.learning_rate or lengthen "
        f"train.warmup_epochs{kept}"
    )


class _Stop:
    number = 0


@contextmanager
def requests_to_stop() -> Iterator[_Stop]:
    """Notes Ctrl-C and SIGTERM instead of dying of them; a second one kills as usual."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: Any) -> None:
        stop.number = number
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def journal_of_main(folder: Path, step: int) -> Iterator[Journal]:
    """The journal in the main process; the others write to nowhere."""
    with Journal(folder / "metrics.jsonl" if distributed.is_main() else Path(os.devnull), step) as journal:
        yield journal
