"""What tests of the norms' kernels share: drawn inputs, and torch's own norm in float64 to compare with."""

import copy

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw(shape, generator, dtype, mean=0.0, deviation=1.0):
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * deviation + mean
    return values.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()


def drawn_norm(channels, generator):
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2, generator=generator)
        norm.bias.normal_(generator=generator)
    return norm.to(DEVICE), copy.deepcopy(norm).to(DEVICE).double()


def difference(ours, theirs):
    """Relative, by norms."""
    theirs = theirs.detach().double()
    return float((ours.detach().double() - theirs).norm() / theirs.norm())
