"""Self-supervised methods could make all embeddings alike and be done; on real digits none does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from varcon.core import Data
from varcon.data import load
from varcon.engine.loop import fit
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.rank import effective_rank, spread
from varcon.recipe import load_recipe
from varcon.run import build_method

RECIPES = Path(__file__).parents[2] / "recipes/digits"
EPOCHS = 5  # of the recipes' 40


@pytest.fixture(scope="module")
def digits() -> Data:
    return load(load_recipe(RECIPES / "simclr.toml").data)


def train(method, recipe, data, folder):
    """The rows of the journal, and the features of the test images."""
    rows = []
    fit(method, data, recipe, folder, torch.device("cpu"), False, lambda _, row: row and rows.append(row))
    features = FrozenEncoder(method.encoder, data, torch.device("cpu")).features(data.test)
    return rows, features


def brief(name):
    recipe = load_recipe(RECIPES / f"{name}.toml")
    return replace(recipe, train=replace(recipe.train, epochs=EPOCHS, warmup_epochs=1, device="cpu"))


@pytest.mark.parametrize("name", ["simclr", "moco", "byol", "swav"])
def test_features_keep_half_their_dimensions(name, digits, tmp_path):
    recipe = brief(name)
    _, features = train(build_method(recipe, digits), recipe, digits, tmp_path)
    assert effective_rank(features) > features.shape[1] / 2
    assert spread(features) > 0.2


@pytest.mark.parametrize(("name", "term"), [("vicreg", "variance"), ("barlow", "invariance")])
def test_the_papers_own_criterion(name, term, digits, tmp_path):
    """VICReg asks each dimension for a deviation of 1, Barlow Twins for a correlation of 1 with itself.

    Both start from few dimensions and win more as they train; their rank passes half near the end of the
    40 epochs of their recipes, which would take a test too long.
    """
    recipe = brief(name)
    rows, features = train(build_method(recipe, digits), recipe, digits, tmp_path)
    assert rows[-1][term] < 0.9 * rows[0][term]
    assert spread(features) > 0.2


def test_the_measure_has_teeth(digits, tmp_path):
    """BYOL without predictor and with a teacher that is the student itself collapses, and is seen to."""
    recipe = brief("byol")
    recipe = replace(recipe, method=replace(recipe.method, momentum=0.0))
    method = build_method(recipe, digits)
    method.predictor = nn.Identity()
    _, features = train(method, recipe, digits, tmp_path)
    assert spread(method.student[1](features).detach()) < 0.02
