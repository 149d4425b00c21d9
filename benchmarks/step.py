"""Time a training step against its encoder alone and a data loader: `python benchmarks/step.py`.

"encoder alone" runs encoder, projection and SGD on one batch that lies on the device: nothing around them
can make a step faster than this. "compiled" is the same by torch.compile, without this project's kernels. The
step itself adds augmentation, the VarCon loss and the bookkeeping. The pipeline is the usual one:
torchvision's transforms of Pillow images in as many workers as there are cores, two views of each image,
copied to the device, and the same method, optimizer and precision there. Speeds count views, two for each
image of a batch. On a processor that computes in bf16 both precisions are measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from augment import PillowImages, batches_to_time, seconds_a_batch, torchvision_views
from timing import as_graph, surroundings, time_in_turn, time_on_gpu, write_table
from torch import Tensor, nn

from varcon.augment import AugmentSettings
from varcon.core import Batch, Data, Method, Split
from varcon.encoders import EncoderSettings
from varcon.engine.allocator import keep_freed_memory
from varcon.engine.journal import Averages
from varcon.engine.optimizers import build_optimizer, set_learning_rate
from varcon.engine.precision import CastTogether, computes_in_bf16, working_type
from varcon.engine.samples import SampleRecord
from varcon.engine.staging import Resident
from varcon.engine.step import GraphedStep, Step, as_called, measured_convolutions
from varcon.recipe import Recipe, TrainSettings
from varcon.run import build_method

CLASSES, SIZE, IMAGES = 100, 32, 4096


def main() -> int:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    encoders = ["resnet18", "resnet50"] if on_gpu else ["small"]
    parser.add_argument("--encoders", nargs="+", default=encoders)
    parser.add_argument(
        "--batch", type=int, default=512 if on_gpu else 128, help="images; each has two views"
    )
    parser.add_argument("--repeats", type=int, default=50 if on_gpu else 10)
    parser.add_argument("--threads", type=int, default=2, help="processor threads where there is no GPU")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as the command line does
    device = torch.device("cuda" if on_gpu else "cpu")
    precisions = [*["fp32"] * (not on_gpu), *["bf16"] * computes_in_bf16(device)]
    lines = [
        "| encoder | precision | what | ms | views / s | share of the encoder alone |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name, precision in itertools.product(arguments.encoders, precisions):
        print(f"measuring {name} in {precision}", file=sys.stderr)
        with measured_convolutions():
            seconds = measure(name, precision, arguments.batch, arguments.repeats, device)
        for what, value in seconds.items():
            speed, share = 2 * arguments.batch / value, seconds["encoder alone"] / value
            lines.append(
                f"| {name} | {precision} | {what} | {value * 1000:.2f} | {speed:,.0f} | {share:.3f} |"
            )
    head = (
        f"{arguments.batch} images of {SIZE}x{SIZE} in two views; "
        f"{surroundings(device.type, 'triton', 'torchvision')}; median of {arguments.repeats}"
    )
    write_table("Time of a training step", head, lines, arguments.out)
    return 0


def measure(name: str, precision: str, batch: int, repeats: int, device: torch.device) -> dict[str, float]:
    data, recipe = made_up(name, precision, batch, device)
    works: dict[str, Callable[[], object]] = {}
    works["encoder alone"] = encoder_alone(recipe, data, device, compiled=False)
    if device.type == "cuda":
        works["encoder alone, compiled"] = encoder_alone(recipe, data, device, compiled=True)
    works["training step"] = training_step(recipe, data, device)
    if device.type != "cuda":
        return time_in_turn(works, repeats)
    seconds = {}
    for what, work in works.items():
        seconds[what] = time_on_gpu(as_graph(work) if "alone" in what else work, repeats)
    pipeline = loader_pipeline(recipe, data, device)
    if pipeline is not None:
        seconds[f"data-loader pipeline, {os.cpu_count()} workers"] = pipeline
    return seconds


def made_up(name: str, precision: str, batch: int, device: torch.device) -> tuple[Data, Recipe]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.randint(0, CLASSES, (IMAGES,), generator=generator))
    data = Data(split, split, [str(number) for number in range(CLASSES)], (0.5,) * 3, (0.25,) * 3)
    train = TrainSettings(batch_size=batch, precision=precision, device=device.type)  # type: ignore[arg-type]
    return data, Recipe(encoder=EncoderSettings(name), train=train, augment=AugmentSettings())  # type: ignore[arg-type]


def built(recipe: Recipe, data: Data, device: torch.device) -> tuple[Method, torch.optim.Optimizer]:
    method = build_method(recipe, data).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = build_optimizer(method, recipe.train)
    set_learning_rate(optimizer, 1e-3)
    return method, optimizer


def encoder_alone(recipe: Recipe, data: Data, device: torch.device, compiled: bool) -> Callable[[], None]:
    method, optimizer = built(recipe, data, device)
    dtype = working_type(recipe.train.precision, device)
    network: Callable[[Tensor], Tensor] = nn.Sequential(method.encoder, method.get_submodule("head"))
    if compiled:
        network = torch.compile(network)
    elif device.type == "cuda" and dtype != torch.float32:
        network = CastTogether(network, dtype)  # type: ignore[arg-type]
    images = torch.randn(2 * recipe.train.batch_size, 3, SIZE, SIZE, device=device, dtype=dtype)
    images = images.contiguous(memory_format=torch.channels_last)

    def work() -> None:
        with torch.autocast(device.type, dtype, dtype != torch.float32):
            output = network(images)
        output.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


def training_step(recipe: Recipe, data: Data, device: torch.device) -> Callable[[], None]:
    method, optimizer = built(recipe, data, device)
    generator = torch.Generator(device).manual_seed(0)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    source, record = Resident(data.train, device), SampleRecord(IMAGES, device)
    step = Step(
        method=method,
        model=as_called(method, recipe.train, device),
        data=data,
        source=source,
        recipe=recipe,
        optimizer=optimizer,
        scaler=scaler,
        generator=generator,
        averages=Averages(),
        record=record,
    )
    run = GraphedStep(step) if device.type == "cuda" else step
    indices = torch.randperm(IMAGES, device=device)[: recipe.train.batch_size]
    return lambda: run(indices)


def loader_pipeline(recipe: Recipe, data: Data, device: torch.device) -> float | None:
    """Seconds a step, or None where torchvision does not import."""
    transform = torchvision_views(recipe.augment, SIZE)
    if transform is None:
        return None
    method, optimizer = built(replace(recipe, train=replace(recipe.train, compile=True)), data, device)
    model, dtype = torch.compile(method), working_type(recipe.train.precision, device)
    batch, workers = recipe.train.batch_size, os.cpu_count() or 1
    length = batches_to_time(workers) * batch
    assert isinstance(data.train.images, Tensor)
    images = PillowImages(data.train.images, length, lambda image: (transform(image), transform(image)))
    loader = torch.utils.data.DataLoader(images, batch, num_workers=workers, pin_memory=True)
    labels = data.train.labels[:batch].to(device)

    def work(views: list[Tensor]) -> None:
        moved = [view.to(device, non_blocking=True, memory_format=torch.channels_last) for view in views]
        with torch.autocast(device.type, dtype):
            output = model(Batch(moved, labels, labels))
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return seconds_a_batch(loader, work)


if __name__ == "__main__":
    sys.exit(main())
