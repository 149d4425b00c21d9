from torch import Tensor


def top_accuracy(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """Top-1 and top-5 accuracy in percent of class scores [N, C]; with fewer than 5 classes top-5 is 100."""
    hits = scores.topk(min(5, scores.shape[1]), dim=1).indices == labels[:, None]
    return 100 * hits[:, 0].double().mean().item(), 100 * hits.any(dim=1).double().mean().item()
