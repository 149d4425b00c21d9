import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from references.selfsupervised import assert_half_is_near, assert_same, slow_sinkhorn, slow_swapped
from torch._subclasses.fake_tensor import FakeTensorMode

from varcon.losses.swav import sinkhorn, swapped


def draw(samples, prototypes, generator):
    """Scores between -1 and 1, as products of unit vectors are."""
    scores = 2 * torch.rand(samples, prototypes, dtype=torch.float64, generator=generator) - 1
    return scores.requires_grad_()


def together(parts, *arguments):
    """Each part's assignments, from threads that stand for processes and add what they hand to `total`."""
    barrier = threading.Barrier(len(parts), timeout=20)
    handed = [torch.empty(0)] * len(parts)

    def one(rank):
        def total(tensor):
            handed[rank] = tensor
            barrier.wait()
            added = torch.stack(handed).sum(0)
            barrier.wait()  # before anyone hands in the next
            return added

        return sinkhorn(parts[rank], *arguments, total)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(one, range(len(parts))))


@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("sharpness", [0.05, 0.5])
@pytest.mark.parametrize(("samples", "prototypes"), [(2, 2), (2, 5), (9, 4), (1, 3), (16, 16)])
def test_sinkhorn_equals_the_definition(samples, prototypes, sharpness, iterations, generator):
    scores = draw(samples, prototypes, generator)
    expected = slow_sinkhorn(scores, sharpness, iterations)
    got = sinkhorn(scores, sharpness, iterations)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.sum(1), torch.ones(samples).double(), rtol=0, atol=1e-12)


def test_samples_are_shared_out_evenly(generator):
    assignments = sinkhorn(draw(24, 8, generator), 0.1, 2000)
    torch.testing.assert_close(assignments.sum(1), torch.ones(24).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(assignments.sum(0), torch.full((8,), 3.0).double(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("sizes", [[6, 6], [1, 11], [3, 4, 5]])
def test_processes_together_assign_as_one(sizes, generator):
    scores = draw(12, 5, generator)
    parts = together(scores.split(sizes), 0.05, 3)
    assert [len(part) for part in parts] == sizes
    torch.testing.assert_close(torch.cat(parts), slow_sinkhorn(scores, 0.05, 3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nothing_overflows(dtype, generator):
    """At 0.01 the logarithms reach ±100, beyond single precision's exponent, and one process has all +1."""
    signs = draw(8, 6, generator).sign().to(dtype).detach()
    signs[:4], signs[4:, ::2] = 1, -1
    expected = slow_sinkhorn(signs, 0.01, 3)
    for got in (sinkhorn(signs, 0.01, 3), torch.cat(together(signs.split([4, 4]), 0.01, 3))):
        assert got.isfinite().all()
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-5)
    huge = sinkhorn(1e4 * signs, 0.01, 3)
    assert huge.isfinite().all()
    torch.testing.assert_close(huge.sum(1), torch.ones_like(huge[:, 0]))


def test_assignments_are_constants(generator):
    scores, other = draw(6, 4, generator), draw(6, 4, generator)
    assert not sinkhorn(scores, 0.05, 3).requires_grad
    assignments = other.softmax(1)
    swapped(scores, assignments, 0.1).sum().backward()
    assert scores.grad.abs().max() > 0
    assert other.grad is None


@pytest.mark.parametrize(("samples", "prototypes"), [(2, 2), (1, 3), (9, 4)])
def test_swapped_equals_the_definition(samples, prototypes, generator):
    scores = draw(samples, prototypes, generator)
    assignments = sinkhorn(draw(samples, prototypes, generator), 0.05, 3)
    assert_same(swapped(scores, assignments, 0.1), slow_swapped(scores, assignments, 0.1), scores)


def test_swapped_is_least_at_the_assignments_themselves(generator):
    assignments = draw(5, 4, generator).softmax(1).detach()
    scores = (0.1 * assignments.log()).requires_grad_()
    loss = swapped(scores, assignments, 0.1)
    entropy = -(assignments * assignments.log()).sum(1)
    torch.testing.assert_close(loss, entropy, rtol=0, atol=1e-13)
    assert torch.autograd.grad(loss.sum(), scores)[0].abs().max() < 1e-13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float64(dtype, generator):
    scores, other = 0.3 * draw(128, 32, generator), 0.3 * draw(128, 32, generator)
    assert_half_is_near(lambda s, t: swapped(s, sinkhorn(t, 0.05, 3), 0.1), dtype, scores, other)


def test_no_value_is_looked_at():
    with FakeTensorMode():
        scores = torch.randn(8, 4, requires_grad=True)
        loss = swapped(scores, sinkhorn(scores, 0.05, 3), 0.1)
        loss.sum().backward()
        assert loss.shape == (8,)
        assert scores.grad.shape == (8, 4)
