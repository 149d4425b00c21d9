"""Time SimAugment against the same sequence in kornia: `python benchmarks/augment.py`.

Both start from the same uint8 images and end with normalised float32, and both draw anew for each image.
They run in turn within one loop, so that a busy moment of the machine falls on both.
"""

from __future__ import annotations

import argparse
import sys

import torch
from timing import Work, surroundings, time_in_turn
from torch import nn

from varcon.augment import AugmentSettings, augment
from varcon.augment.policies import CROP_RATIO

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # CIFAR-10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=512, help="images in a batch")
    parser.add_argument("--size", type=int, default=32, help="height and width in pixels")
    parser.add_argument("--threads", type=int, default=2, help="processor threads")
    parser.add_argument("--repeats", type=int, default=20, help="timed batches of each")
    arguments = parser.parse_args()
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

    print(
        f"SimAugment of {arguments.images} images of {arguments.size}x{arguments.size}; "
        f"{surroundings('cpu', 'kornia')}; median of {arguments.repeats}\n"
    )
    print("| implementation | ms a batch | images / s | times varcon's |")
    print("|---|---:|---:|---:|")
    for name, seconds in medians.items():
        ratio = seconds / medians["varcon"]
        print(f"| {name} | {seconds * 1000:.1f} | {arguments.images / seconds:,.0f} | {ratio:.1f} |")
    return 0


def kornia_sequence(theirs, settings: AugmentSettings, size: int) -> nn.Module:
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
