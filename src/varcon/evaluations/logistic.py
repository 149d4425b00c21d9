"""Logistic regression on the frozen features, its L2 penalty chosen on held-out training images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError, OnProgress
from varcon.data.subset import hold_out
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder, check_finite
from varcon.evaluations.metrics import mean_per_class, top1
from varcon.limits import at_least, declared, seed, within_one

ROWS_AT_ONCE = 16384  # a block's scores of 1,000 classes take 131 MB in float64
MOST_DOUBLES = 2**27  # features that would take more than 1 GB in float64 are left in float32
PASSES_A_ROUND = 100  # over the features, after which the curvature is measured anew
LEAST_CURVATURE = 1e-6  # as a share of the variance
NOTHING_HELD_OUT = 0.1  # the penalty where every class has one image and none can be spared to choose by
# Of the fits that rank the penalties: further passes move a held-out accuracy by less than its own error.
RANKING_PASSES, RANKING_TOLERANCE = 100, 3e-5


@dataclass(frozen=True)
class LogisticProbe:
    """Multinomial, by L-BFGS; penalties evenly apart on a logarithmic scale are searched coarse to fine.

    The objective is the sum of the log losses + penalty / 2 * |weights|^2, intercepts free: scikit-learn's
    with C = 1 / penalty, or 2 / penalty of two classes, to which it gives one row of weights and not two.
    Penalties are meant for features whose total variance is 1, so that one range serves encoders of every
    scale and width.
    """

    least: float = 1e-6  # of the penalties
    greatest: float = 1e5  # of the penalties
    steps: int = 45  # penalties from the least to the greatest; 1: the least, and nothing is chosen
    held_out: float = 0.2  # share of each class by which the penalty is chosen; the last fit has all images
    passes: int = 500  # of the last fit over all features, at most
    seed: int = 0  # of the images held out

    def __post_init__(self) -> None:
        declared(self, of="logistic")
        if not 0 < self.least <= self.greatest < math.inf:
            raise InputError(
                f"logistic.least is {self.least} and logistic.greatest {self.greatest}; "
                "both must be above 0 and finite, the least not above the greatest"
            )
        at_least(1, self, "steps", "passes", of="logistic")
        within_one(self, "held_out", of="logistic")
        seed(self, of="logistic")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        labels = data.test.labels.to(encoder.device)
        train, train_labels = encoder.features(data.train), data.train.labels.to(encoder.device)
        chosen = self.fit(train, train_labels, len(data.classes), progress=encoder.progress)
        outputs = chosen.model.scores(encoder.features(data.test))
        accuracy, top5 = top_accuracy(outputs, labels)
        scores = {"top1": accuracy, "top5": top5, "mean_per_class": mean_per_class(outputs, labels)}
        scores["penalty"] = chosen.penalty
        tried = sorted(chosen.tried.items())
        arrays = {"penalties": np.array([penalty for penalty, _ in tried])}
        arrays["held_out_accuracy"] = np.array([accuracy for _, accuracy in tried])
        arrays["predictions"] = outputs.argmax(dim=1).cpu().numpy()
        return Findings(scores, arrays)

    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        num_classes: int,
        judge: Callable[[Tensor, Tensor], float] = top1,
        progress: OnProgress = lambda done, total, what: None,
    ) -> Chosen:
        """The best penalty by `judge` on held-out images, and the model that it gives on all images.

        `targets` are labels [N], or [N, classes] for one-vs-rest: 1 where an image shows the class, 0 where
        not, negative where that is not to count.
        """
        penalties = np.geomspace(self.greatest, self.least, self.steps).tolist()
        # An image of several classes belongs to no one stratum: any may be held out.
        strata = targets if targets.ndim == 1 else targets.new_zeros(len(targets), dtype=torch.int64)
        kept, held = hold_out(strata, self.held_out, self.seed)
        tried: dict[float, tuple[float, float]] = {}
        if len(held) and self.steps > 1:
            # Rounding to float32 does not reorder penalties.
            problem = LogisticProblem(features[kept], targets[kept], num_classes, torch.float32)

            def try_out(penalty: float, done: int, total: int) -> tuple[float, float]:
                progress(done, total, "choosing the penalty of the logistic regression")
                strength = penalty * problem.total_variance
                outputs = problem.solve(strength, RANKING_PASSES, RANKING_TOLERANCE).scores(features[held])
                loss = losses_and_slopes(outputs, targets[held])[0]
                return judge(outputs, targets[held]), -float(loss)  # the loss decides between equals

            tried = coarse_to_fine(penalties, try_out)
            del problem  # its copy of the features
        if tried:
            best = max(tried, key=lambda penalty: tried[penalty])
        else:
            best = self.least if self.steps == 1 else min(max(NOTHING_HELD_OUT, self.least), self.greatest)
        problem = LogisticProblem(features, targets, num_classes)
        progress(0, 1, "fitting the logistic regression")
        model = problem.solve(best * problem.total_variance, self.passes)
        progress(1, 1, "fitting the logistic regression")
        return Chosen(model, best, {penalty: judgement for penalty, (judgement, _) in tried.items()})


@dataclass(frozen=True)
class LinearModel:
    weight: Tensor  # [classes, F]
    bias: Tensor  # [classes]

    def scores(self, features: Tensor) -> Tensor:
        """The logits [N, classes]."""
        parts = features.split(ROWS_AT_ONCE)
        return torch.cat([F.linear(part.to(self.weight.dtype), self.weight, self.bias) for part in parts])


@dataclass(frozen=True)
class Chosen:
    model: LinearModel
    penalty: float
    tried: dict[float, float]  # judgement on the held-out images by penalty; empty if none was held out


def coarse_to_fine(
    values: list[float], judge: Callable[[float, int, int], tuple[float, float]]
) -> dict[float, tuple[float, float]]:
    """The judgements of every fourth value or so in order, then of the best one's ever nearer neighbours."""
    stride = 2 ** max(0, int(math.log2(len(values) / 8)))
    wanted = list(range(0, len(values), stride))
    total = len(wanted) + 2 * int(math.log2(stride))
    judged: dict[float, tuple[float, float]] = {}
    while wanted:
        for index in wanted:
            judged[values[index]] = judge(values[index], len(judged), total)
        best = values.index(max(judged, key=lambda value: judged[value]))
        stride //= 2
        wanted = [i for i in (best - stride, best + stride) if stride and 0 <= i < len(values)]
    return judged


class LogisticProblem:
    """Regression on given features, to be solved for one penalty after another.

    The features are turned into their principal axes, which leaves the penalty as it is. There the curvature
    is nearly diagonal, and L-BFGS in variables of equal curvature needs tens or hundreds of passes, not many
    thousands. N images span fewer than N axes, so that few images make a small problem.
    """

    def __init__(
        self, features: Tensor, targets: Tensor, num_classes: int, dtype: torch.dtype = torch.float64
    ) -> None:
        if num_classes < 2:
            raise InputError(
                "logistic regression tells classes apart and there is only one; give two or more"
            )
        check_finite(features)
        if features.numel() > MOST_DOUBLES:
            dtype = torch.float32
        self.targets = targets
        self.mean = features.mean(dim=0, dtype=torch.float64)
        axes, squares = principal_axes(features, self.mean)
        self.axes = axes  # [F, rank]
        self.variances = squares / len(features)  # [rank] along the axes
        self.total_variance = float(self.variances.sum()) or 1.0
        self.turned = axes.new_empty(len(features), axes.shape[1], dtype=dtype)
        for part, turned in zip(features.split(ROWS_AT_ONCE), self.turned.split(ROWS_AT_ONCE), strict=True):
            turned.copy_((part - self.mean) @ axes)
        self.weight = axes.new_zeros(num_classes, axes.shape[1])
        self.bias = axes.new_zeros(num_classes)

    def solve(self, penalty: float, passes: int = 500, tolerance: float = 1e-6) -> LinearModel:
        """Begins with the last solution; `tolerance` bounds the slopes left, in those variables."""
        done = 0
        while done < passes and not self._go_on(penalty, min(PASSES_A_ROUND, passes - done), tolerance):
            done += PASSES_A_ROUND
        full = self.weight @ self.axes.T
        return LinearModel(full, self.bias - full @ self.mean)

    def _go_on(self, penalty: float, passes: int, tolerance: float) -> bool:
        """L-BFGS with the curvature of where it begins; whether it came to the end within so many passes."""
        count = len(self.turned)
        curvature, bias_curvature = self._curvature()
        scale = (curvature + penalty / count).rsqrt()  # [classes, rank]
        bias_scale = bias_curvature.rsqrt()
        weight, bias = self.weight / scale, self.bias / bias_scale
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=passes,
            max_eval=passes,
            history_size=20,
            tolerance_grad=tolerance,
            tolerance_change=tolerance**2
            / 10,  # half the slope's square is about what the loss can still lose
            line_search_fn="strong_wolfe",
        )

        @torch.no_grad()
        def objective() -> Tensor:
            now = weight * scale
            loss = penalty / 2 * now.square().sum()
            slope, bias_slope = penalty * now, torch.zeros_like(bias)
            for part, targets, outputs in self._blocks(now, bias * bias_scale):
                part_loss, slopes = losses_and_slopes(outputs, targets)
                loss += part_loss
                slope += slopes.T @ part
                bias_slope += slopes.sum(dim=0)
            weight.grad, bias.grad = slope * scale / count, bias_slope * bias_scale / count
            return loss / count

        optimizer.step(objective)
        self.weight, self.bias = weight * scale, bias * bias_scale
        return optimizer.state[weight]["func_evals"] < passes

    def _curvature(self) -> tuple[Tensor, Tensor]:
        """The mean loss's second derivatives by each weight and by each bias, at the last solution."""
        curvature, bias_curvature = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        for part, targets, outputs in self._blocks(self.weight, self.bias):
            chance = outputs.softmax(dim=1) if targets.ndim == 1 else outputs.sigmoid()
            doubt = chance * (1 - chance)
            curvature += doubt.T @ part.square()
            bias_curvature += doubt.sum(dim=0)
        # Where all is certain no curvature is left to divide by.
        floor, count = LEAST_CURVATURE, len(self.turned)
        return curvature / count + floor * self.variances, bias_curvature / count + floor

    def _blocks(self, weight: Tensor, bias: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        weight, bias = weight.to(self.turned.dtype), bias.to(self.turned.dtype)
        for start in range(0, len(self.turned), ROWS_AT_ONCE):
            part = self.turned[start : start + ROWS_AT_ONCE]
            yield part, self.targets[start : start + ROWS_AT_ONCE], F.linear(part, weight, bias)


def losses_and_slopes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the log losses in float64, and its derivative by the outputs [N, classes]."""
    if targets.ndim == 1:
        logs = outputs.log_softmax(dim=1)
        here = targets[:, None]
        loss = -logs.gather(1, here).sum(dtype=torch.float64)
        return loss, logs.exp_().scatter_add_(1, here, torch.full_like(here, -1, dtype=logs.dtype))
    counts, positive = (targets >= 0).to(outputs.dtype), (targets > 0).to(outputs.dtype)
    loss = (counts * (F.softplus(outputs) - positive * outputs)).sum(dtype=torch.float64)
    return loss, counts * (outputs.sigmoid() - positive)


def principal_axes(features: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The directions [F, rank] along which centred features vary, and the sums of squares along them."""
    count, width = features.shape
    if count > width:
        products = mean.new_zeros(width, width)
        for part in features.split(ROWS_AT_ONCE):
            products += (part - mean).T @ (part - mean)
        squares, axes = torch.linalg.eigh(products)
    else:
        squares, images = torch.linalg.eigh((features - mean) @ (features - mean).T)
        axes = (features - mean).T @ images * squares.clamp_min(1e-300).rsqrt()
    # Below this the products' rounding, about 1e-16 of the greatest, would pass for a direction.
    varied = squares > max(1e-13 * float(squares[-1]), 1e-30)
    return axes[:, varied], squares[varied]
