"""Classification by the nearest training images, which asks the embedding and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder
from varcon.limits import above_zero, declared

QUERIES_AT_ONCE = 2048  # fewer, and the product would spend more on rearranging the bank each time
GROUP = 32  # similarities of which only the largest is looked at first
CELLS_AT_ONCE = 2**28  # similarities held at a time, at most: 1 GB, where a million images are searched


@dataclass(frozen=True)
class KNN:
    """Cosine neighbours vote with weight exp(similarity / temperature)."""

    k: int = 5  # the number of neighbours behind the headline score
    also: tuple[int, ...] = (1, 10, 20, 50, 100, 200)  # reported beside it
    temperature: float = 0.07  # the lower, the more the nearest neighbours count

    def __post_init__(self) -> None:
        declared(self, of="knn")
        if min((self.k, *self.also)) < 1:
            raise InputError(f"knn.k is {self.k} and knn.also {self.also}; neighbours count from 1")
        above_zero(self, "temperature", of="knn")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        if self.k > len(data.train):
            raise InputError(
                f"knn.k is {self.k} but there are only {len(data.train)} training images; lower it"
            )
        ks = sorted({self.k, *(k for k in self.also if k <= len(data.train))})
        labels = data.test.labels.to(encoder.device)
        train_labels = data.train.labels.to(encoder.device)
        votes = knn_votes(
            encoder.features(data.test),
            encoder.features(data.train),
            train_labels,
            len(data.classes),
            ks,
            self.temperature,
        )
        # Few neighbours name few classes. The others must not fill up the first five in the order in which
        # classes happen to be numbered.
        named = {k: votes[k].masked_fill(votes[k] == 0, -math.inf) for k in ks}
        accuracy = {k: top_accuracy(named[k], labels) for k in ks}
        scores = {"k": float(self.k), "top1": accuracy[self.k][0], "top5": accuracy[self.k][1]}
        for k, (top1, top5) in accuracy.items():
            scores |= {f"top1@{k}": top1, f"top5@{k}": top5}
        predictions = votes[self.k].argmax(dim=1)
        confusion = torch.zeros(len(data.classes), len(data.classes), dtype=torch.int64)
        confusion.index_put_(
            (labels.cpu(), predictions.cpu()), torch.ones(len(labels), dtype=torch.int64), accumulate=True
        )
        arrays = {"predictions": predictions, "labels": labels, "confusion": confusion}
        return Findings(scores, {name: array.cpu().numpy() for name, array in arrays.items()})


def knn_votes(
    queries: Tensor, bank: Tensor, bank_labels: Tensor, num_classes: int, ks: list[int], temperature: float
) -> dict[int, Tensor]:
    """For each of the ascending `ks` the votes [N, classes], from one search for the largest."""
    similarity, neighbours = nearest(queries, bank, ks[-1])
    return votes_of(similarity, bank_labels[neighbours], num_classes, ks, temperature)


@torch.no_grad()
def nearest(queries: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosine and position [N, k] of each query's k nearest in the bank, the nearest first."""
    columns = math.ceil(len(bank) / GROUP) * GROUP  # whole groups; what lies beyond the bank is no neighbour
    at_once = max(1, min(QUERIES_AT_ONCE, CELLS_AT_ONCE // columns))
    parts = queries.tensor_split(max(1, math.ceil(len(queries) / at_once)))
    # Cosines are scaled, not the bank, of which that would take a copy. And one buffer serves all parts:
    # memory that is asked for anew comes from the system page by page.
    scale = 1 / torch.linalg.vector_norm(bank, dim=1).clamp_min(1e-12)
    buffer = queries.new_full((len(parts[0]), columns), -math.inf)
    found = []
    for part in parts:
        cosines = buffer[: len(part)]
        torch.mm(F.normalize(part, dim=1), bank.T, out=cosines[:, : len(bank)]).mul_(scale)
        found.append(largest(cosines, k))
    similarity, neighbours = zip(*found, strict=True)
    return torch.cat(similarity), torch.cat(neighbours)


def largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What `rows.topk(k, dim=1)` gives, of rows that consist of whole groups.

    At least k numbers are as large as the k-th largest of the groups' maxima. So the k largest lie in the
    groups with the k largest maxima, and to look through those alone is less work.
    """
    groups = rows.unflatten(1, (-1, GROUP))  # [N, groups, GROUP]
    if 2 * k > groups.shape[1]:
        values, found = rows.topk(k, dim=1)
        return values, found
    chosen = groups.amax(dim=2).topk(k, dim=1, sorted=False).indices  # [N, k]
    place = chosen + groups.shape[1] * torch.arange(len(rows), device=rows.device)[:, None]
    candidates = groups.flatten(0, 1).index_select(0, place.flatten()).view(len(rows), -1)
    values, found = candidates.topk(k, dim=1)
    return values, chosen.gather(1, found // GROUP) * GROUP + found % GROUP


def votes_of(
    similarity: Tensor, classes: Tensor, num_classes: int, ks: list[int], temperature: float
) -> dict[int, Tensor]:
    """Of neighbours [N, K], the nearest first; for each of the ascending `ks` the votes [N, classes]."""
    # Relative to the nearest neighbour: the same ranking, and no overflow at low temperature.
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    weights = weights.clamp_min(torch.finfo(weights.dtype).tiny)  # a neighbour's vote is never none at all
    votes = {}
    total = weights.new_zeros(len(weights), num_classes)
    for begin, end in zip([0, *ks[:-1]], ks, strict=True):
        total = total.scatter_add(1, classes[:, begin:end], weights[:, begin:end])
        votes[end] = total
    return votes
