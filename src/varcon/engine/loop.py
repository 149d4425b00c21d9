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
from torch import Tensor, nn

from varcon.augment import draw_views
from varcon.core import Batch, Data, InputError, Method, Progress, RunError, StepOutput
from varcon.engine import distributed
from varcon.engine.average import WeightAverage
from varcon.engine.checkpoint import save_weights, snapshot_path
from varcon.engine.interrupt import Interrupted, Request, requests_to_stop
from varcon.engine.journal import Averages, Journal
from varcon.engine.optimizers import build_optimizer, learning_rate, set_learning_rate
from varcon.engine.precision import CastTogether
from varcon.engine.samples import SampleRecord
from varcon.engine.state import TrainingState, keep_recipe
from varcon.engine.step import DTYPES, GraphedStep, Step, measured_convolutions, why_no_graph
from varcon.engine.track import check_tracker, tracking
from varcon.layers import check_queues
from varcon.recipe import Recipe

STEPS_PER_ROW = 50  # of metrics.jsonl; a row waits for the device, so not every step has one

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
    settings, world = recipe.train, distributed.world_size()
    steps_per_epoch = len(data.train) // settings.batch_size
    total_steps = settings.epochs * steps_per_epoch

    method = method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    split = data.train.to(device)
    optimizer = build_optimizer(method, settings)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    generator = torch.Generator(device).manual_seed(mixed_seed(settings.seed, distributed.rank()))
    conditions = {
        "device": device.type,  # each kind has random numbers of its own
        "processes": world,
        "training images": len(split),
        "classes": len(data.classes),
    }
    record, averages = SampleRecord(len(split), device), Averages()
    average = WeightAverage(method, settings.average) if settings.average else None
    encoder = average.kept["encoder"] if average else method.encoder  # what is kept
    state = TrainingState(
        folder and folder / "last.ckpt",
        recipe,
        conditions,
        method,
        optimizer,
        scaler,
        generator,
        record,
        averages,
        average,
    )
    kept = folder if distributed.is_main() else None
    if resume:
        state.load()
        if kept:
            keep_recipe(kept, recipe)
    model: Callable[[Batch], StepOutput] = distributed.synchronised(method, device)
    if settings.compile and device.type == "cuda":
        model = torch.compile(model)
    elif model is method and device.type == "cuda" and settings.precision != "fp32":
        model = CastTogether(method, DTYPES[settings.precision])
    step = Step(method, model, data, split, recipe, optimizer, scaler, generator, averages, record, average)
    run_step = step if why_no_graph(recipe, device, world) else GraphedStep(step)

    saved = time.monotonic()
    order = epoch_order(split.labels, settings.seed, state.step // steps_per_epoch, settings.balanced)
    if kept and state.step == 0 and 0 in settings.snapshots:
        save_weights(snapshot_path(kept, 0), encoder)
    with (
        Journal(kept and kept / "metrics.jsonl", state.step) as journal,
        Journal(kept and kept / "samples.jsonl", state.step) as samples,
        tracking(recipe, kept, state.step) as track,
        requests_to_stop() if folder else nullcontext(Request()) as stop,
        measured_convolutions(),
        closing(state),
    ):
        began = time.monotonic() - journal.seconds
        while state.step < total_steps:
            progress = Progress(state.step, total_steps, steps_per_epoch)
            position = state.step % steps_per_epoch
            if position == 0:
                order = epoch_order(split.labels, settings.seed, progress.epoch, settings.balanced)
            indices = share_of(order[position * settings.batch_size :][: settings.batch_size])

            rate = learning_rate(settings, progress)
            set_learning_rate(optimizer, rate)
            method.before_step(progress)
            if average:
                average.before_step(state.step)
            try:
                run_step(indices)
            except InputError as error:  # the data were checked when read: this is divergence
                raise RunError(diverged(state, str(error))) from None
            state.step += 1
            progress = Progress(state.step, total_steps, steps_per_epoch)

            row: dict[str, float] | None = None
            epoch_ends = state.step % steps_per_epoch == 0
            if epoch_ends or state.step % STEPS_PER_ROW == 0:
                row = {"step": state.step, "epoch": round(state.step / steps_per_epoch, 4)}
                row |= averages.take(settings.batch_size)
                row |= {"learning_rate": rate, "seconds": round(time.monotonic() - began, 3)}
                if not np.isfinite(row["loss"]):
                    raise RunError(diverged(state, f"the loss is {row['loss']}"))
                journal.write(row)
                track(row)
            if epoch_ends and folder and (summaries := record.end_epoch()):
                samples.write({"step": state.step, "epoch": progress.epoch, **summaries})
            # Before any checkpoint of this step: a run that goes on from there would not come by here again.
            # One that goes on from an earlier step does, and then the file is that of the run it has become.
            if kept and epoch_ends and progress.epoch in settings.snapshots:
                save_weights(snapshot_path(kept, progress.epoch), encoder)
            watch(progress, row)

            asked = stop.number
            if world > 1:  # processes may only ask each other where all of them wait for the device anyway
                asked = signal.SIGTERM if row and distributed.any_process(asked > 0, device) else 0
            if asked and state.step < total_steps:
                # Nobody has looked since the last row, and what has diverged would replace a good checkpoint.
                if not np.isfinite(total := averages.total("loss")):
                    raise RunError(diverged(state, f"the loss is {total}"))
                state.save()
                state.close()
                raise Interrupted(f"stopped and saved at step {state.step} of {total_steps}", asked)
            if epoch_ends:
                # The first process's clock decides for all.
                due = distributed.is_main() and time.monotonic() - saved >= settings.checkpoint_seconds
                if state.step == total_steps or distributed.any_process(due, device):
                    state.save()
                    saved = time.monotonic()
    if average:
        average.take_place(method)
    if kept:
        record.write(kept / "samples.npz")


@torch.no_grad()
def check(method: Method, recipe: Recipe[Any], data: Data, processes: int) -> None:
    """What can be known to fail, before anything is written."""
    batch_size = recipe.train.batch_size
    if batch_size > len(data.train):
        raise InputError(
            f"train.batch_size is {batch_size} but there are only {len(data.train)} training images; lower it"
        )
    if batch_size % processes:
        raise InputError(
            f"train.batch_size {batch_size} cannot be shared by {processes} processes; make it a multiple"
        )
    if method.uses_labels and len(data.classes) < 2:
        raise InputError(
            f"method {recipe.method_name} tells classes apart and the data have one alone; "
            "give it two or more"
        )
    check_tracker(recipe)
    check_queues(method, batch_size)
    check_views(method, recipe)
    normalises = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in method.modules())
    if normalises and batch_size < 2 * processes:
        raise InputError(
            f"train.batch_size is {batch_size}, but batch normalisation needs at least 2 images in each "
            f"process; raise it to {2 * processes} or more"
        )
    views = draw_views(data.train.images[:1], recipe.augment, data.mean, data.std, torch.Generator())
    encoder = method.encoder.eval()  # which leaves batch statistics alone
    for view in views:
        shape = list(encoder(view).shape)
        if shape != [1, encoder.features]:
            raise InputError(
                f"the encoder makes features of shape {shape} from one image and says it makes "
                f"{encoder.features}; correct its attribute `features`"
            )
    encoder.train()


def check_views(method: Method, recipe: Recipe[Any]) -> None:
    """A view too many would be paid for and not looked at; one too few has nothing to be compared with."""
    name, views, small_views = recipe.method_name, recipe.augment.views, recipe.augment.small_views
    least, most = method.least_views, method.most_views
    if views < least or (most is not None and views > most):
        wanted = least if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise InputError(
            f"augment.views is {views}, but method {name} compares {wanted} views of an image; "
            f"set it to {wanted}"
        )
    if small_views and not method.takes_small_views:
        raise InputError(
            f"augment.small_views is {small_views}, but method {name} takes no small views; set it to 0"
        )


def epoch_order(labels: Tensor, seed: int, epoch: int, balanced: bool = False) -> Tensor:
    """The images of an epoch, which depend on seed and epoch alone: the same in every process and after a
    resume. Each comes up once; or in a balanced epoch, as long as that, each class equally often."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    order = torch.randperm(len(labels), generator=generator)
    if balanced:
        order = evenly(order, labels.cpu(), generator)
    return order.to(labels.device)


def evenly(order: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """As many draws of each class as of any other, or one more; its images in turn, from a random one on."""
    own = labels[order]
    by_class, counts = order[own.argsort(stable=True)], own.bincount()
    present = counts.nonzero().flatten()
    classes = present[torch.randperm(len(present), generator=generator)]  # some of them get one more
    turns = torch.arange(len(order))
    drawn, turn = classes[turns % len(classes)], turns // len(classes)
    chosen = by_class[(counts.cumsum(0) - counts)[drawn] + turn % counts[drawn]]
    return chosen[torch.randperm(len(chosen), generator=generator)]


def share_of(indices: Tensor) -> Tensor:
    """This process's part of a batch."""
    return indices.chunk(distributed.world_size())[distributed.rank()]


def mixed_seed(*numbers: int) -> int:
    """32 bits, all that torch's CPU generator takes from a seed, different for different numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def diverged(state: TrainingState, what: str) -> str:
    kept = "; the last checkpoint is kept" if state.path and state.path.exists() else ""
    return (
        f"training diverged at step {state.step} ({what}): lower train.learning_rate or lengthen "
        f"train.warmup_epochs{kept}"
    )
