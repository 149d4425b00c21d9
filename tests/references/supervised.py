"""The supervised losses as their definitions read: loops over samples and classes, gradients by autograd."""

import math

import torch


def agree(ours, theirs, leaves, tolerance=1e-10):
    """Asserts equal values and equal gradients of a sum that weighs the samples unequally."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * max(1, theirs.abs().max())
    weights = torch.linspace(0.5, 2, len(ours), dtype=ours.dtype)
    got = torch.autograd.grad(weights @ ours, leaves)
    want = torch.autograd.grad(weights @ theirs, leaves, allow_unused=True, materialize_grads=True)
    for mine, true in zip(got, want, strict=True):
        assert (mine - true).abs().max() <= tolerance * max(1, true.abs().max())


def probabilities(logits):
    exponentials = [math.e**logit for logit in logits]
    return [each / sum(exponentials) for each in exponentials]


def slow_cross_entropy(logits, targets, smoothing):
    """`targets` are labels or rows of probabilities."""
    losses = []
    for row, target in zip(logits, targets, strict=True):
        loss = 0
        for k, p in enumerate(probabilities(row)):
            wanted = target[k] if target.ndim else float(target == k)
            loss = loss - ((1 - smoothing) * wanted + smoothing / len(row)) * p.log()
        losses.append(loss)
    return torch.stack(losses)


def slow_focal(logits, labels, gammas):
    """A negative gamma is the inverse focal loss."""
    losses = []
    for row, label, gamma in zip(logits, labels.tolist(), gammas, strict=True):
        p = probabilities(row)[label]
        losses.append(-((1 - p) ** gamma if gamma >= 0 else (1 + p) ** -gamma) * p.log())
    return torch.stack(losses)


def slow_dual_focal(logits, labels, gamma):
    losses = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        p = probabilities(row)
        below = [other for other in p if other < p[label]]
        losses.append(-((1 - p[label] + max(below, default=0)) ** gamma) * p[label].log())
    return torch.stack(losses)


def slow_gammas(gammas, confidence, correct, edges, rate, limits):
    """Lists in, list out; bin b reaches from edges[b - 1] up to but without edges[b]."""
    borders = [-math.inf, *edges, math.inf]
    following = []
    for b, gamma in enumerate(gammas):
        inside = [i for i, c in enumerate(confidence) if borders[b] <= c < borders[b + 1]]
        if inside:
            mean_confidence = sum(confidence[i] for i in inside) / len(inside)
            accuracy = sum(correct[i] for i in inside) / len(inside)
            error = mean_confidence - accuracy
            was_focal = gamma > 0
            gamma = gamma * math.exp(rate * error) if was_focal else gamma * math.exp(-rate * error)
            if abs(gamma) < 0.2:
                gamma = -0.2 if was_focal else 0.2
            gamma = min(max(gamma, limits[0]), limits[1])
        following.append(gamma)
    return following


def slow_supcon(anchors, labels, contrast, contrast_labels, itself, temperature, form):
    losses = []
    for i, anchor in enumerate(anchors):
        others = [a for a in range(len(contrast)) if a != itself[i]]
        positives = [a for a in others if contrast_labels[a] == labels[i]]
        e = {a: (anchor @ contrast[a] / temperature).exp() for a in others}
        shares = [e[p] / sum(e.values()) for p in positives]
        if not shares:
            losses.append(anchor.sum() * 0)
        elif form == "out":
            losses.append(-sum(share.log() for share in shares) / len(shares))
        else:
            losses.append(-(sum(shares) / len(shares)).log())
    return torch.stack(losses)


def slow_paco(
    centre_logits, labels, queries, contrast, contrast_labels, usable, itself, temperature, alpha, beta, gamma
):
    losses = []
    for i, query in enumerate(queries):
        others = [a for a in range(len(contrast)) if usable[a] and a != itself[i]]
        positives = [a for a in others if contrast_labels[a] == labels[i]]
        e = {a: (query @ contrast[a] / temperature).exp() for a in others}
        d = sum(logit.exp() for logit in centre_logits[i]) + gamma * sum(e.values())
        total = beta * (centre_logits[i, labels[i]].exp() / d).log()
        for p in positives:
            total = total + alpha * (e[p] / d).log()
        losses.append(-total / ((beta + alpha * len(positives)) or 1))
    return torch.stack(losses)


def slow_xclr(
    anchors, labels, contrast, contrast_labels, itself, similarity, temperature, similarity_temperature
):
    losses = []
    for i, anchor in enumerate(anchors):
        others = [a for a in range(len(contrast)) if a != itself[i]]
        p = probabilities([anchor @ contrast[a] / temperature for a in others])
        q = probabilities(
            [similarity[labels[i], contrast_labels[a]] / similarity_temperature for a in others]
        )
        losses.append(anchor.sum() * 0 - sum(wanted * got.log() for wanted, got in zip(q, p, strict=True)))
    return torch.stack(losses)
