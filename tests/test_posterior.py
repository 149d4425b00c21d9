import numpy as np
import pytest
from scipy.optimize import check_grad

from varcon.posterior import fit_posterior, log_loss_and_slope


def test_temperature_and_biases_are_found_again():
    generator = np.random.default_rng(0)
    cosines = generator.uniform(-1, 1, (20000, 3))
    bias = np.array([0.8, -0.2, -0.6])
    labels = (cosines / 0.4 + bias + generator.gumbel(size=cosines.shape)).argmax(axis=1)
    temperature, found = fit_posterior(cosines, labels, least=0.1)
    assert temperature == pytest.approx(0.4, rel=0.05)
    np.testing.assert_allclose(found - found.mean(), bias, atol=0.08)
    assert fit_posterior(cosines, cosines.argmax(axis=1), least=0.1)[0] == pytest.approx(0.1)


def test_the_log_losss_slope():
    generator = np.random.default_rng(0)
    cosines, labels = generator.uniform(-1, 1, (30, 4)), generator.integers(0, 4, 30)
    point = generator.normal(size=5) + 3
    error = check_grad(
        lambda p: log_loss_and_slope(p, cosines, labels)[0],
        lambda p: log_loss_and_slope(p, cosines, labels)[1],
        point,
    )
    assert error < 1e-6
