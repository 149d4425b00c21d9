"""How strong each corruption is at each severity.

Published by Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations" (2019), as the scripts that made CIFAR-10-C / CIFAR-100-C (images of 32 pixels),
Tiny-ImageNet-C (64 pixels) and ImageNet-C (224 pixels). Lengths are in pixels and pixel values lie in [0, 1]
unless a line says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CIFAR, TINY, IMAGENET = SIZES = 32, 64, 224  # short sides in pixels that parameters are published for


class Published(NamedTuple):
    """A tuple of parameters for each of the severities 1 to 5."""

    cifar: tuple[tuple[float, ...], ...]
    tiny_imagenet: tuple[tuple[float, ...], ...]
    imagenet: tuple[tuple[float, ...], ...]


PARAMETERS: dict[str, Published] = {
    # standard deviation
    "gaussian_noise": Published(
        ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
        ((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
        ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    ),
    # photons of a white pixel
    "shot_noise": Published(
        ((500,), (250,), (100,), (75,), (50,)),
        ((250,), (100,), (50,), (30,), (15,)),
        ((60,), (25,), (12,), (5,), (3,)),
    ),
    # share of the values that turn black or white
    "impulse_noise": Published(
        ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
        ((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
        ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    ),
    # radius of the disk, deviation of the Gaussian that smooths its rim
    "defocus_blur": Published(
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # deviation of the Gaussian before and after, greatest displacement, rounds of displacing
    "glass_blur": Published(
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # half the streak's greatest length, deviation of the half Gaussian along it
    "motion_blur": Published(
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    # end of the range of zoom factors from 1, step between them
    "zoom_blur": Published(
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    # flakes: mean, deviation, zoom, threshold, half the streak's length, its deviation; share of the image
    # that is not bleached
    "snow": Published(
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # weights of the image and of the ice
    "frost": Published(
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    # density of the fog; by the square of the second its detail decays from one octave to the next
    "fog": Published(
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    # added to HSV's value
    "brightness": Published(
        ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
        ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
        ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    ),
    # factor on the distance from the channel's mean
    "contrast": Published(
        ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
        ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
        ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    ),
    # shares of the side: strength and smoothness of the displacements, shift of the affine map's corners.
    # ImageNet-C's are shares of 244 pixels, at 224: a slip that its authors know and keep.
    "elastic_transform": Published(
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        tuple(
            (244 / 224 * strength, 244 / 224 * smoothness, 244 / 224 * shift)
            for strength, smoothness, shift in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
    ),
    # share of the side's pixels that are left
    "pixelate": Published(
        ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
        ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
        ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    ),
    # quality
    "jpeg_compression": Published(
        ((80,), (65,), (58,), (50,), (40,)),
        ((65,), (58,), (50,), (40,), (25,)),
        ((25,), (18,), (15,), (10,), (7,)),
    ),
}


def parameters(name: str, severity: int, size: int) -> tuple[float, ...]:
    """Those of the published sizes, and in between on the line from one to the next: nothing is published
    there, and what counts in pixels should grow with the image.
    """
    tables = (table[severity - 1] for table in PARAMETERS[name])
    return tuple(float(np.interp(size, SIZES, values)) for values in zip(*tables, strict=True))
