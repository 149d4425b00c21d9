"""What `check` refuses before anything is written, and what it lets through."""

from dataclasses import replace
from pathlib import Path

import pytest

from varcon import distributed, run
from varcon.core import InputError
from varcon.data import load
from varcon.engine.check import check
from varcon.methods import METHODS
from varcon.recipe import load_recipe
from varcon.run import build_method, train

RECIPES = Path(__file__).parents[2] / "recipes/digits"
TWO_VIEWS = ("paco", "varcon-paco", "simclr", "moco", "byol", "swav", "vicreg", "barlow")


@pytest.fixture(scope="module")
def digits():
    return load(load_recipe(RECIPES / "varcon.toml").data)


def checked(name, data, processes=1, batch_size=128, **augment):
    recipe = load_recipe(RECIPES / f"{name}.toml")
    recipe = replace(
        recipe,
        augment=replace(recipe.augment, **augment),
        train=replace(recipe.train, batch_size=batch_size),
    )
    check(build_method(recipe, data), recipe, data, processes)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("views", [1, 2, 3])
def test_views(name, views, digits):
    if name in TWO_VIEWS and views != 2:
        with pytest.raises(
            InputError, match=rf"augment.views is {views}, but method {name} compares 2 views of an image"
        ):
            checked(name, digits, views=views)
    else:
        checked(name, digits, views=views)


@pytest.mark.parametrize("name", METHODS)
def test_small_views(name, digits):
    if METHODS[name].takes_small_views:
        assert name == "swav"
        checked(name, digits, small_views=2, small_size=8)
    else:
        with pytest.raises(InputError, match=f"augment.small_views is 2, but method {name} takes no small"):
            checked(name, digits, small_views=2, small_size=8)


@pytest.mark.parametrize("name", METHODS)
def test_one_image_has_no_batch_statistics(name, digits):
    with pytest.raises(InputError, match=r"train\.batch_size is 1, .*; raise it to 2 or more"):
        checked(name, digits, batch_size=1)
    with pytest.raises(InputError, match=r"train\.batch_size is 4, .*; raise it to 8 or more"):
        checked(name, digits, processes=4, batch_size=4)
    checked(name, digits, processes=4, batch_size=8)


def test_what_needs_no_data_is_found_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(run, "data_of", lambda *_: pytest.fail("the data are read"))
    recipe = load_recipe(RECIPES / "varcon.toml")
    with pytest.raises(InputError, match=r"train\.batch_size 17 cannot be shared by 2 processes"):
        train(replace(recipe, train=replace(recipe.train, batch_size=17, device="cpu")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_no_folder(tmp_path):
    recipe = load_recipe(RECIPES / "simclr.toml")
    with pytest.raises(InputError, match=r"augment\.views is 1"):
        train(replace(recipe, augment=replace(recipe.augment, views=1)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", METHODS)
def test_one_class_alone(name, digits):
    """What needs no labels learns from it."""
    alone = replace(digits, classes=["0"], train=replace(digits.train, labels=digits.train.labels * 0))
    if METHODS[name].uses_labels:
        with pytest.raises(InputError, match=f"{name} tells classes apart and the data have one alone"):
            checked(name, alone)
    else:
        checked(name, alone)
