"""What holds for every method, whatever its loss."""

import copy

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from references.small_methods import CASES, build, draw_batch, train, worker

from varcon.core import InputError, Progress
from varcon.layers import Queue
from varcon.losses.swav import sinkhorn
from varcon.methods import METHODS


def test_two_processes_equal_one(tmp_path):
    """Four steps on halves of a batch: each step's gradient, and all state at the end, memory included.

    No method is left out. Encoders and heads go without BatchNorm, whose statistics are those of each
    process's own half; with it no method could agree.
    """
    mp.start_processes(worker, (str(tmp_path),), nprocs=2, start_method="spawn")
    for number, (name, settings) in enumerate(CASES):
        gradients, state = train(name, settings, rank=0, divided=False)
        for rank in (0, 1):
            their_gradients, their_state = torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=True)
            for ours, theirs in zip(gradients, their_gradients, strict=True):
                for parameter, value in ours.items():
                    where = name, settings, rank, parameter
                    assert (theirs[parameter] - value).abs().max() < 1e-6, where
            for key, value in state.items():
                where = name, settings, rank, key
                assert (their_state[key].double() - value.double()).abs().max() < 1e-6, where
        if settings.get("loss") == "adafocal":
            assert (state["gammas"] != 1).any()


def remember_batches(method):
    """Fills the queues with other batches, as they are in the midst of training, and gives their state."""
    for step in (1, 2):
        batch = draw_batch(step)
        batch.views = [view.float() for view in batch.views]
        method(batch)
    queues = [module for module in method.modules() if isinstance(module, Queue)]
    return {queue: copy.deepcopy(queue.state_dict()) for queue in queues}


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_and_its_state_comes_back(name):
    method = build(name).float()
    memory = remember_batches(method)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    weights = [p for p in method.encoder.parameters() if p.ndim > 1]  # a norm after it may undo a bias
    before = [parameter.detach().clone() for parameter in weights]
    batch = draw_batch(0)
    batch.views = [view.float() for view in batch.views]
    losses = []
    for step in range(30):
        method.before_step(Progress(step, 30, 5))
        output = method(batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
        losses.append(output.loss.item())
        assert not any(value.requires_grad for value in output.metrics.values())
        for queue, state in memory.items():
            queue.load_state_dict(state)  # or the loss would rise with what it is compared to
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.99 * losses[0]
    assert all((now != old).any() for now, old in zip(weights, before, strict=True))
    again = build(name).float()
    again.load_state_dict(method.state_dict())
    for one in (method, again):
        one.eval()
        one.before_step(Progress(30, 60, 5))
    assert torch.equal(method(batch).loss, again(batch).loss)


@pytest.mark.parametrize("name", METHODS)
def test_classifiers_are_linear_on_the_features(name):
    method = build(name)
    has_one = name in ("ce", "paco", "gpaco", "varcon-paco", "varcon-gpaco")
    assert (method.classifier is not None) == has_one
    if has_one:
        assert (method.classifier.in_features, method.classifier.out_features) == (10, 3)


@pytest.mark.parametrize("name", ["moco", "paco", "gpaco"])
def test_a_queue_smaller_than_a_batch(name):
    method = build(name, queue=5)
    batch = draw_batch(0)
    batch.views = [view.float() for view in batch.views]
    with pytest.raises(InputError, match="queue of 5 is smaller than a batch of 12"):
        method(batch)


def test_swav_freezes_its_prototypes_for_the_first_epoch():
    method = build("swav", frozen_epochs=1).float()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    batch = draw_batch(0)
    batch.views = [view.float() for view in batch.views]
    start = method.prototypes.weight.detach().clone()
    for step in range(8):  # four steps an epoch
        method.before_step(Progress(step, 8, 4))
        method(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
        moved = (method.prototypes.weight - start).abs().max()
        assert (moved < 1e-6) == (step < 4), step
        torch.testing.assert_close(method.prototypes.weight.norm(dim=1), torch.ones(6))


def test_swav_assigns_full_views_and_predicts_from_all():
    method = build("swav").float().eval()
    batch = draw_batch(0)
    small = [view[..., :2, :2] for view in draw_batch(1, views=3).views]
    batch.views = [view.float() for view in (*batch.views, *small)]
    scores = [method.prototypes(method.head(method.encoder(view))) for view in batch.views]
    terms = []
    for full in (0, 1):
        target = sinkhorn(scores[full], method.settings.sharpness, method.settings.iterations)
        for view in range(5):
            if view != full:
                terms.append(
                    -(target * (scores[view] / method.settings.temperature).log_softmax(1)).sum(1).mean()
                )
    torch.testing.assert_close(method(batch).loss, torch.stack(terms).mean())


def test_the_queue_takes_part_in_the_assignment(generator):
    method = build("swav", queue=24, queue_from=1).float()
    z = torch.nn.functional.normalize(torch.randn(12, 8, generator=generator), dim=1)
    other = torch.nn.functional.normalize(torch.randn(24, 8, generator=generator), dim=1)
    alone = method.assign(0, z, method.prototypes(z).detach())
    method.queues[0].push(other, torch.zeros(24, dtype=torch.int64))
    method.queue_in_use = True
    scores = method.prototypes(torch.cat([z, other])).detach()
    expected = sinkhorn(scores, method.settings.sharpness, method.settings.iterations)[:12]
    got = method.assign(0, z, method.prototypes(z).detach())
    torch.testing.assert_close(got, expected)
    assert (got - alone).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("queue", "queue_from", "joins"),  # batches of 12, four steps an epoch; the step from which it joins
    [(24, 0, 2), (30, 0, 3), (24, 1, 4), (60, 1, 5), (0, 0, None)],
)
def test_swavs_queue_joins_when_it_is_due_and_full(queue, queue_from, joins):
    """Its unfilled rows are zeros, alike to all prototypes, which would have a share in each of them."""
    method = build("swav", queue=queue, queue_from=queue_from, frozen_epochs=0).float()
    for step in range(8):
        batch = draw_batch(step)
        batch.views = [view.float() for view in batch.views]
        method.before_step(Progress(step, 8, 4))
        assert method.queue_in_use == method.phase == (joins is not None and step >= joins), step
        z = torch.nn.functional.normalize(method.head(method.encoder(batch.views[0])), dim=1).detach()
        others = method.queues[0].vectors.clone() if method.queue_in_use else z[:0]
        scores = method.prototypes(torch.cat([z, others])).detach()
        expected = sinkhorn(scores, method.settings.sharpness, method.settings.iterations)[:12]
        torch.testing.assert_close(method.assign(0, z, method.prototypes(z).detach()), expected)
    resumed = build("swav", queue=queue, queue_from=queue_from)
    resumed.load_state_dict(method.state_dict())
    resumed.before_step(Progress(8, 8, 4))
    assert resumed.queue_in_use == method.queue_in_use


def test_only_the_students_learn():
    """The teachers of MoCo, BYOL and PaCo get no gradient."""
    for name in ("moco", "byol", "paco", "varcon-paco"):
        method = build(name).float()
        batch = draw_batch(0)
        batch.views = [view.float() for view in batch.views]
        method(batch)  # fills the queue: without negatives MoCo has nothing to learn
        method(batch).loss.backward()
        assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in method.student.parameters())
