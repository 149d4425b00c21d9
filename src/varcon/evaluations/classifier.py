"""The classifier that a method has trained along with its encoder, on the test images."""

from __future__ import annotations

import torch
from torch import nn

from varcon.core import Data, Findings
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder
from varcon.layers import CosineClassifier


class OwnClassifier:
    def __init__(self, layer: nn.Linear | CosineClassifier) -> None:
        self.layer = layer

    @torch.no_grad()
    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        logits = self.layer(encoder.features(data.test))
        top1, top5 = top_accuracy(logits, data.test.labels.to(encoder.device))
        return Findings({"top1": top1, "top5": top5}, {"predictions": logits.argmax(dim=1).cpu().numpy()})
