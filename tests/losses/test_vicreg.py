import pytest
import torch
from references.selfsupervised import assert_half_is_near, assert_same, slow_vicreg
from torch._subclasses.fake_tensor import FakeTensorMode

from varcon.losses.vicreg import vicreg

WEIGHTS = (25, 25, 1)  # the paper's


def draw(samples, dimensions, generator):
    """Deviations on both sides of 1, where the hinge bends."""
    scale = torch.linspace(0.3, 2, dimensions, dtype=torch.float64)
    return (
        scale * torch.randn(samples, dimensions, dtype=torch.float64, generator=generator)
    ).requires_grad_()


@pytest.mark.parametrize("weights", [WEIGHTS, (1, 0, 0), (0, 1, 0), (0, 0, 1), (2.5, 0.3, 7)])
@pytest.mark.parametrize(("samples", "dimensions"), [(2, 3), (5, 4), (9, 2), (4, 1)])
def test_equals_the_definition(samples, dimensions, weights, generator):
    a, b = draw(samples, dimensions, generator), draw(samples, dimensions, generator)
    loss, terms = vicreg(a, b, *weights)
    expected, expected_terms = slow_vicreg(a, b, *weights)
    assert_same(loss, expected, a, b)
    assert list(terms) == ["similarity", "variance", "covariance"]
    torch.testing.assert_close(
        [term.item() for term in terms.values()], expected_terms, rtol=1e-12, atol=1e-12
    )


def test_equal_views_cost_no_similarity(generator):
    a = draw(6, 3, generator)
    assert vicreg(a, a, *WEIGHTS)[1]["similarity"] == 0


def test_wide_uncorrelated_equal_views_cost_nothing():
    a = 2 * torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    assert vicreg(a, a, *WEIGHTS)[0] == 0


def test_collapsed_views_cost_the_variance_term_alone():
    """All embeddings equal: the deviation is the root of 1e-4, a hundredth."""
    a = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    loss, terms = vicreg(a, a, *WEIGHTS)
    torch.testing.assert_close(loss.item(), 25 * 0.99)
    assert terms["covariance"] == 0
    assert torch.autograd.grad(loss, a)[0].isfinite().all()


def test_terms_carry_no_gradient(generator):
    loss, terms = vicreg(draw(6, 3, generator), draw(6, 3, generator), *WEIGHTS)
    assert loss.requires_grad
    assert not any(term.requires_grad for term in terms.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_half_precision_stays_near_float64(dtype, scale, generator):
    a, b = scale * draw(128, 32, generator), scale * draw(128, 32, generator)
    assert_half_is_near(lambda *views: vicreg(*views, *WEIGHTS)[0], dtype, a, b)


def test_no_value_is_looked_at():
    with FakeTensorMode():
        a = torch.randn(8, 4, requires_grad=True)
        loss, _ = vicreg(a, torch.randn(8, 4), *WEIGHTS)
        loss.backward()
        assert loss.shape == ()
        assert a.grad.shape == (8, 4)
