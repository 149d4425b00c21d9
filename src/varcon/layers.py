"""Parts of networks that several methods share."""

from __future__ import annotations

from torch import nn


class ProjectionHead(nn.Sequential):
    """Maps pooled features to the space in which the loss compares them."""

    def __init__(self, features: int, dimensions: int) -> None:
        super().__init__(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, dimensions))
