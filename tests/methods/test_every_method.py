"""What holds for every method, whatever its loss."""

import pytest
import torch
import torch.multiprocessing as mp
from references.small_methods import build, draw_batch, train, worker

from varcon.core import InputError, Progress
from varcon.methods import METHODS


def test_two_processes_equal_one(tmp_path):
    """Four steps on halves of a batch: each step's gradient, and all state at the end, memory included.

    No method is left out. Encoders and heads go without BatchNorm, whose statistics are those of each
    process's own half; with it no method could agree.
    """
    mp.start_processes(worker, (str(tmp_path),), nprocs=2, start_method="spawn")
    for name in METHODS:
        gradients, state = train(name, rank=0, divided=False)
        for rank in (0, 1):
            their_gradients, their_state = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            for ours, theirs in zip(gradients, their_gradients, strict=True):
                for parameter, value in ours.items():
                    assert (theirs[parameter] - value).abs().max() < 1e-6, (name, rank, parameter)
            for key, value in state.items():
                assert (their_state[key].double() - value.double()).abs().max() < 1e-6, (name, rank, key)


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_and_its_state_comes_back(name):
    method = build(name).float()
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    weights = [p for p in method.encoder.parameters() if p.ndim > 1]  # a norm after it may undo a bias
    before = [parameter.detach().clone() for parameter in weights]
    batch = draw_batch(0)
    batch.views = [view.float() for view in batch.views]
    for step in range(30):
        method.before_step(Progress(step, 30, 5))
        output = method(batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(Progress(step + 1, 30, 5))
        assert output.loss.isfinite()
        assert not any(value.requires_grad for value in output.metrics.values())
    assert all((now != old).any() for now, old in zip(weights, before, strict=True))
    copy = build(name).float()
    copy.load_state_dict(method.state_dict())
    for one in (method, copy):
        one.eval()
        one.before_step(Progress(30, 60, 5))
    assert torch.equal(method(batch).loss, copy(batch).loss)


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
