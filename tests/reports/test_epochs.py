import math

import numpy as np
import pytest

from varcon.core import InputError
from varcon.reports.epochs import convergence, epoch_means


def rows(losses, steps_per_epoch=15):
    """Written as the loop does, every 10 steps and at the end of an epoch, of one loss per step."""
    found, since = [], 0
    for step in range(1, len(losses) + 1):
        if step % 10 == 0 or step % steps_per_epoch == 0:
            loss = float(np.mean(losses[since:step]))
            terms = {"loss": loss, "kl": 0.75 * loss, "nll": 0.25 * loss, "tau2": 0.1, "epsilon": 0.02}
            found.append({"step": step, "epoch": round(step / steps_per_epoch, 4), **terms, "seconds": 1.0})
            since = step
    return found


def test_epochs_are_means_over_their_steps():
    losses = np.random.default_rng(0).random(60) + np.linspace(5, 1, 60)
    epochs, terms = epoch_means(rows(losses))
    assert epochs.tolist() == [1, 2, 3, 4]
    # The row of step 20 tells of steps 16 to 20, since step 15 ended the first epoch with a row of its own.
    np.testing.assert_allclose(terms["loss"], losses.reshape(4, 15).mean(1))
    np.testing.assert_allclose(terms["kl"] + terms["nll"], terms["loss"])
    np.testing.assert_allclose(terms["epsilon"], 0.02)


def test_convergence_of_curves_known_in_closed_form():
    epochs = np.arange(1, 102)
    straight = convergence(epochs, np.linspace(7, 2, 101))
    assert straight == pytest.approx({"epoch_at_90": 91, "epoch_at_95": 96, "epoch_at_99": 100, "area": 0.5})
    decay = convergence(epochs, 3 + np.exp(-np.arange(101) / 5))
    assert decay["epoch_at_90"] == 1 + math.ceil(5 * math.log(10))
    assert decay["epoch_at_99"] == 1 + math.ceil(5 * math.log(100))
    assert decay["area"] == pytest.approx(0.05, rel=0.01)  # the integral, 5 of 100 epochs
    assert convergence(epochs, 10 * (3 + np.exp(-np.arange(101) / 5))) == pytest.approx(decay)


def test_what_has_not_fallen_has_no_convergence():
    assert convergence(np.array([1]), np.array([2.0])) == {}
    assert convergence(np.array([1, 2]), np.array([2.0, 2.0])) == {}
    assert convergence(np.array([1, 2]), np.array([2.0, 3.0])) == {}


def test_other_methods_have_their_loss_alone():
    short = [{"step": 10, "epoch": 0.5, "loss": 2.0}, {"step": 20, "epoch": 1.0, "loss": 1.0}]
    epochs, terms = epoch_means(short)
    assert (epochs.tolist(), terms) == ([1], {"loss": pytest.approx([1.5])})
    for nothing in ([], [{"step": 1}]):
        with pytest.raises(InputError, match="train the run first"):
            epoch_means(nothing)
