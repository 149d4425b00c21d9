import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from varcon import InputError, Recipe, load_recipe
from varcon.augment import AugmentSettings
from varcon.core import Progress
from varcon.data import DataSettings
from varcon.encoders import EncoderSettings
from varcon.evaluations import EvaluateSettings
from varcon.evaluations.knn import KNN
from varcon.methods import METHODS
from varcon.methods.varcon import VarConSettings
from varcon.methods.vicreg import VICRegSettings
from varcon.recipe import DIGITS, TrainSettings, differences, recipe_from_dict, recipe_to_dict

RECIPES = sorted((Path(__file__).parents[1] / "recipes").rglob("*.toml"))


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_recipe_holds_what_differs(tmp_path):
    recipe = load_recipe(
        write(tmp_path, "[method]\ntemperature = 0.2\nepsilon_range = [0, 0.1]\n[train]\nepochs = 7\n")
    )
    assert recipe == replace(
        Recipe(),
        method=VarConSettings(temperature=0.2, epsilon_range=(0.0, 0.1)),
        train=TrainSettings(epochs=7),
    )
    assert isinstance(recipe.method.epsilon_range[0], float)


def test_a_recipe_is_written_alike_by_every_process():
    """Sections in their order, whatever the seed by which Python orders sets."""
    write = (
        "from varcon.recipe import *; from varcon.evaluations import *; "
        "from varcon.evaluations.knn import KNN; from varcon.evaluations.linear import LinearProbe; "
        "print(recipe_to_toml(Recipe(evaluate=EvaluateSettings(KNN(k=3), LinearProbe(epochs=7)))))"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", write],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    (text,) = written
    assert text.index("[evaluate.knn]") < text.index("[evaluate.linear]")


def test_data_that_lie_elsewhere_change_a_recipe_in_nothing_else():
    recipe = Recipe(data=DataSettings("npz", "here.npz"))
    assert recipe.with_data_path(None) is recipe
    moved = recipe.with_data_path(Path("there.npz"))
    assert moved.data.path == "there.npz" and replace(moved, data=recipe.data) == recipe


def test_the_demo_is_the_digits_recipe():
    (path,) = [path for path in RECIPES if (path.parent.name, path.stem) == ("digits", "varcon")]
    assert load_recipe(path) == DIGITS


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nepochs = 7\n", encoding="utf-8-sig")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf[train]")
    assert load_recipe(path) == Recipe(train=TrainSettings(epochs=7))


def test_stating_a_default_changes_nothing(tmp_path):
    assert load_recipe(write(tmp_path, '[augment]\npolicy = "sim"\n')) == load_recipe(write(tmp_path, ""))


def test_json_round_trip(tmp_path):
    recipe = replace(Recipe(), train=TrainSettings(epochs=3, precision="bf16"))
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"recipe": recipe_to_dict(recipe)}))
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[method]\ntemprature = 0.2",
            "method varcon has no setting 'temprature'; did you mean 'temperature'",
        ),
        ("[metod]\nname = 'varcon'", "a recipe has no setting 'metod'; did you mean 'method'"),
        ("[method]\nname = 'varcom'", "there is no method 'varcom'; did you mean 'varcon'"),
        ("[train]\nepochs = 'ten'", r"train.epochs is 'ten'; it must be a whole number"),
        ("[train]\nepochs = 2.5", r"train.epochs is 2.5; it must be a whole number"),
        ("[train]\nepochs = true", r"train.epochs is True; it must be a whole number"),
        ("[train]\nepochs = 0", r"train.epochs is 0; it must be at least 1"),
        (
            "[train]\nepochs = 4\nsnapshots = [0, 4, 5]",
            r"train.snapshots has epoch 5 and train.epochs is 4; choose epochs from 0, .* to 4",
        ),
        ("[train]\nsnapshots = [-1]", r"train.snapshots has epoch -1 and train.epochs is 40; choose"),
        ("[method]\nstart_temperature = 'none'", "method.start_temperature is 'none'; it must be a number$"),
        ("[train]\nlearning_rate = -1", r"train.learning_rate is -1.0; it must be above 0"),
        ("[train]\nprecision = 'fp61'", r"train.precision is 'fp61'; did you mean 'fp16'"),
        ("[train]\ncompile = 1", r"train.compile is 1; it must be true or false"),
        ("[train]\nsnapshots = 5", r"train.snapshots is 5; it must be a list of whole numbers"),
        ("[augment]\ncrop_area = 0.5", r"augment.crop_area is 0.5; it must be a list of 2 numbers"),
        (
            "[method]\nreferences = 'emma'",
            r"method.references is 'emma'; did you mean 'ema'\? choose one of batch",
        ),
        ("[augment]\ncrop_area = [0.2]", r"augment.crop_area is \[0.2\]"),
        ("[data]\nheld_out = 7.0", r"data.held_out is 7.0; it must lie in \[0, 1\)"),
        ("[augment]\npolicy = 'simm'", r"augment.policy is 'simm'; did you mean 'sim'"),
        ("[evaluate.knn]\nks = 4", "evaluate.knn has no setting 'ks'"),
        ("[encoder]\nname = 'resnet19'", "encoder.name is 'resnet19'; did you mean 'resnet1"),
        ("train = 3", "train is 3; it must be a table"),
        ("[train\nepochs = 3", "is not valid TOML"),
    ],
)
def test_mistakes_are_named_with_their_cure(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adam"}, r"train\.optimizer is 'adam'; choose one of sgd, lars"),
        (
            {"precision": "bf61"},
            r"train\.precision is 'bf61'; did you mean 'bf16'\? choose one of auto, fp32, bf16",
        ),
        ({"track": "mlflow"}, r"train\.track is 'mlflow'; choose one of none, tensorboard, wandb"),
        ({"batch_size": 2.5}, r"train\.batch_size is 2\.5; it must be a whole number"),
        ({"epochs": "ten"}, r"train\.epochs is 'ten'; it must be a whole number"),
        ({"snapshots": (0, 1.5)}, r"train\.snapshots is 1\.5; it must be a whole number"),
        ({"learning_rate": math.inf}, r"train\.learning_rate is inf; it must be above 0 and finite"),
        ({"learning_rate": math.nan}, r"train\.learning_rate is nan; it must be above 0 and finite"),
        ({"weight_decay": math.inf}, r"train\.weight_decay is inf; it must be at least 0 and finite"),
        ({"seed": -1}, r"train\.seed is -1; it must lie within 0\.\.2\*\*32-1"),
        ({"seed": 2**32}, r"train\.seed is 4294967296; it must lie within 0\.\.2\*\*32-1"),
        ({"balanced": 1}, r"train\.balanced is 1; it must be true or false"),
    ],
)
def test_python_is_held_to_the_types_of_a_recipe_file(settings, message):
    with pytest.raises(InputError, match=message):
        TrainSettings(**settings)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: VarConSettings(dimensions=2.5), "method.dimensions"),
        (lambda: Recipe(method=VICRegSettings(dimensions=2.5)), "method.dimensions"),
        (lambda: AugmentSettings(views=2.5), "augment.views"),
        (lambda: EncoderSettings(stem=2.5), "encoder.stem"),
        (lambda: KNN(k=2.5), "knn.k"),
        (lambda: Recipe(evaluate=EvaluateSettings(knn=2.5)), "evaluate.knn"),
    ],
)
def test_so_is_every_section_of_a_recipe(make, place):
    with pytest.raises(InputError, match=f"^{re.escape(place)} is 2\\.5; "):
        make()


def test_numbers_of_numpy_become_pythons():
    """As a search over settings draws them; json takes no others."""
    drawn = TrainSettings(
        epochs=np.int64(3), learning_rate=np.float32(0.5), warmup_epochs=np.int32(1), snapshots=[np.int64(2)]
    )
    assert drawn == TrainSettings(epochs=3, learning_rate=0.5, warmup_epochs=1, snapshots=(2,))
    assert json.loads(json.dumps(recipe_to_dict(Recipe(train=drawn))))["train"]["snapshots"] == [2]


def test_files_that_hold_no_recipe(tmp_path):
    write(tmp_path, "")
    with pytest.raises(InputError, match=r"there is no recipe .*mime\.toml; did you mean '.*mine\.toml'"):
        load_recipe(tmp_path / "mime.toml")
    (tmp_path / "pyproject.toml").write_text("")  # a file of other settings
    with pytest.raises(InputError, match=r"there is no recipe .*pyprojekt\.toml$"):
        load_recipe(tmp_path / "pyprojekt.toml")
    with pytest.raises(InputError, match=r"there is no recipe .*nope\.toml$"):
        load_recipe(tmp_path / "nope.toml")
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="holds no recipe"):
        load_recipe(tmp_path / "other.json")
    with pytest.raises(InputError, match="is a folder, not a recipe"):
        load_recipe(tmp_path)
    (tmp_path / "image.toml").write_bytes(b"\xff\xd8")
    with pytest.raises(InputError, match="cannot be read"):
        load_recipe(tmp_path / "image.toml")


def test_differences_name_the_setting():
    ours = recipe_to_dict(Recipe())
    theirs = json.loads(json.dumps(recipe_to_dict(replace(Recipe(), train=TrainSettings(seed=4)))))
    assert differences(ours, theirs) == {"train.seed": (0, 4)}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_trains_two_steps(path, generator):
    """On random images of the recipe's size, with its own encoder, method, augmentation and optimiser."""
    import torch

    from varcon.augment import augment
    from varcon.core import Batch
    from varcon.engine.check import check_views
    from varcon.engine.optimizers import build_optimizer, learning_rate, set_learning_rate
    from varcon.layers import check_queues

    recipe = load_recipe(path)
    sizes = {"digits": (8, 10), "cifar10": (32, 10), "cifar100": (32, 100), "folder": (224, 1000)}
    size, classes = sizes[recipe.data.name]
    torch.manual_seed(0)
    method = METHODS[recipe.method_name](recipe.encoder.build(), recipe.method, classes)
    check_views(method, recipe)
    check_queues(method, recipe.train.batch_size)
    optimizer = build_optimizer(method, recipe.train)
    before = [parameter.detach().clone() for parameter in method.encoder.parameters()]
    images = torch.randint(0, 256, (6, 3, size, size), dtype=torch.uint8, generator=generator)
    labels = torch.arange(6) % 3
    for step in range(2):
        progress = Progress(step, 2, 1)
        views = [
            augment(images, recipe.augment, (0.5,) * 3, (0.25,) * 3, generator)
            for _ in range(recipe.augment.views)
        ]
        set_learning_rate(optimizer, learning_rate(recipe.train, progress))
        method.before_step(progress)
        output = method(Batch(views, labels, torch.arange(6)))
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
        assert output.loss.isfinite()
    assert all((now != old).any() for now, old in zip(method.encoder.parameters(), before, strict=True))


def test_the_paco_family_on_cifar100_is_its_authors():
    """lr 0.05 for a batch of 128 and weight decay 5e-4; a recipe's rate is that of a batch of 256."""
    family = [path for path in RECIPES if path.parent.name == "cifar100" and "paco" in path.stem]
    assert len(family) == 4
    for path in family:
        recipe = load_recipe(path)
        assert (recipe.train.learning_rate * 128 / 256, recipe.train.weight_decay) == (0.05, 5e-4)
        assert (recipe.method.alpha, recipe.method.temperature, recipe.method.queue) == (0.01, 0.07, 1024)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_says_its_command(path):
    assert f"varcon train recipes/{path.parent.name}/{path.name}" in path.read_text().splitlines()[0]


def test_a_recipe_needs_no_file():
    assert recipe_from_dict({}) == Recipe()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"train": {"epochs": 2}}, r"train is {'epochs': 2}; give a TrainSettings"),
        ({"data": "digits"}, r"data is 'digits'; give a DataSettings"),
        ({"method": "supcon"}, r"method is 'supcon'; give the settings of one"),
        ({"method": VarConSettings}, r"method is <class .*>; give the settings of one"),
    ],
)
def test_sections_that_are_none(sections, words):
    with pytest.raises(InputError, match=words):
        Recipe(**sections)
