import pytest
import torch
from references.selfsupervised import assert_half_is_near, assert_same, slow_regression
from torch._subclasses.fake_tensor import FakeTensorMode

from varcon.losses.byol import regression


def draw(samples, dimensions, generator):
    return torch.randn(samples, dimensions, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize(("samples", "dimensions"), [(1, 2), (2, 4), (7, 3), (16, 8)])
def test_equals_the_definition(samples, dimensions, generator):
    predictions, targets = draw(samples, dimensions, generator), draw(samples, dimensions, generator)
    assert_same(regression(predictions, targets), slow_regression(predictions, targets), predictions)


def test_is_0_for_equal_4_for_opposite_and_2_for_orthogonal_directions(generator):
    z = draw(6, 5, generator)
    assert regression(z, z).tolist() == [0] * 6
    torch.testing.assert_close(regression(z, 3 * z), torch.zeros(6).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(regression(z, -2 * z), torch.full((6,), 4.0).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(regression(torch.eye(3), torch.eye(3).roll(1, 0)), torch.full((3,), 2.0))


def test_targets_are_constants(generator):
    predictions, targets = draw(6, 5, generator), draw(6, 5, generator)
    regression(predictions, targets).sum().backward()
    assert predictions.grad.abs().max() > 0
    assert targets.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 100.0])
def test_half_precision_stays_near_float64(dtype, scale, generator):
    predictions, targets = draw(128, 64, generator), draw(128, 64, generator)
    assert_half_is_near(regression, dtype, scale * predictions, scale * targets)


def test_zero_vectors_are_finite():
    predictions = torch.zeros(2, 3, requires_grad=True)
    loss = regression(predictions, torch.ones(2, 3))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert predictions.grad.isfinite().all()


def test_no_value_is_looked_at():
    with FakeTensorMode():
        z = torch.randn(8, 4, requires_grad=True)
        loss = regression(z, torch.randn(8, 4))
        loss.sum().backward()
        assert loss.shape == (8,)
        assert z.grad.shape == (8, 4)
