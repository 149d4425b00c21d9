import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from varcon.cli import main
from varcon.core import InputError
from varcon.data import DataSettings, load
from varcon.recipe import load_recipe, recipe_to_dict, recipe_to_toml
from varcon.suggest import (
    chosen_budget,
    chosen_encoder,
    chosen_method,
    chosen_probe_batch,
    chosen_warmup,
    suggest,
    unsealed,
)


def make(folder: Path, counts: dict[str, int], side: int = 12) -> Path:
    generator = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_a_folder_of_classes_becomes_a_recipe(tmp_path):
    root = make(tmp_path / "pets", {"cat": 40, "dog": 8, "newt": 2})
    recipe, reasons = (found := suggest(root, "cpu")).recipe, found.reasons
    assert (recipe.data.name, recipe.data.path, recipe.data.image_size) == ("folder", str(root), 12)
    assert recipe.encoder.name == "small" and recipe.train.precision == "auto"
    assert recipe.train.balanced and recipe.evaluate.knn.k == 6
    assert recipe.train.batch_size == 16 and recipe.train.epochs == 120
    text = " ".join(reasons)
    assert "50 images of 3 classes, 11 of them held out to judge by" in text
    assert "from 2 to 40 images: each is drawn equally often" in text
    assert "Half of the classes have 6 training images or fewer: the nearest 6 vote" in text
    assert "Fewer than 5 images: newt." in text
    data = load(recipe.data)
    assert (len(data.train), len(data.test)) == (39, 11)


def test_what_is_left_out_is_counted(tmp_path):
    root = make(tmp_path / "pets", {"cat": 6, "dog": 6})
    (root / "cat/old").mkdir()
    for number in range(3):
        (root / f"cat/old/{number}.AVIF").touch()
        shutil.copy(root / "dog/0.png", root / f"{number}.png")
    (root / "dog/0.heic").touch()
    (root / "dog/README").touch()
    (root / "dog/.DS_Store").touch()
    reasons = suggest(root, "cpu").reasons
    assert reasons[1] == "5 files are left out: 3 .avif, 1 .heic and 1 without a suffix."
    assert reasons[2] == "3 images lie outside the class folders and are left out."
    root.rename(tmp_path / "train")
    for number in (1, 2):
        (tmp_path / f"train/{number}.png").unlink()
        (tmp_path / f"train/cat/old/{number}.AVIF").unlink()
    (tmp_path / "train/dog/0.heic").unlink()
    (tmp_path / "train/dog/README").unlink()
    reasons = suggest(tmp_path, "cpu").reasons
    assert reasons[1:3] == [
        "1 file is left out: 1 .avif.",
        "1 image lies outside the class folders and is left out.",
    ]


def test_even_classes_with_test_images(tmp_path):
    make(tmp_path / "train", {"a": 9, "b": 9})
    make(tmp_path / "test", {"a": 3, "b": 4})
    found = suggest(tmp_path, "cuda")
    assert not found.recipe.train.balanced
    assert found.recipe.train.precision == "auto" and found.recipe.encoder.name == "resnet18"
    assert "18 images of 2 classes, and 7 to judge by." in found.reasons


def test_test_images_that_cannot_be_used_are_not_passed_over(tmp_path):
    make(tmp_path / "train", {"a": 9, "b": 9})
    make(tmp_path, {"val": 4})
    with pytest.raises(InputError, match="val holds images and no folder per class"):
        suggest(tmp_path, "cpu")


def test_warnings_of_pillow_stay_inside(tmp_path, monkeypatch):
    """Warnings are errors in this suite, and Pillow warns of images that are larger than usual."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    root = make(tmp_path / "large", {"a": 6, "b": 6})
    with pytest.warns(Image.DecompressionBombWarning), Image.open(root / "a" / "0.png"):
        pass
    assert suggest(root, "cpu").recipe.data.image_size == 12


def test_one_image_of_each_class_is_refused_before_a_recipe_is_made_of_it(tmp_path):
    with pytest.raises(InputError, match="one image of each class, and none to judge by: add some"):
        suggest(make(tmp_path / "few", {"a": 1, "b": 1}), "cpu")


def test_the_written_recipe_is_the_same(tmp_path):
    recipe = suggest(make(tmp_path / "images", {"a": 6, "b": 30}), "cpu").recipe
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe))
    assert recipe_to_dict(load_recipe(tmp_path / "recipe.toml")) == recipe_to_dict(recipe)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[1].glob("recipes/*/*.toml")), ids=lambda p: p.stem
)
def test_every_recipe_survives_writing(path, tmp_path):
    recipe = load_recipe(path)
    (tmp_path / "again.toml").write_text(recipe_to_toml(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe


@pytest.mark.parametrize(
    ("side", "images", "device", "size", "name", "stem"),
    [
        (500, 3_000, "cpu", 32, "small", "small"),
        (28, 60_000, "cpu", 28, "small", "small"),
        (32, 50_000, "cuda", 32, "resnet50", "small"),
        (64, 3_000, "cuda", 64, "resnet18", "small"),
        (65, 3_000, "cuda", 65, "resnet18", "imagenet"),  # not blown up
        (100, 60_000, "cuda", 100, "resnet50", "imagenet"),
        (500, 3_000, "cuda", 128, "resnet18", "imagenet"),
        (300, 100_000, "cuda", 224, "resnet50", "imagenet"),
    ],
)
def test_size_and_encoder(monkeypatch, side, images, device, size, name, stem):
    monkeypatch.setattr("varcon.suggest.available_memory", lambda: 10**12)
    found, encoder, why = chosen_encoder(side, images, images, device)
    assert (found, encoder.name, encoder.stem) == (size, name, stem)
    assert str(size) in why


def test_images_that_would_not_fit_are_read_smaller(monkeypatch):
    monkeypatch.setattr("varcon.suggest.available_memory", lambda: 8 * 10**9)
    smaller, _, why = chosen_encoder(300, 100_000, 100_000, "cuda")
    assert smaller == 112 and "Memory has no room for them at 224" in why and "--data.store" in why
    fitting, _, why = chosen_encoder(300, 20_000, 20_000, "cuda")
    assert fitting == 224 and "no room" not in why
    assert chosen_encoder(300, 100_000, 0, "cuda")[0] == 224  # they stay on the disk
    assert chosen_encoder(300, 20_000, 60_000, "cuda")[0] == 112  # with the test images, which lie there too


def test_the_test_images_need_memory_too(tmp_path, monkeypatch):
    make(tmp_path / "train", {"a": 4, "b": 4}, side=64)
    assert 3 * 8 * 64 * 64 == 98_304
    monkeypatch.setattr("varcon.suggest.available_memory", lambda: 2 * 98_304)
    assert suggest(tmp_path, "cuda").recipe.data.image_size == 64
    make(tmp_path / "test", {"a": 1, "b": 1}, side=64)
    assert suggest(tmp_path, "cuda").recipe.data.image_size == 32
    on_disk = DataSettings("folder", str(tmp_path), store="store")
    assert suggest(tmp_path, "cuda", None, on_disk).recipe.data.image_size == 64


def test_budget():
    assert chosen_budget(50_000, "cuda")[:2] == (80, 512)
    assert chosen_budget(10_000_000, "cuda")[:2] == (50, 512)
    assert chosen_budget(3_680, "cpu")[:2] == (43, 128)
    assert chosen_budget(90, "cpu") == (120, 32, "120 epochs in batches of 32.")


@pytest.mark.parametrize(
    ("images", "batch"), [(10**6, 1024), (10_240, 1024), (10_239, 512), (2040, 128), (5, 16)]
)
def test_the_probe_has_ten_steps_an_epoch(images, batch):
    assert chosen_probe_batch(images) == batch


def test_many_classes_for_a_batch_have_running_means(tmp_path):
    few = suggest(make(tmp_path / "few", {f"class {number}": 6 for number in range(4)}), "cuda")
    assert few.recipe.method.references == "batch" and few.recipe.train.batch_size == 8
    many = suggest(make(tmp_path / "many", {f"class {number}": 3 for number in range(20)}), "cuda")
    assert many.recipe.method.references == "ema" and many.recipe.train.batch_size < 40
    assert any("fewer than two images of each of the 20 classes" in reason for reason in many.reasons)
    assert many.recipe.augment.views == 2


def test_without_a_gpu_classes_are_learned_from_one_view(tmp_path):
    many = suggest(make(tmp_path / "many", {f"class {number}": 3 for number in range(20)}), "cpu")
    method, augment = many.recipe.method, many.recipe.augment
    assert (method.references, method.classes, method.head) == ("learned", "all", "none")
    assert (augment.policy, augment.views, augment.shift) == ("crop-flip", 1, 1)  # of 8 pixels
    assert any("a learned vector to compare its features with" in reason for reason in many.reasons)


@pytest.mark.parametrize(("size", "shift"), [(1, 0), (4, 0), (8, 1), (16, 2), (32, 4), (224, 4)])
def test_small_images_are_shifted_less(size, shift):
    assert chosen_method(32, 4, size, "cpu")[1].shift == shift


@pytest.mark.parametrize(
    ("asked", "left"),
    [({}, 80), ({"per_class": 3}, 6), ({"held_out": 0.5}, 40), ({"held_out": 0.5, "per_class": 2}, 4)],
)
def test_what_is_left_to_train_on_decides_how_long(asked, left, tmp_path):
    """As many images as loading leaves."""
    root = make(tmp_path / "two", {"a": 50, "b": 50})  # a fifth is held out to judge by
    settings = DataSettings("folder", str(root), **asked)
    recipe, reasons = (found := suggest(root, "cpu", None, settings)).recipe, found.reasons
    assert len(load(settings).train) == left
    assert (recipe.train.epochs, recipe.train.batch_size) == chosen_budget(left, "cpu")[:2]
    assert any(f"{left} are left to train on" in reason for reason in reasons) == bool(asked)


def test_a_flag_that_the_chosen_policy_does_not_look_at_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 6, "dog": 6})
    few = ["--train.epochs=1", "--train.device", "cpu"]
    assert main(["train", "--data", "pets", *few, "--augment.grey", "0.9", "--augment.flip", "0"]) == 0
    told = capsys.readouterr().out
    assert "augment.grey does nothing in the policy 'crop-flip'" in told
    assert "augment.flip does nothing" not in told


def test_flags_of_the_data_and_what_follows_from_references(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 60, "dog": 60})
    few = ["--train.epochs=1", "--train.device", "cpu", "--data.per-class", "4"]
    assert main(["train", "--data", "pets", *few, "--method.references", "leave-one-out"]) == 0
    told = capsys.readouterr().out
    assert "8 are left to train on" in told and "in batches of 4." in told
    assert "method.classes present instead of all" in told
    assert load_recipe("runs/pets/recipe.json").train.batch_size == 4


def test_train_by_a_folder_alone(tmp_path, monkeypatch, capsys):
    """Told what was chosen; the recipe lies beside the run, and one that was edited stays."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    few = ["--train.epochs", "1", "--train.device", "cpu"]
    assert main(["train", "--data", "pets", *few]) == 0
    out = capsys.readouterr().out
    assert "19 images of 2 classes, 4 of them held out" in out and "recipe: runs/pets.toml" in out
    assert (tmp_path / "runs/pets/encoder.safetensors").exists()
    text = (tmp_path / "runs/pets.toml").read_text()
    command = "varcon train runs/pets.toml --train.epochs 1 --train.device cpu"
    assert text.startswith(f"# {command}\n#\n# 19 images of 2 classes")
    assert load_recipe("runs/pets.toml").data.path == "pets"
    assert command in (tmp_path / "runs/pets/recipe.json").read_text()
    assert main(["train", "--data=pets", *few]) == 2
    assert "runs/pets already holds a run: add --resume" in capsys.readouterr().err
    (tmp_path / "runs/pets.toml").write_text(text + "# mine\n")
    assert main(["train", "--data", "pets", *few]) == 2
    assert "runs/pets.toml is there already and differs" in capsys.readouterr().err
    assert (tmp_path / "runs/pets.toml").read_text().endswith("# mine\n")
    for flags in (["--data"], ["--out", "runs/x", "--data"], ["--data", "--out", "runs/x"]):
        assert main(["train", *flags]) == 2
        assert "--data needs a folder of images" in capsys.readouterr().err


def test_a_run_that_cannot_begin_leaves_no_recipe(tmp_path, monkeypatch, capsys):
    """What its error says can be done, and the same command is then not refused."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    few = ["--train.epochs", "1", "--train.device", "cpu"]
    for folder in (".", "other"):
        (tmp_path / "other/a").mkdir(parents=True, exist_ok=True)
        assert main(["train", "--data", "pets", "--out", folder, *few]) == 2
        assert "exists and is not a run" in capsys.readouterr().err
    broken = tmp_path / "pets/cat/3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    assert main(["train", "--data", "pets", *few]) == 2
    assert "3.png cannot be read" in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other", "pets"]
    broken.unlink()
    assert main(["train", "--data", "pets", *few]) == 0


def test_a_recipe_that_nobody_edited_and_no_run_has_is_chosen_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    few = ["--train.epochs", "1", "--train.device", "cpu"]
    assert main(["train", "--data", "pets", *few]) == 0
    target = tmp_path / "runs/pets.toml"
    (tmp_path / "pets/cat/3.png").unlink()
    assert main(["train", "--data", "pets", *few]) == 2  # the run that is there was begun by it
    shutil.rmtree(tmp_path / "runs/pets")
    first = target.read_text()
    target.write_text(first.replace("19 images", "20 images"))
    assert main(["train", "--data", "pets", *few]) == 2
    assert "runs/pets.toml is there already and differs" in capsys.readouterr().err
    target.write_text(first)
    assert main(["train", "--data", "pets", *few]) == 0
    assert "# 18 images of 2 classes" in target.read_text()


def test_a_recipe_that_is_edited_while_the_images_are_read_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)

    def reads(*arguments):
        (tmp_path / "runs/pets.toml").write_text("mine\n")
        return load(*arguments)

    monkeypatch.setattr("varcon.run.load", reads)
    assert main(["train", "--data", "pets", "--train.epochs", "1", "--train.device", "cpu"]) == 2
    assert "runs/pets.toml is there already and differs" in capsys.readouterr().err
    assert (tmp_path / "runs/pets.toml").read_text() == "mine\n"


def test_a_run_is_put_into_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    assert main(["train", "--data", "pets", "--out=~/run", "--train.epochs=1", "--train.device=cpu"]) == 0
    assert (tmp_path / "home/run.toml").exists() and (tmp_path / "home/run/encoder.safetensors").exists()
    assert main(["report", "home/run", "--out=~/page.html"]) == 0
    assert (tmp_path / "home/page.html").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["home", "pets"]
    assert main(["train", "--data", "pets", "--out=~nobody-here/run", "--train.device=none"]) == 2


@pytest.mark.parametrize("device", ["cuda:99", "mps"])
def test_a_device_that_is_not_there_leaves_nothing_behind(tmp_path, monkeypatch, capsys, device):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    assert main(["train", "--data", "pets", "--train.device", device]) == 2
    assert repr(device) in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_flags_that_replace_what_was_chosen_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    few = ["--train.epochs=1", "--train.device", "cpu", "--data.image-size", "10"]
    assert main(["train", "--data", "pets", *few]) == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if "Flags replace" in line)
    assert "train.epochs 1 instead of 120" in told and "data.image_size 10 instead of 8" in told
    assert "encoder" not in told
    text = (tmp_path / "runs/pets.toml").read_text()
    assert main(["train", "--data", "pets", "--train.device", "cpu"]) == 2  # other flags, the same choice
    assert "runs/pets already holds a run" in capsys.readouterr().err
    assert (tmp_path / "runs/pets.toml").read_text() == text
    with pytest.raises(SystemExit):  # a flag that does not exist
        main(["train", "--data", "pets", "--out", "runs/b", "--train.epoch", "1"])
    assert not (tmp_path / "runs/b.toml").exists()


def test_a_shorter_training_is_resumed_with_the_warmup_it_began_with(tmp_path, monkeypatch, capsys):
    """Also one that an earlier version began, whose recipe has no seal and whose warm-up stayed as chosen."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    command = ["train", "--data", "pets", "--train.device", "cpu", "--train.epochs", "5"]
    for warmup in (None, 3.0):
        assert main([*command, *(["--train.warmup-epochs", "3"] if warmup else [])]) == 0
        (tmp_path / "runs/pets/encoder.safetensors").unlink()
        text = (tmp_path / "runs/pets.toml").read_text()
        if warmup:
            (tmp_path / "runs/pets.toml").write_text(unsealed(text))
        assert main([*command, "--resume"]) == 0
        (tmp_path / "runs/pets.toml").write_text(text.replace("epochs = 5", "epochs = 6"))
        assert main([*command, "--resume"]) == 2
        shown = "varcon train runs/pets.toml --train.device cpu --train.epochs 5 --resume --out runs/pets"
        assert f"train by it with `{shown}`" in capsys.readouterr().err
        shutil.rmtree(tmp_path / "runs")


def test_the_next_training_starts_from_the_first_one_with_its_flags(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "elsewhere/train", {"cat": 10, "dog": 9}, side=8)
    (tmp_path / "pets").symlink_to(tmp_path / "elsewhere/train")
    flags = ["--train.epochs", "1", "--train.device", "cpu", "--augment.flip", "0"]
    assert main(["train", "--data", "pets", *flags]) == 0
    assert main(["train", "runs/pets.toml", "--out", "runs/again"]) == 0
    first, second = (load_recipe(f"runs/{name}/recipe.json") for name in ("pets", "again"))
    assert first == second and second.augment.flip == 0 and second.train.epochs == 1
    assert "# Flags replace what was chosen" in (tmp_path / "runs/pets.toml").read_text()


def test_a_shorter_training_has_a_shorter_warmup(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "pets", {"cat": 10, "dog": 9}, side=8)
    few = ["train", "--data", "pets", "--train.device", "cpu", "--train.epochs"]
    assert main([*few, "2"]) == 0
    out = capsys.readouterr().out
    assert "train.warmup_epochs 1.0 instead of 6" in out and "only grows" not in out
    assert load_recipe("runs/pets/recipe.json").train.warmup_epochs == 1
    assert load_recipe("runs/pets.toml").train.warmup_epochs == 1
    command = (tmp_path / "runs/pets.toml").read_text().partition("\n")[0]
    assert main([*shlex.split(command)[2:], "--resume"]) == 0
    assert main([*few, "2", "--train.warmup_epochs=3", "--out", "runs/given"]) == 0
    assert load_recipe("runs/given/recipe.json").train.warmup_epochs == 3
    out = capsys.readouterr().out
    assert "train.warmup_epochs is 3, train.epochs 2: the learning rate only grows" in out
    assert [chosen_warmup(epochs) for epochs in (1, 2, 39, 40, 60)] == [0, 1, 1, 2, 3]


def test_the_recipe_lies_beside_the_run(tmp_path, monkeypatch, capsys):
    """Two folders of one name do not get into each other's way, wherever --data stands."""
    monkeypatch.chdir(tmp_path)
    for name in ("A", "B"):
        make(tmp_path / name / "data", {"cat": 10, "dog": 9}, side=8)
    few = ["--train.epochs", "1", "--train.device", "cpu"]
    assert main(["train", "--data", "A/data", *few]) == 0
    capsys.readouterr()
    assert main(["train", "--data", "B/data", *few]) == 2
    error = capsys.readouterr().err
    assert "runs/data.toml is there already and is for the images of A/data, not of B/data" in error
    assert "--out FOLDER" in error and error.count("\n") == 1
    assert main(["train", "--out", "runs/bdata", *few, "--data", "B/data"]) == 0
    assert load_recipe("runs/bdata.toml").data.path == "B/data"
    assert (tmp_path / "runs/bdata/encoder.safetensors").exists()
    (tmp_path / "runs/bdata.toml").write_text("edited\n")
    assert main(["train", "--data", "B/data", "--out=runs/bdata"]) == 2
    assert "`varcon train runs/bdata.toml --out runs/bdata-2`, or remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "flags"),
    [
        ("pets", ["--data", "."]),
        ("pets", ["--data", "../pets", "--out", "mine"]),
        (".", ["--out", "pets/new/run", "--data", "pets"]),
        (".", ["--data=pets", "--out=pets"]),
    ],
)
def test_a_run_is_not_put_among_the_images(tmp_path, monkeypatch, capsys, start, flags):
    make(tmp_path / "pets", {"cat": 3, "dog": 3})
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path / start)
    assert main(["train", *flags]) == 2
    error = capsys.readouterr().err
    assert "would lie inside the folder of images" in error and "--out" in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_recipe_and_a_folder_at_once(tmp_path, capsys):
    make(tmp_path / "pets", {"cat": 3, "dog": 3})
    assert main(["train", "mine.toml", "--data", str(tmp_path / "pets")]) == 2
    assert "mine.toml is given too; leave out one of them" in capsys.readouterr().err


def test_what_cannot_be(tmp_path):
    with pytest.raises(InputError, match="one class alone"):
        suggest(make(tmp_path / "one", {"cat": 3}), "cpu")


def test_a_class_alone_is_not_taken_for_a_folder_around_others(tmp_path):
    (make(tmp_path / "one/train", {"train": 3}) / "train/.thumbs").mkdir()
    with pytest.raises(InputError, match=r"it takes two$"):
        suggest(tmp_path / "one", "cpu")


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    photos = make(tmp_path / os.fsdecode(b"caf\xe9"), {"cat": 3, "dog": 3})
    with pytest.raises(InputError, match=r"\\udce9 has a name that is not UTF-8; rename it"):
        suggest(photos, "cpu")


@pytest.mark.parametrize("inside", ["photos", "photos/train"])
def test_a_folder_around_the_data_is_named(tmp_path, inside):
    make(tmp_path / "one" / inside, {"cat": 3, "dog": 3})
    with pytest.raises(InputError, match=r"if \S+/one/photos holds their folders, give that"):
        suggest(tmp_path / "one", "cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data.npz", 'a recipe whose section [data] has name = "npz" and path = "data.npz"'),
        ("t.csv", "VarConClassifier"),
        ("x.jpg", "give the folder in which each class has a folder"),
        ("a.zip", "unpacked if need be"),
    ],
)
def test_a_file_in_place_of_a_folder(tmp_path, monkeypatch, capsys, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    assert main(["train", "--data", name, "--train.device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert f"{name} is a file, and --data takes a folder of images: " in error and words in error
    assert main(["train", "--data", "absent", "--train.device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert f"there is no folder {tmp_path / 'absent'}" in error and "data.path" not in error
