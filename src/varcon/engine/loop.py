"""The training loop. It knows no method by name: a method's hooks carry what is its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varcon import distributed
from varcon.core import Data, InputError, Method, Progress, RunError
from varcon.engine.average import WeightAverage
from varcon.engine.checkpoint import save_weights, snapshot_path
from varcon.engine.interrupt import Interrupted, Request, requests_to_stop, undisturbed
from varcon.engine.journal import Averages, Journal
from varcon.engine.optimizers import build_optimizer, learning_rate, set_learning_rate
from varcon.engine.order import mixed_seed
from varcon.engine.samples import SampleRecord
from varcon.engine.staging import Resident, Staged, images_for_steps
from varcon.engine.state import TrainingState, keep_recipe
from varcon.engine.step import GraphedStep, Step, as_called, measured_convolutions, why_no_graph
from varcon.engine.track import tracking
from varcon.recipe import Recipe

STEPS_PER_ROW = 50  # of metrics.jsonl; a row waits for the device, so not every step has one
SECONDS_TO_STOP = 5.0  # about as long after a signal several processes look whether one has come

Watcher = Callable[[Progress, dict[str, float] | None], None]


def fit(
    method: Method,
    data: Data,
    recipe: Recipe[Any],
    folder: Path | None,
    device: torch.device,
    resume: bool,
    watch: Watcher,
) -> None:
    """Trains `method` in place and keeps `folder`'s last.ckpt, metrics.jsonl and snapshots up to date, also
    its recipe.json where a run is resumed.

    Without a folder it writes nothing, and a signal to stop acts as usual.
    """
    settings = recipe.train
    steps_per_epoch = len(data.train) // settings.batch_size
    total_steps = settings.epochs * steps_per_epoch
    source = images_for_steps(data.train, settings.batch_size // distributed.world_size(), device)
    state, run_step = set_up(method, data, source, recipe, folder, device, resume)
    average = state.average
    encoder = average.kept["encoder"] if average else method.encoder  # what is kept
    kept = folder if distributed.is_main() else None
    if kept and state.step == 0 and 0 in settings.snapshots:
        save_weights(snapshot_path(kept, 0), encoder)
    with (
        torch.enable_grad(),  # whatever a notebook has turned off
        Journal(kept and kept / "metrics.jsonl", state.step) as journal,
        Journal(kept and kept / "samples.jsonl", state.step) as samples,
        tracking(recipe, kept, state.step) as track,
        requests_to_stop() if folder else nullcontext(Request()) as stop,
        measured_convolutions(),
        closing(state),
        closing(source.batches(settings, state.step)) as coming,
    ):
        saved = time.monotonic()
        began = saved - journal.seconds - state.averages.carried
        agreed = Agreement(state.step, device)
        while state.step < total_steps:
            indices, progress = next(coming), Progress(state.step, total_steps, steps_per_epoch)
            rate = learning_rate(settings, progress)
            set_learning_rate(state.optimizer, rate)
            method.before_step(progress)
            if average:
                average.before_step(state.step)
            try:
                run_step(indices)
            except InputError as error:  # the data were checked when read: this is divergence
                raise diverged(state, str(error)) from None
            state.step += 1
            progress = Progress(state.step, total_steps, steps_per_epoch)

            row: dict[str, float] | None = None
            epoch_ends = state.step % steps_per_epoch == 0
            if epoch_ends or state.step % STEPS_PER_ROW == 0:
                row = {"step": state.step, "epoch": round(state.step / steps_per_epoch, 4)}
                row |= state.averages.take(settings.batch_size)
                row |= {"learning_rate": rate, "seconds": round(time.monotonic() - began, 3)}
                check_loss(row["loss"], state)
                journal.write(row)
                track(row)
            if epoch_ends and folder and (summaries := state.record.end_epoch()):
                samples.write({"step": state.step, "epoch": progress.epoch, **summaries})
            # Before any checkpoint of this step: a run that goes on from there would not come by here again.
            # One that goes on from an earlier step does, and then the file is that of the run it has become.
            if kept and epoch_ends and progress.epoch in settings.snapshots:
                save_weights(snapshot_path(kept, progress.epoch), encoder)
            watch(progress, row)

            asked = agreed(stop.number, state.step)
            if asked and state.step < total_steps:
                # Nobody has looked since the last row, and what has diverged would replace a good checkpoint.
                if distributed.any_process(not np.isfinite(state.averages.total("loss")), device):
                    raise diverged(state, "the loss is not finite")
                check_weights(state, device)
                with undisturbed():
                    state.save()
                    state.close()
                distributed.barrier()  # none ends, and has torchrun end the others, before all is on the disk
                raise Interrupted(f"stopped and saved at step {state.step} of {total_steps}", asked)
            if epoch_ends:
                # The first process's clock decides for all.
                due = distributed.is_main() and time.monotonic() - saved >= settings.checkpoint_seconds
                if state.step == total_steps or distributed.any_process(due, device):
                    check_weights(state, device)
                    state.save()
                    saved = time.monotonic()
    if average:
        average.take_place(method)
    if kept:
        state.record.write(kept / "samples.npz")


def set_up(
    method: Method,
    data: Data,
    source: Resident | Staged,
    recipe: Recipe[Any],
    folder: Path | None,
    device: torch.device,
    resume: bool,
) -> tuple[TrainingState, Callable[[Tensor], None]]:
    """A run's state, at its beginning or where it was left, and what takes a step with images of `source`."""
    settings, world = recipe.train, distributed.world_size()
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = TrainingState(
        path=folder and folder / "last.ckpt",
        recipe=recipe,
        conditions={
            "device": device.type,  # each kind has random numbers of its own
            "processes": world,
            "training images": len(data.train),
            "classes": len(data.classes),
        },
        method=method,
        optimizer=build_optimizer(method, settings),
        scaler=torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16"),
        generator=torch.Generator(device).manual_seed(mixed_seed(settings.seed, distributed.rank())),
        record=SampleRecord(len(data.train), device),
        averages=Averages(),
        average=WeightAverage(method, settings.average) if settings.average else None,
    )
    if resume:
        state.load()
        if folder and distributed.is_main():
            keep_recipe(folder, recipe)
    step = Step(
        method=method,
        model=as_called(method, settings, device),
        data=data,
        source=source,
        recipe=recipe,
        optimizer=state.optimizer,
        scaler=state.scaler,
        generator=state.generator,
        averages=state.averages,
        record=state.record,
        average=state.average,
    )
    return state, step if why_no_graph(recipe, device, world) else GraphedStep(step)


class Agreement:
    """On stopping, among processes. They must ask each other at the same step, and each time the first one's
    clock says at which step next: asking makes them wait for the device, but torchrun leaves a process that
    was asked to stop half a minute, in which a large model may take few steps."""

    def __init__(self, step: int, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self.device, self.clock = device, clock
        self.asked_at, self.next, self.began = step, step + 1, clock()

    def __call__(self, signal_number: int, step: int) -> int:
        """The signal that every process stops by, or 0."""
        if distributed.world_size() == 1:
            return signal_number
        if step < self.next:
            return 0
        seconds = (self.clock() - self.began) if distributed.is_main() else 0.0
        votes = torch.tensor([float(signal_number > 0), seconds], device=self.device)
        stop, seconds = distributed.sum_over_processes(votes).tolist()
        of_one = max(seconds / (step - self.asked_at), 1e-6)
        self.asked_at, self.began = step, self.clock()
        self.next = step + min(STEPS_PER_ROW, max(1, int(SECONDS_TO_STOP / of_one)))
        return signal.SIGTERM if stop else 0


def check_loss(loss: float, state: TrainingState) -> None:
    if not np.isfinite(loss):
        raise diverged(state, f"the loss is {loss}")


def check_weights(state: TrainingState, device: torch.device) -> None:
    """A step's loss is older than the weights that it leaves: these may be the first to be no numbers."""
    healthy = torch.stack([weights.isfinite().all() for weights in state.method.parameters()]).all()
    if distributed.any_process(not healthy, device):
        raise diverged(state, "the weights are not finite")


def diverged(state: TrainingState, what: str) -> RunError:
    kept = "; the last checkpoint is kept" if state.path and state.path.exists() else ""
    return RunError(
        f"training diverged at step {state.step} ({what}): lower train.learning_rate or lengthen "
        f"train.warmup_epochs{kept}"
    )
