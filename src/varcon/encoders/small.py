"""A residual network that a laptop trains in seconds."""

from __future__ import annotations

from varcon.encoders.resnet import BasicBlock, ResNet, Stem


def small(stem: Stem) -> ResNet:
    """Three stages of one block, 16 to 64 channels, for images of 8 to 32 pixels."""
    return ResNet(BasicBlock, (1, 1, 1), stem, width=16)
