"""Time SimAugment against the same sequence in kornia: `python benchmarks/augment.py`.

Both start from the same uint8 images and end with normalised float32, and both draw anew for each image.
They run in turn within one loop, so that a busy moment of the machine falls on both.

Where there is a GPU the table has the views per second there, of SimAugment and AutoAugment, beside
torchvision's transforms of Pillow images in the workers of a data loader on all processor cores, whose
views stay on the host.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from timing import Work, captured, surroundings, time_in_turn, time_on_gpu, write_table
from torch import Tensor, nn

from varcon.augment import AugmentSettings, augment, draw_views
from varcon.augment.sim import CROP_RATIO

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # CIFAR-10
POLICIES = {
    "SimAugment": AugmentSettings(),
    "AutoAugment": AugmentSettings(policy="auto", crop_area=(1.0, 1.0)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=512, help="images in a batch")
    parser.add_argument("--size", type=int, default=32, help="height and width in pixels")
    parser.add_argument("--threads", type=int, default=2, help="processor threads")
    parser.add_argument("--repeats", type=int, default=20, help="timed batches of each")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        compare_on_gpu(arguments)
        return 0
    return compare_with_kornia(arguments)


def compare_with_kornia(arguments: argparse.Namespace) -> int:
    try:
        import kornia
    except ImportError:
        print("This benchmark compares with kornia, which is not installed: pip install varcon[benchmarks]")
        return 2

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)  # kornia draws from the global state
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.images, 3, arguments.size, arguments.size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    settings = AugmentSettings()
    theirs = kornia_sequence(kornia.augmentation, settings, arguments.size)
    contenders: dict[str, Work] = {
        "varcon": lambda: augment(images, settings, MEAN, STD, generator),
        f"kornia {kornia.__version__}": lambda: theirs(images.float() / 255),
    }
    with torch.no_grad():
        medians = time_in_turn(contenders, arguments.repeats)

    head = (
        f"SimAugment of {arguments.images} images of {arguments.size}x{arguments.size}; "
        f"{surroundings('cpu', 'kornia')}; median of {arguments.repeats}"
    )
    lines = ["| implementation | ms a batch | images / s | times varcon's |", "|---|---:|---:|---:|"]
    for name, seconds in medians.items():
        ratio = seconds / medians["varcon"]
        lines.append(f"| {name} | {seconds * 1000:.1f} | {arguments.images / seconds:,.0f} | {ratio:.1f} |")
    write_table("Time of the augmentation on a CPU", head, lines, arguments.out)
    return 0


def compare_on_gpu(arguments: argparse.Namespace) -> None:
    lines = [
        "| augmentation | implementation | ms a batch | views / s | varcon is times as fast |",
        "|---|---|---:|---:|---:|",
    ]
    views = 0
    for policy, settings in POLICIES.items():
        views = arguments.images * settings.views
        rates = rates_on_gpu(settings, arguments)
        for name, rate in rates.items():
            times = rates["varcon"] / rate
            lines.append(f"| {policy} | {name} | {1000 * views / rate:.3f} | {rate:,.0f} | {times:.1f} |")
    where = surroundings("cuda", "triton", "torchvision")
    head = f"{views} views of {arguments.size}x{arguments.size}; {where}"
    write_table("Time of the augmentation on a GPU", head, lines, arguments.out)


def rates_on_gpu(settings: AugmentSettings, arguments: argparse.Namespace) -> dict[str, float]:
    """Views per second of each contender."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (arguments.images, 3, arguments.size, arguments.size)
    batch = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=generator)

    def draw() -> None:
        draw_views(batch, settings, MEAN, STD, generator)

    draw()  # compiles
    views = arguments.images * settings.views
    rates = {"varcon": views / time_on_gpu(draw, 10 * arguments.repeats)}
    replay = captured(draw, generator)
    if replay:
        rates["varcon in a CUDA graph"] = views / time_on_gpu(replay, 10 * arguments.repeats)
    transform = torchvision_views(settings, arguments.size)
    if transform is None:
        print("torchvision does not import here and is left out.", file=sys.stderr)
    else:
        workers = os.cpu_count() or 1
        rates[f"torchvision, {workers} workers"] = loader_rate(transform, batch, workers)
    return rates


class PillowImages(torch.utils.data.Dataset):
    """`length` transformed images, by going through `images` as often as it takes."""

    def __init__(self, images: Tensor, length: int, transform: Callable[[Any], Any]) -> None:
        from PIL import Image

        self.images = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).cpu().numpy()]
        self.length, self.transform = length, transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index % len(self.images)])


def torchvision_views(settings: AugmentSettings, size: int) -> Callable[[Any], Tensor] | None:
    """The same augmentation by torchvision, as most training code has it; None where it does not import."""
    try:
        from torchvision import transforms
    except (ImportError, RuntimeError):  # a torchvision built for another torch fails with the latter
        return None
    mirror = transforms.RandomHorizontalFlip(settings.flip)
    if settings.policy == "auto":
        shift = transforms.RandomCrop(size, padding=settings.shift, padding_mode="symmetric")
        own = [shift, mirror, transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)]
    else:
        own = [
            transforms.RandomResizedCrop(size, scale=settings.crop_area, ratio=CROP_RATIO),
            mirror,
            transforms.RandomApply([transforms.ColorJitter(*settings.jitter)], settings.jitter_probability),
            transforms.RandomGrayscale(settings.grey),
        ]
    return transforms.Compose([*own, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def loader_rate(transform: Callable[[Any], Tensor], batch: Tensor, workers: int) -> float:
    """Views per second once the workers have come into their stride."""
    dataset = PillowImages(batch, batches_to_time(workers) * len(batch), transform)
    loader = torch.utils.data.DataLoader(dataset, batch_size=len(batch), num_workers=workers)
    return len(batch) / seconds_a_batch(loader, lambda views: None)


def batches_to_time(workers: int) -> int:
    return 14 * max(1, workers)


def seconds_a_batch(loader: torch.utils.data.DataLoader, work: Callable[[Any], object]) -> float:
    """The first four batches of each worker do not count: they start, and empty the queue that the start has
    filled."""
    uncounted = 4 * max(1, loader.num_workers)
    start = 0.0
    for number, batch in enumerate(loader):
        if number == uncounted:
            wait_for_gpu()
            start = time.perf_counter()
        work(batch)
    wait_for_gpu()
    return (time.perf_counter() - start) / (len(loader) - uncounted)


def wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kornia_sequence(theirs: ModuleType, settings: AugmentSettings, size: int) -> nn.Module:
    return nn.Sequential(
        # "resample" is the faster of kornia's two ways to crop; its default visits the images one by one.
        theirs.RandomResizedCrop(
            (size, size), scale=settings.crop_area, ratio=CROP_RATIO, cropping_mode="resample"
        ),
        theirs.RandomHorizontalFlip(p=settings.flip),
        theirs.ColorJitter(*settings.jitter, p=settings.jitter_probability),
        theirs.RandomGrayscale(p=settings.grey),
        theirs.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    )


if __name__ == "__main__":
    sys.exit(main())
