"""Snow, frost, fog and a brighter sky."""

from __future__ import annotations

import torch
from torch import Tensor

from varcon.augment.ops import GREY_WEIGHTS
from varcon.data.corruptions.blur import streak, zoomed
from varcon.data.corruptions.draws import LEVELS, Draws, directions

ICE = (0.86, 0.94, 1.0)  # the colour of frost, red, green and blue


def snow(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    length: float,
    kept: float,
) -> Tensor:
    """Flakes are the peaks of enlarged noise, drawn out as they fall, once more upside down; the ground is
    bleached.
    """
    _, _, height, width = images.shape
    pixels = images.float() / 255
    flakes = mean + deviation * zoomed_noise(draws, height, width, zoom)
    flakes = flakes.masked_fill(flakes < threshold, 0).clamp(0, 1)
    flakes = streak(flakes, round(radius), length, *draws.direction(-135, -45))
    red, green, blue = (pixels[:, i : i + 1] * GREY_WEIGHTS[i] for i in range(3))
    bleached = torch.maximum(pixels, 1.5 * (red + green + blue) + 0.5)
    return kept * pixels + (1 - kept) * bleached + flakes + flakes.flip(2, 3)


def frost(images: Tensor, draws: Draws, image_weight: float, ice_weight: float) -> Tensor:
    """The image seen through ice.

    A departure from the published corruption, which overlays crops of five photographs: here the ice is
    drawn, as needles that follow a smooth field of random directions, on a cloud of uneven thickness. Errors
    on it do not compare with errors on the published images.
    """
    _, _, height, width = images.shape
    side = min(height, width)
    length = max(2, side // 16)
    course = (plasma(draws, height, width, 2.0)[:, 0] * (LEVELS - 1)).int()
    cosine, sine = directions(course, 0, 720)
    seeds = zoomed_noise(draws, height, width, 1 + side / 160)
    there, back = (streak(seeds, length, length, sign * cosine, sign * sine) for sign in (1, -1))
    needles = (there + back) * (0.5 * length**0.5)  # of about the same deviation at every length
    thickness = plasma(draws, height, width, 1.6)
    ice = (0.48 + 0.35 * needles) * (0.4 + 1.2 * thickness)
    colour = torch.tensor(ICE, device=images.device).view(3, 1, 1)
    return image_weight * (images.float() / 255) + ice_weight * colour * ice.clamp(0, 1)


def fog(images: Tensor, draws: Draws, density: float, decay: float) -> Tensor:
    """A cloud is added and the sum darkened, so that the image's brightest value stays its bound."""
    _, _, height, width = images.shape
    pixels = images.float() / 255
    brightest = pixels.amax(dim=(1, 2, 3), keepdim=True)
    return (pixels + density * plasma(draws, height, width, decay)) * brightest / (brightest + density)


def brightness(images: Tensor, draws: Draws, shift: float) -> Tensor:
    """HSV's value is raised, its hue and saturation kept: a pixel's three values grow by one factor."""
    pixels = images.float() / 255
    value = pixels.amax(dim=1, keepdim=True)
    raised = (value + shift).clamp(max=1)
    return torch.where(value > 0, pixels * (raised / value), raised)  # black has no hue: it turns grey


def zoomed_noise(draws: Draws, height: int, width: int, zoom: float) -> Tensor:
    """Enlarged normal noise, [N, 1, H, W]."""
    return zoomed(draws.normal(height, width).permute(1, 2, 0), zoom).permute(2, 0, 1)[:, None]


def plasma(draws: Draws, height: int, width: int, decay: float) -> Tensor:
    """A cloud by the diamond-square algorithm on a torus, in [0, 1]; [N, 1, H, W].

    Heights are given at the corners of a grid. Again and again its squares' middles, then its edges' middles
    are set to the mean of the four points around them and a random part, which shrinks by decay^2 as the grid
    becomes finer (the published script multiplies an amplitude that shrinks by decay with itself).
    """
    size = 1 << (max(height, width, 2) - 1).bit_length()
    chance = 2 * draws.uniform(size, size) - 1
    cloud = torch.zeros_like(chance)
    step, amplitude = size, 1.0
    while step >= 2:
        at, between = slice(None, None, step), slice(step // 2, None, step)
        corners = cloud[:, at, at]
        pairs = corners + corners.roll(-1, 1)
        cloud[:, between, between] = (pairs + pairs.roll(-1, 2)) / 4 + amplitude * chance[:, between, between]
        corners, middles = cloud[:, at, at].clone(), cloud[:, between, between].clone()
        around = (middles + middles.roll(1, 1)) + (corners + corners.roll(-1, 2))
        cloud[:, at, between] = around / 4 + amplitude * chance[:, at, between]
        around = (middles + middles.roll(1, 2)) + (corners + corners.roll(-1, 1))
        cloud[:, between, at] = around / 4 + amplitude * chance[:, between, at]
        step, amplitude = step // 2, amplitude / decay**2
    cloud = cloud - cloud.amin(dim=(1, 2), keepdim=True)
    cloud = cloud / cloud.amax(dim=(1, 2), keepdim=True)
    return cloud[:, None, :height, :width]
