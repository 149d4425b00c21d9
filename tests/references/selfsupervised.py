"""The self-supervised losses as their papers read: loops over numbers, gradients by autograd."""

import math

import torch

from references.varcon import unit


def log_share(scores, chosen):
    """The log of the softmax of one score among a list of them."""
    largest = max(score.item() for score in scores)
    return scores[chosen] - largest - sum((score - largest).exp() for score in scores).log()


def slow_nt_xent(anchors, contrast, itself, positive, temperature):
    losses = []
    for anchor, own, other in zip(anchors, itself.tolist(), positive.tolist(), strict=True):
        rest = [k for k in range(len(contrast)) if k != own]
        scores = [sum(anchor * contrast[k]) / temperature for k in rest]
        losses.append(-log_share(scores, rest.index(other)))
    return torch.stack(losses)


def slow_info_nce(queries, keys, queue, usable, temperature):
    losses = []
    for query, key in zip(queries, keys, strict=True):
        entries = [key] + [entry for entry, counts in zip(queue, usable.tolist(), strict=True) if counts]
        losses.append(-log_share([sum(query * entry.detach()) / temperature for entry in entries], 0))
    return torch.stack(losses)


def slow_regression(predictions, targets):
    pairs = zip(predictions, targets, strict=True)
    return torch.stack([2 - 2 * sum(unit(p) * unit(t.detach())) for p, t in pairs])


def slow_sinkhorn(scores, sharpness, iterations):
    """Plain numbers, no logarithms: prototypes to 1 / K, then samples to 1 / N, then all times N."""
    q = [[math.exp(score / sharpness) for score in row] for row in scores.tolist()]
    samples, prototypes = len(q), len(q[0])
    for _ in range(iterations):
        for k in range(prototypes):
            mass = sum(row[k] for row in q)
            for row in q:
                row[k] /= mass * prototypes
        for row in q:
            mass = sum(row)
            row[:] = [share / (mass * samples) for share in row]
    return torch.tensor(q, dtype=torch.float64) * samples


def slow_swapped(scores, assignments, temperature):
    losses = []
    for row, shares in zip(scores / temperature, assignments.tolist(), strict=True):
        losses.append(-sum(share * log_share(list(row), k) for k, share in enumerate(shares)))
    return torch.stack(losses)


def covariance_of(x, y, divisor):
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y, strict=True)) / divisor


def slow_vicreg(a, b, similarity, variance, covariance):
    """Returns the loss and its three terms."""
    samples, dimensions = a.shape
    agreement = sum((p - q) ** 2 for p, q in zip(a.flatten(), b.flatten(), strict=True)) / a.numel()
    hinge = redundancy = a.new_zeros(())
    for z in (a, b):
        columns = z.T.unbind()
        for i, x in enumerate(columns):
            deviation = (covariance_of(x, x, samples - 1) + 1e-4).sqrt()
            hinge = hinge + (1 - deviation).clamp(min=0) / dimensions / 2
            for j, y in enumerate(columns):
                if i != j:
                    redundancy = redundancy + covariance_of(x, y, samples - 1) ** 2 / dimensions
    terms = (agreement, hinge, redundancy)
    loss = similarity * agreement + variance * hinge + covariance * redundancy
    return loss, [term.item() for term in terms]


def slow_barlow(a, b, redundancy):
    """Returns the loss and its two terms."""
    samples = len(a)
    on_diagonal = off_diagonal = a.new_zeros(())
    for i, x in enumerate(a.T.unbind()):
        for j, y in enumerate(b.T.unbind()):
            spread_x = (covariance_of(x, x, samples) + 1e-5).sqrt()
            spread_y = (covariance_of(y, y, samples) + 1e-5).sqrt()
            correlation = covariance_of(x, y, samples) / (spread_x * spread_y)
            if i == j:
                on_diagonal = on_diagonal + (1 - correlation) ** 2
            else:
                off_diagonal = off_diagonal + correlation**2
    return on_diagonal + redundancy * off_diagonal, [on_diagonal.item(), off_diagonal.item()]


def assert_same(ours, theirs, *leaves, tolerance=1e-10):
    """The values agree, and so do the gradients of a weighted sum in every leaf."""
    weights = torch.linspace(0.5, 1.5, ours.numel(), dtype=torch.float64).view(ours.shape)
    got = [ours.detach(), *torch.autograd.grad((ours * weights).sum(), leaves)]
    want = [theirs.detach(), *torch.autograd.grad((theirs * weights).sum(), leaves)]
    for mine, right in zip(got, want, strict=True):
        assert mine.shape == right.shape
        assert mine.dtype == torch.float64
        assert (mine - right).abs().max() <= tolerance * max(1, right.abs().max())


def assert_half_is_near(loss_of, dtype, *inputs):
    """Half-precision inputs under autocast: the mean loss and its gradient in the first input within 2 %.

    Single-precision inputs notice nothing of autocast at all.
    """
    exact_leaf = inputs[0].detach().requires_grad_()
    exact = loss_of(exact_leaf, *inputs[1:]).mean()
    (exact_gradient,) = torch.autograd.grad(exact, exact_leaf)
    halves = [x.detach().to(dtype) if x.is_floating_point() else x for x in inputs]
    leaf = halves[0].requires_grad_()
    with torch.autocast("cpu", dtype):
        rough = loss_of(leaf, *halves[1:]).mean()
    (gradient,) = torch.autograd.grad(rough * 1024, leaf)  # as a gradient scaler would, lest fp16 underflow
    assert rough.dtype == torch.float32
    assert gradient.isfinite().all()
    assert abs(rough.item() / exact.item() - 1) < 0.02
    assert (gradient.double() / 1024 - exact_gradient).norm() / exact_gradient.norm() < 0.02
    singles = [x.detach().float() if x.is_floating_point() else x for x in inputs]
    with torch.autocast("cpu", dtype):
        under_autocast = loss_of(*singles)
    assert under_autocast.equal(loss_of(*singles))
