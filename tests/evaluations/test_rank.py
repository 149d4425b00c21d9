import math

import pytest
import torch

from varcon.evaluations.rank import effective_rank, spread


def test_rank_counts_the_dimensions_that_vary(generator):
    """Against the closed form: shares (1/3, 1/3, 1/3) give 3; shares (3/4, 1/4) give e^entropy."""
    axes = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64)).Q
    rows = torch.cat([torch.eye(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)])
    assert effective_rank(rows @ axes[:3] + 5) == pytest.approx(3)
    uneven = torch.tensor([[3.0, 0], [-3, 0], [0, 1], [0, -1]], dtype=torch.float64) @ axes[:2]
    assert effective_rank(uneven) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert effective_rank(torch.randn(4000, 12, generator=generator)) > 11.9


def test_spread_sees_the_collapse_that_rank_does_not(generator):
    noise = torch.randn(500, 16, generator=generator)
    shrunk = 100 + noise  # all but one direction, with the rank of noise
    assert effective_rank(shrunk) > 15
    assert spread(shrunk) < 1e-3
    assert spread(noise) > 0.99
    assert spread(torch.ones(5, 4)) == pytest.approx(0)
    assert spread(torch.zeros(5, 4)) == 0  # of an encoder that is dead
    assert spread(torch.cat([torch.zeros(2, 4), torch.ones(3, 4)])) == pytest.approx(0)


def test_identical_features_have_no_rank_to_speak_of():
    assert effective_rank(torch.ones(5, 4)) == 1
