import math

from torch import Tensor


def top_accuracy(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """Top-1 and top-5 accuracy in percent of class scores [N, C]; a class of score -inf is never a hit."""
    values, classes = scores.topk(min(5, scores.shape[1]), dim=1)
    hits = ((classes == labels[:, None]) & (values > -math.inf)).any(dim=1)
    best, predicted = scores.max(dim=1)  # whose choice among equals is that of argmax, unlike topk's
    top1 = (predicted == labels) & (best > -math.inf)
    return 100 * top1.double().mean().item(), 100 * (hits | top1).double().mean().item()
