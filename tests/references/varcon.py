"""The VarCon loss as its definition reads: a loop over samples and classes, gradients by autograd."""

import torch


def unit(vector):
    return vector / vector.norm()


def slow_varcon(embeddings, labels, epsilon, temperature, references="batch", bank=None, classes="present"):
    """Returns the mean loss and, for each sample, (kl, nll, confidence, tau2, target)."""
    z = [unit(row) for row in embeddings]
    labels = labels.tolist()
    members = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    batch = {
        k: unit(torch.stack([z[i].detach() for i in positions]).mean(0)) for k, positions in members.items()
    }
    bank = bank or {}
    known = {
        "ema": {k: bank.get(k, batch.get(k)) for k in {*bank, *batch}},
        "learned": {k: unit(vector) for k, vector in bank.items()},
    }.get(references, batch)
    contrasted = sorted(known if classes == "all" else members)

    losses, terms = [], []
    for i, r in enumerate(labels):
        reference = {k: known[k] for k in contrasted}
        if references == "leave-one-out" and len(members[r]) > 1:
            reference[r] = unit(torch.stack([z[j].detach() for j in members[r] if j != i]).mean(0))
        logits = torch.stack([z[i] @ reference[k] / temperature for k in contrasted])
        log_p = logits.log_softmax(0)
        p = log_p.exp()
        own = contrasted.index(r)
        tau2 = (temperature - epsilon) + 2 * epsilon * p[own]
        onehot = torch.zeros_like(p)
        onehot[own] = 1
        log_q = (onehot / tau2).log_softmax(0)  # e^(1/tau2) for the own class and e^0 for the others
        q = log_q.exp()
        kl = (q * (log_q - log_p)).sum()
        losses.append(kl - log_p[own])
        terms.append(torch.stack([kl, -log_p[own], p[own], tau2, q[own]]).detach())
    return torch.stack(losses).mean(), torch.stack(terms)
