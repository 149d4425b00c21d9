"""A folder of small pictures, a run that is trained on it, and images as people have them."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import varcon
from varcon.recipe import recipe_from_dict

COLOURS = {"blue": (30, 40, 220), "green": (30, 200, 40), "red": (220, 30, 40)}


def picture(colour, seed, size=(24, 20)):
    """Of one colour with noise: width x height pixels."""
    noise = np.random.default_rng(seed).integers(-30, 30, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8))


def recipe(path, **settings):
    """Of the folder `path`, or of data that are set otherwise."""
    return recipe_from_dict(
        {
            "data": {"name": "folder", "path": str(path), "image_size": 16, **settings},
            "augment": {"policy": "crop-flip"},
            "train": {"epochs": 2, "batch_size": 12, "device": "cpu", "warmup_epochs": 0},
        }
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("deploy") / "colours"
    for split, count in (("train", 12), ("test", 7)):
        for place, colour in enumerate(COLOURS):
            folder = root / split / colour
            folder.mkdir(parents=True)
            for number in range(count):
                picture(colour, 1000 * place + 100 * (split == "test") + number).save(
                    folder / f"{number:02}.png"
                )
    return root


@pytest.fixture(scope="session")
def trained(data):
    """For tests that only read it."""
    return varcon.train(recipe(data), data.parent / "trained")


@pytest.fixture(scope="session")
def model(trained):
    return varcon.load(trained, "cpu")


@pytest.fixture
def own(trained, model, tmp_path):
    """A copy of the run that a test may change."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def forbid(monkeypatch):
    """Makes a folder one in which nothing can be written; permissions would not keep root from it."""

    def forbid_folder(folder, number=errno.EROFS):
        def guarded(call, writes):
            def guard(path, *rest, **more):
                if writes(*rest) and Path(os.fsdecode(path)).resolve().is_relative_to(folder.resolve()):
                    raise OSError(number, os.strerror(number), str(path))
                return call(path, *rest, **more)

            return guard

        for_writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        monkeypatch.setattr(os, "mkdir", guarded(os.mkdir, lambda *rest: True))
        monkeypatch.setattr(os, "open", guarded(os.open, lambda flags, *rest: flags & for_writing))

    return forbid_folder


@pytest.fixture
def zoo(tmp_path):
    """One picture in every guise in which pictures come."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    red = picture("red", 5, (31, 22))
    red.save(folder / "plain.png")
    red.convert("L").save(folder / "grey.png")
    red.convert("LA").save(folder / "grey_alpha.png")
    red.convert("RGBA").save(folder / "rgba.png")
    red.convert("P").save(folder / "palette.png")
    red.convert("1").save(folder / "bits.png")
    red.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(np.arange(31 * 22, dtype=np.uint16).reshape(22, 31) * 90).save(folder / "sixteen.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by a quarter
    picture("green", 6, (50, 30)).save(folder / "turned.jpg", exif=turned)
    picture("blue", 7, (400, 300)).save(folder / "large.jpg")
    frames = [picture(colour, 8) for colour in COLOURS]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "animated.webp", save_all=True, append_images=frames[1:])
    return folder


@pytest.fixture(scope="session")
def small_recipe():
    return recipe


@pytest.fixture(scope="session")
def draw():
    return picture
