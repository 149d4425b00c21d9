import pytest
import torch
from references.selfsupervised import assert_half_is_near, assert_same, slow_barlow
from torch._subclasses.fake_tensor import FakeTensorMode

from varcon.losses.barlow import barlow

WHITE = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)


def draw(samples, dimensions, generator):
    return torch.randn(samples, dimensions, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("redundancy", [0.0051, 1.0, 0.0])
@pytest.mark.parametrize(("samples", "dimensions"), [(2, 3), (5, 4), (9, 2), (4, 1)])
def test_equals_the_definition(samples, dimensions, redundancy, generator):
    a, b = draw(samples, dimensions, generator), draw(samples, dimensions, generator)
    loss, terms = barlow(a, b, redundancy)
    expected, expected_terms = slow_barlow(a, b, redundancy)
    assert_same(loss, expected, a, b)
    assert list(terms) == ["invariance", "redundancy"]
    torch.testing.assert_close(
        [term.item() for term in terms.values()], expected_terms, rtol=1e-12, atol=1e-12
    )


def test_whitened_equal_views_cost_nothing():
    """But for batch norm's constant, which leaves each correlation 1e-5 short of 1."""
    assert barlow(WHITE, WHITE, 1.0)[0] < 1e-9
    assert barlow(WHITE, 100 * WHITE + 7, 1.0)[0] < 1e-9


def test_opposite_and_exchanged_dimensions():
    loss, terms = barlow(WHITE, -WHITE, 0.5)
    torch.testing.assert_close(loss.item(), 8.0, rtol=1e-4, atol=0)  # two dimensions, each (-1 - 1)²
    assert terms["redundancy"] < 1e-12
    loss, terms = barlow(WHITE, WHITE.flip(1), 0.5)
    torch.testing.assert_close(loss.item(), 2 + 0.5 * 2, rtol=1e-4, atol=0)
    torch.testing.assert_close(terms["invariance"].item(), 2.0)


def test_constant_dimensions_are_finite(generator):
    a = draw(6, 3, generator).detach()
    a[:, 1] = 4
    a.requires_grad_()
    loss, _ = barlow(a, a, 0.01)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, a)[0].isfinite().all()
    assert_same(barlow(a, a, 0.01)[0], slow_barlow(a, a, 0.01)[0], a)


def test_terms_carry_no_gradient(generator):
    loss, terms = barlow(draw(6, 3, generator), draw(6, 3, generator), 0.01)
    assert loss.requires_grad
    assert not any(term.requires_grad for term in terms.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_half_precision_stays_near_float64(dtype, scale, generator):
    a = draw(128, 32, generator)
    b = a.detach() + draw(128, 32, generator)
    assert_half_is_near(lambda *views: barlow(*views, 0.0051)[0], dtype, scale * a, scale * b)


def test_no_value_is_looked_at():
    with FakeTensorMode():
        a = torch.randn(8, 4, requires_grad=True)
        loss, _ = barlow(a, torch.randn(8, 4), 0.01)
        loss.backward()
        assert loss.shape == ()
        assert a.grad.shape == (8, 4)
