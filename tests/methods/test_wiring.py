"""How each method wires its parts together, spelt out once more with the slow losses of tests/references.

Every setting differs from its default and from every other, teachers differ from their students and queues
hold vectors from before: a view, a weight or a memory taken for another shows in the loss or its gradient.
"""

import math

import numpy as np
import pytest
import torch
from references import selfsupervised as slow
from references import supervised as slow_labelled
from references.small_methods import SAMPLES, build, draw_batch
from references.varcon import slow_varcon, unit

from varcon.core import Progress
from varcon.layers import Queue
from varcon.methods import METHODS

HELD = 15  # of the 24 places of a queue, so that some are empty and the next batch goes round its end
PACO = {"alpha": 0.3, "beta": 0.7, "gamma": 1.5, "temperature": 0.4}
VARCON = {"weight": 0.6, "varcon_temperature": 0.25, "epsilon": 0.03, "epsilon_rate": 0.01}
SIMILARITY = np.array([[1, 0.5, -0.2], [0.3, 1, 0.1], [0, 0.4, 1]])  # and not the same both ways
SETTINGS = {
    "varcon": {"temperature": 0.3, "epsilon": 0.05, "epsilon_rate": 0.01},
    "supcon": {"temperature": 0.3, "form": "in"},
    "ce": {"label_smoothing": 0.2, "mixup": 0.4},
    "paco": {**PACO, "momentum": 0.9},
    "gpaco": PACO,
    "varcon-paco": {**PACO, **VARCON, "momentum": 0.9},
    "varcon-gpaco": {**PACO, **VARCON},
    "xclr": {"similarity": "classes.npy", "temperature": 0.3, "similarity_temperature": 0.6},
    "simclr": {"temperature": 0.3},
    "moco": {"temperature": 0.3, "momentum": 0.9},
    "byol": {"momentum": 0.9},
    "swav": {"temperature": 0.3, "sharpness": 0.2, "iterations": 5, "queue_from": 0},
    "vicreg": {"similarity": 3.0, "variance": 2.0, "covariance": 0.5},
    "barlow": {"redundancy": 0.1, "scale": 0.5},
}


def units(vectors):
    return torch.stack([unit(vector) for vector in vectors])


def student(method, view):
    return method.head(method.encoder(view))


def teacher(method, view):
    with torch.no_grad():
        return method.teacher.network(view)


def oracle_varcon(method, views, labels):
    embeddings = torch.cat([student(method, view) for view in views])
    return slow_varcon(embeddings, labels.repeat(2), method.loss.epsilon, 0.3)[0]


def pairs_of(method, views, labels):
    z = units(torch.cat([student(method, view) for view in views]))
    return z, labels.repeat(2), z, labels.repeat(2), torch.arange(len(z))


def oracle_supcon(method, views, labels):
    return slow_labelled.slow_supcon(*pairs_of(method, views, labels), 0.3, "in").mean()


def oracle_xclr(method, views, labels):
    pairs = pairs_of(method, views, labels)
    return slow_labelled.slow_xclr(*pairs, torch.tensor(SIMILARITY).float().double(), 0.3, 0.6).mean()


def oracle_ce(method, views, labels):
    kept = float(method.share)
    images, labels = torch.cat(views), labels.repeat(2)
    logits, targets = [], []
    for row in range(len(images)):
        partner = row + 1 if row % 2 == 0 else row - 1
        blended = kept * images[row] + (1 - kept) * images[partner]
        logits.append(method.classifier(method.encoder(blended[None]))[0])
        target = torch.zeros(3, dtype=torch.float64)
        target[labels[row]] += kept
        target[labels[partner]] += 1 - kept
        targets.append(target)
    return slow_labelled.slow_cross_entropy(torch.stack(logits), torch.stack(targets), 0.2).mean()


def centres_and_queue(method, features, queries, labels, contrast, contrast_labels):
    memory, memory_labels = method.queue.vectors[:HELD].clone(), method.queue.labels[:HELD]
    contrast, contrast_labels = torch.cat([contrast, memory]), torch.cat([contrast_labels, memory_labels])
    itself, usable = torch.arange(len(queries)), torch.ones(len(contrast), dtype=torch.bool)
    return slow_labelled.slow_paco(
        features @ method.classifier.weight.T + method.classifier.bias,
        labels,
        queries,
        contrast,
        contrast_labels,
        usable,
        itself,
        temperature=0.4,
        alpha=0.3,
        beta=0.7,
        gamma=1.5,
    ).mean()


def oracle_gpaco(method, views, labels):
    z = units(student(method, torch.cat(views)))
    labels = labels.repeat(2)
    return centres_and_queue(method, method.encoder(torch.cat(views)), z, labels, z, labels)


def oracle_paco(method, views, labels):
    queries, keys = units(student(method, views[0])), units(teacher(method, views[1]))
    contrast, twice = torch.cat([queries, keys]), labels.repeat(2)
    return centres_and_queue(method, method.encoder(views[0]), queries, labels, contrast, twice)


def oracle_varcon_gpaco(method, views, labels):
    both = slow_varcon(student(method, torch.cat(views)), labels.repeat(2), method.loss.epsilon, 0.25)[0]
    return oracle_gpaco(method, views, labels) + 0.6 * both


def oracle_varcon_paco(method, views, labels):
    queries = slow_varcon(student(method, views[0]), labels, method.loss.epsilon, 0.25)[0]
    return oracle_paco(method, views, labels) + 0.6 * queries


def oracle_simclr(method, views, labels):
    z = units(torch.cat([student(method, view) for view in views]))
    other_view = torch.tensor([*range(SAMPLES, 2 * SAMPLES), *range(SAMPLES)])
    return slow.slow_nt_xent(z, z, torch.arange(len(z)), other_view, 0.3).mean()


def oracle_moco(method, views, labels):
    queries, keys = units(student(method, views[0])), units(teacher(method, views[1]))
    memory = method.queue.vectors[:HELD].clone()
    return slow.slow_info_nce(queries, keys, memory, torch.ones(HELD, dtype=torch.bool), 0.3).mean()


def oracle_byol(method, views, labels):
    predicted = [method.predictor(method.student[1](method.encoder(view))) for view in views]
    wanted = [teacher(method, view) for view in views]
    there = slow.slow_regression(predicted[0], wanted[1])
    back = slow.slow_regression(predicted[1], wanted[0])
    return (there + back).mean()


def oracle_swav(method, views, labels):
    prototypes = method.prototypes.weight
    scores = [units(student(method, view)) @ prototypes.T for view in views]
    losses = []
    for full in (0, 1):
        memory = method.queues[full].vectors.clone() @ prototypes.T
        together = torch.cat([scores[full], memory]).detach()
        assigned = slow.slow_sinkhorn(together, 0.2, 5)[:SAMPLES]
        for other in range(len(views)):
            if other != full:
                losses.append(slow.slow_swapped(scores[other], assigned, 0.3).mean())
    assert len(losses) == 6
    return sum(losses) / 6


def oracle_vicreg(method, views, labels):
    return slow.slow_vicreg(student(method, views[0]), student(method, views[1]), 3.0, 2.0, 0.5)[0]


def oracle_barlow(method, views, labels):
    return 0.5 * slow.slow_barlow(student(method, views[0]), student(method, views[1]), 0.1)[0]


ORACLES = {
    "varcon": oracle_varcon,
    "supcon": oracle_supcon,
    "ce": oracle_ce,
    "paco": oracle_paco,
    "gpaco": oracle_gpaco,
    "varcon-paco": oracle_varcon_paco,
    "varcon-gpaco": oracle_varcon_gpaco,
    "xclr": oracle_xclr,
    "simclr": oracle_simclr,
    "moco": oracle_moco,
    "byol": oracle_byol,
    "swav": oracle_swav,
    "vicreg": oracle_vicreg,
    "barlow": oracle_barlow,
}


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    np.save(tmp_path / "classes.npy", SIMILARITY)
    monkeypatch.chdir(tmp_path)
    return prepared


def prepared(name):
    """The method in the middle of its training, and a batch."""
    method = build(name, **SETTINGS[name]).double()
    method.meet_classes(["a", "b", "c"])
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for queue in method.modules():
        if isinstance(queue, Queue):
            held = len(queue.labels) if name == "swav" else HELD  # SwAV's joins only when full
            queue.push(units(draw(held, 8)), torch.randint(3, (held,), generator=generator))
    if hasattr(method, "teacher"):
        with torch.no_grad():
            for parameter in method.teacher.parameters():
                parameter.add_(0.1 * draw(*parameter.shape))
    method.before_step(Progress(30, 40, 5))
    batch = draw_batch(0)
    if name == "swav":
        batch.views += [view[..., :2, :2] for view in draw_batch(1).views]
    return method, batch


def test_every_method_is_here():
    assert SETTINGS.keys() == ORACLES.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradient(name, prepare):
    method, batch = prepare(name)
    weights = {key: value for key, value in method.named_parameters() if value.requires_grad}
    options = {"allow_unused": True, "materialize_grads": True}
    expected = ORACLES[name](method, batch.views, batch.labels)
    expected_gradients = torch.autograd.grad(expected, list(weights.values()), **options)
    loss = method(batch).loss
    gradients = torch.autograd.grad(loss, list(weights.values()), **options)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)
    for key, ours, theirs in zip(weights, gradients, expected_gradients, strict=True):
        assert (ours - theirs).abs().max() < 1e-6 * max(1, theirs.abs().max()), key


def test_varcon_with_a_classifier_and_a_normed_head():
    """The cross-entropy of the features beside the loss of their projections."""
    settings = {**SETTINGS["varcon"], "classifier_weight": 0.7, "head": "normed"}
    method, batch = build("varcon", **settings).double(), draw_batch(0)
    assert [type(layer).__name__ for layer in method.head] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    features = method.encoder(torch.cat(batch.views))
    labels = batch.labels.repeat(2)
    varcon = slow_varcon(method.head(features), labels, method.loss.epsilon, 0.3)[0]
    logits = method.classifier(features)
    cross_entropy = torch.stack(
        [row.logsumexp(0) - row[label] for row, label in zip(logits, labels, strict=True)]
    )
    expected = varcon + 0.7 * cross_entropy.mean()
    weights = list(method.parameters())
    output = method(batch)
    torch.testing.assert_close(output.loss, expected, rtol=1e-5, atol=1e-6)
    assert output.metrics["cross_entropy"].item() == pytest.approx(cross_entropy.mean().item(), rel=1e-5)
    ours, theirs = (torch.autograd.grad(loss, weights) for loss in (output.loss, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 1e-5 * max(1, other.abs().max())


@pytest.mark.parametrize("name", ["paco", "gpaco", "varcon-paco", "varcon-gpaco", "moco", "swav"])
def test_what_the_queue_remembers(name, prepare):
    """Keys by the teacher where there is one, otherwise the last view; SwAV keeps each view apart."""
    method, batch = prepare(name)
    if name == "swav":
        remembered = [units(student(method, view)) for view in batch.views[:2]]
        queues = list(method.queues)
    else:
        both = torch.cat(batch.views)
        remembered = [
            units(teacher(method, batch.views[1]))
            if hasattr(method, "teacher")
            else units(student(method, both))[SAMPLES:]
        ]
        queues = [method.queue]
    before = [queue.vectors.clone() for queue in queues]
    pushed = int(queues[0].pushed)
    method(batch)
    for queue, old, vectors in zip(queues, before, remembered, strict=True):
        places = (pushed + torch.arange(SAMPLES)) % 24
        torch.testing.assert_close(queue.vectors[places], vectors.detach())
        others = torch.ones(24, dtype=torch.bool).index_fill(0, places, False)
        assert torch.equal(queue.vectors[others], old[others])
        if name != "swav":  # which has no labels
            assert torch.equal(queue.labels[places], batch.labels)
    held = [queue.vectors.clone() for queue in queues]
    method.eval()(batch)  # judging remembers nothing
    assert all(torch.equal(queue.vectors, old) for queue, old in zip(queues, held, strict=True))


@pytest.mark.parametrize("name", ["moco", "byol", "paco", "varcon-paco"])
def test_how_far_a_teacher_follows(name, prepare):
    """Three quarters through its training; of the four BYOL's momentum alone has risen by then."""
    method, _ = prepare(name)
    momentum = 1 - 0.1 * (math.cos(0.75 * math.pi) + 1) / 2 if name == "byol" else 0.9
    before = [parameter.clone() for parameter in method.teacher.parameters()]
    method.after_step()
    followed = zip(method.teacher.parameters(), before, method.student.parameters(), strict=True)
    for now, old, theirs in followed:
        torch.testing.assert_close(now, momentum * old + (1 - momentum) * theirs, rtol=1e-6, atol=1e-7)
        assert (now - old).abs().max() > 0


@pytest.mark.parametrize("name", ["varcon", "varcon-paco", "varcon-gpaco"])
def test_epsilon_learns_at_its_own_rate_within_its_range(name, prepare):
    method, _ = prepare(name)
    scales = {key: method.learning_rate_scale(key) for key, _ in method.named_parameters()}
    assert scales.pop("loss.epsilon") == 0.01
    assert set(scales.values()) == {1.0}
    method.loss.epsilon.data.fill_(0.3)
    method.after_step()
    assert method.loss.epsilon.item() == pytest.approx(0.08)
