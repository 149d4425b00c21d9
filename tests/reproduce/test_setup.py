from dataclasses import replace
from pathlib import Path

import pytest

from varcon import InputError
from varcon.methods import METHODS
from varcon.recipe import differences, load_recipe, recipe_to_dict
from varcon.reproduce.scales import SCALES
from varcon.reproduce.setup import Runs, parse_data, set_up

RECIPES = Path(__file__).parents[2] / "recipes"


def ignore(done, total, what): ...


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return set_up("smoke", "", tmp_path_factory.mktemp("out"), ignore)[0]


def of_scale(smoke, name, data):
    """A set-up of another scale, without its data."""
    scale = SCALES[name]
    return replace(smoke, scale=scale, base=replace(scale.base, data=data), side=32)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "xclr"])
def test_smoke_trains_as_the_recipes_of_the_digits_do(smoke, method):
    recipe, stored = smoke.recipe(Runs(method)), load_recipe(RECIPES / f"digits/{method}.toml")
    found = differences(recipe_to_dict(recipe), recipe_to_dict(stored))
    assert {name for name in found if not name.startswith("evaluate")} - {"train.snapshots"} == {
        "train.epochs"
    }
    assert recipe.train.epochs * 40 == stored.train.epochs * 12


@pytest.mark.parametrize("method", [name for name in METHODS if name != "xclr"])
def test_small_trains_as_the_recipes_of_cifar100_do(smoke, method):
    file = "varcon_r18" if method == "varcon" else method
    stored = load_recipe(RECIPES / f"cifar100/{file}.toml")
    recipe = of_scale(smoke, "small", stored.data).recipe(Runs(method))
    found = differences(recipe_to_dict(recipe), recipe_to_dict(stored))
    # The recipes' own batch is larger than the digits that this set-up counts.
    assert {name for name in found if not name.startswith("evaluate")} <= {
        "train.batch_size",
        "train.snapshots",
    }


def test_paper_trains_as_the_paper_s_recipe(smoke):
    stored = load_recipe(RECIPES / "cifar100/varcon.toml")
    recipe = of_scale(smoke, "paper", stored.data).recipe(Runs("varcon"))
    found = differences(recipe_to_dict(recipe), recipe_to_dict(stored))
    assert {name for name in found if not name.startswith("evaluate")} == {"train.snapshots"}
    assert recipe.train.snapshots == (50, 100, 150)  # and 200, which is the encoder


def test_a_folder_s_batch_fits_one_gpu_and_the_rate_follows_it(imagenet):
    """The paper's GPUs hold 512 images each; the rate is given for 256."""
    train = imagenet.recipe(Runs("varcon")).train
    assert (train.batch_size, train.learning_rate, train.epochs) == (512, 0.4, 350)


def test_a_folder_trains_as_the_recipe_of_imagenet_does(imagenet):
    stored = recipe_to_dict(load_recipe(RECIPES / "imagenet/varcon.toml"))
    found = differences(recipe_to_dict(imagenet.recipe(Runs("varcon"))), stored)
    settings = {name for name in found if not name.startswith("evaluate")}
    assert settings == {"data.path", "train.batch_size"}  # which is that of 8 GPUs in the recipe


@pytest.mark.parametrize("method", ["paco", "gpaco", "varcon-paco", "varcon-gpaco"])
def test_paco_trains_on_a_folder_as_its_authors_on_imagenet(imagenet, method):
    """By the published table: alpha 0.05, tau 0.2, a queue of 8192, SGD of 0.04 for 256 images, 1e-4."""
    recipe = imagenet.recipe(Runs(method))
    own, train = recipe.method, recipe.train
    assert (own.alpha, own.temperature, own.queue) == (0.05, 0.2, 8192)
    assert (train.optimizer, train.learning_rate, train.weight_decay) == ("sgd", 0.04, 1e-4)


def test_cross_entropy_on_a_folder_crops_and_flips_and_no_more(imagenet):
    recipe = imagenet.recipe(Runs("ce"))
    augment, train = recipe.augment, recipe.train
    assert (augment.policy, augment.views, augment.crop_area, augment.flip) == ("sim", 1, (0.08, 1.0), 0.5)
    assert (augment.jitter_probability, augment.grey, augment.blur) == (0, 0, 0)
    assert (train.optimizer, train.learning_rate, train.weight_decay) == ("sgd", 0.1, 1e-4)


def test_other_methods_on_a_folder_have_their_published_sizes(imagenet):
    found = {name: imagenet.recipe(Runs(name)) for name in ("moco", "barlow", "vicreg", "supcon")}
    assert found["moco"].method.queue == 65536
    assert found["barlow"].method.dimensions == found["vicreg"].method.dimensions == 8192
    assert {recipe.train.optimizer for recipe in found.values()} == {"lars"}


def test_equal_runs_have_one_label_and_others_another(smoke):
    plain = smoke.label(Runs("varcon"))
    assert plain == "varcon"
    assert smoke.label(Runs("varcon", {"method.temperature": 0.1})) == plain
    assert smoke.label(Runs("varcon", {"train.epochs": 12, "train.batch_size": 128})) == plain
    assert smoke.label(Runs("varcon", {"method.temperature": 0.07})) == "varcon, temperature 0.07"
    assert smoke.label(Runs("ce", {"train.epochs": 24})) == "ce"  # one view, and so twice the epochs
    assert smoke.label(Runs("varcon", half=True)) == "varcon, half the classes"
    fixed = {"method.epsilon": 0.02, "method.learn_epsilon": False}
    assert smoke.label(Runs("varcon", fixed)) == "varcon, learn_epsilon False"


def test_few_images_are_drawn_anew_for_each_seed(smoke):
    few = Runs("supcon", {"data.per_class": 10})
    assert smoke.label(few) == "supcon, per_class 10, batch_size 100"
    first, second = (recipe_to_dict(smoke.recipe(few, seed)) for seed in (0, 7))
    assert differences(first, second) == {"data.per_class_seed": (0, 7), "train.seed": (0, 7)}


def test_all_images_of_a_class_are_not_a_part(smoke):
    even = replace(smoke, counts=(20,) * 10)
    assert even.label(Runs("supcon", {"data.per_class": 20})) == "supcon"
    assert even.recipe(Runs("supcon", {"data.per_class": 20}), 3) == even.recipe(Runs("supcon"), 3)


def test_seeds_differ_in_nothing_else(smoke):
    first, second = (recipe_to_dict(smoke.recipe(Runs("byol"), seed)) for seed in (0, 7))
    assert differences(first, second) == {"train.seed": (0, 7)}


def test_data_show_what_they_are(tmp_path):
    for folder in (
        "mine/train",
        "mine/val",
        "theirs/Training",
        "theirs/Testing",
        "cifar/cifar-100-python",
        "other",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "few.npz").write_bytes(b"")
    found = {name: parse_data(str(tmp_path / name)).name for name in ("mine", "theirs", "cifar", "few.npz")}
    assert found == {"mine": "folder", "theirs": "folder", "cifar": "cifar100", "few.npz": "npz"}
    assert parse_data("cifar10=somewhere") == replace(SCALES["small"].data, name="cifar10", path="somewhere")
    assert parse_data("digits").name == "digits"
    for text, words in (
        (str(tmp_path / "other"), "neither an .npz file"),
        (str(tmp_path / "nowhere"), "no such file or folder"),
        ("cifar=x", "there is no kind of data 'cifar'; did you mean 'cifar10"),
    ):
        with pytest.raises(InputError, match=words):
            parse_data(text)
