import os

import numpy as np
import pytest
from PIL import Image

from varcon import InputError, Recipe, run
from varcon.data import DataSettings, load
from varcon.recipe import TrainSettings
from varcon.run_folder import check_folder, is_trained_on, run_name, runs_in, stored_recipe


def test_runs_are_named_for_their_recipes(tmp_path):
    assert run_name(tmp_path / "recipes/digits/varcon.toml") == "digits-varcon"
    assert run_name(tmp_path / "mine.toml") == "mine"
    assert run_name(tmp_path / "runs/digits-varcon/recipe.json") == "digits-varcon-again"


@pytest.fixture
def photos(tmp_path):
    for kind, colour in (("cat", 60), ("dog", 200)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(10):
            image = Image.new("L", (8, 8), colour + number)
            image.save(tmp_path / f"photos/{kind}/{kind}-{number}.png")
    return tmp_path / "photos"


def test_a_file_renamed_does_not_bring_training_images_among_those_held_out(tmp_path, photos):
    """They are drawn by their place among the names."""
    settings = DataSettings("folder", str(photos))
    recipe = Recipe(data=settings, train=TrainSettings(epochs=1, batch_size=8, device="cpu"))
    folder = run.train(recipe, tmp_path / "run")
    assert is_trained_on(folder, load(settings))
    (photos / "cat/cat-0.png").rename(photos / "cat/z.png")
    assert not is_trained_on(folder, load(settings))


def test_labels_may_be_corrected_unless_images_are_held_out_by_them(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    arrays = {"train_images": rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), "train_labels": labels}
    arrays |= {"test_images": arrays["train_images"], "test_labels": labels}
    folders = {}
    for share in (0.0, 0.2):
        np.savez(tmp_path / "data.npz", **arrays)
        settings = DataSettings("npz", str(tmp_path / "data.npz"), held_out=share)
        recipe = Recipe(data=settings, train=TrainSettings(epochs=1, batch_size=8, device="cpu"))
        folders[share] = run.train(recipe, tmp_path / f"run{share}"), settings
    corrected = labels.copy()
    corrected[:2] = corrected[:2][::-1]
    np.savez(tmp_path / "data.npz", **arrays | {"train_labels": corrected})
    found = {share: is_trained_on(folder, load(settings)) for share, (folder, settings) in folders.items()}
    assert found == {0.0: True, 0.2: False}


def test_a_folder_of_runs_names_one(tmp_path):
    for name in ("second", "first"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").touch()
    assert runs_in(tmp_path) == f"name a run in it, for example {tmp_path / 'first'}"
    with pytest.raises(InputError, match=r"is not a run: it has no recipe\.json; name a run in it, .*first$"):
        stored_recipe(tmp_path)
    with pytest.raises(InputError, match=r"there is no such folder; name a run$"):
        stored_recipe(tmp_path / "third")


def test_a_folder_whose_name_no_report_could_write_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\\udce9 has a name that is not UTF-8; rename it"):
        check_folder(tmp_path / os.fsdecode(b"caf\xe9"), Recipe(), resume=False)


def test_a_folder_with_a_file_of_another_program_is_no_run(tmp_path):
    check_folder(tmp_path, Recipe(), resume=False)  # an empty one serves
    (tmp_path / ".recipe.json.swp").write_text("an editor's")
    with pytest.raises(InputError, match="exists and is not a run"):
        check_folder(tmp_path, Recipe(), resume=False)
