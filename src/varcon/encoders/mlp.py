"""A network for vectors: rows of a table, or what another model has made of images, text or sound."""

from __future__ import annotations

from torch import Tensor, nn

from varcon.core import Encoder

WIDTH = 128


class MLP(Encoder):
    """Two layers. Without their normalisation all embeddings may collapse into the direction of the most
    frequent class, where the loss has no gradient left.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.features = width = WIDTH
        self.layers = nn.Sequential(
            *(nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
            *(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, vectors: Tensor) -> Tensor:
        return self.layers(vectors.to(self.layers[0].weight.dtype))  # type: ignore[arg-type]
