import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

import varcon
from varcon.core import InputError
from varcon.data import DATASETS, DataSettings, load
from varcon.data.subset import few_per_class


def test_every_name_has_a_loader() -> None:
    assert set(get_args(get_type_hints(DataSettings)["name"])) == set(DATASETS)


def test_load_passes_the_settings_on() -> None:
    assert load(DataSettings(image_size=12)).train.images.shape == (1297, 3, 12, 12)


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"data\.name is 'cifar-10'; did you mean 'cifar10'\?"):
        DataSettings(name="cifar-10")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"data\.name is 'wxyz'; choose one of digits, cifar10"):
        DataSettings(name="wxyz")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ({"path": Path("a.npz")}, "text"),
        ({"per_class": 2.5}, "a whole number"),
        ({"image_size": "8"}, "a whole number"),
    ],
)
def test_settings_are_of_their_types_in_python_too(setting: dict[str, Any], kind: str) -> None:
    with pytest.raises(InputError, match=rf"data\.\w+ is .*; it must be {kind}"):
        DataSettings(**setting)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "folder", "npz"])
def test_empty_path(name: str) -> None:
    with pytest.raises(InputError, match=r"data\.path is empty: set it to"):
        load(DataSettings(name=name))  # type: ignore[arg-type]


def test_few_training_images_of_each_class(tmp_path: Path) -> None:
    """By every loader alike: the same test images, statistics and classes, a part of the training images."""
    whole = load(DataSettings())
    pixels = {
        f"{name}_images": split.images.permute(0, 2, 3, 1).numpy()
        for name, split in (("train", whole.train), ("test", whole.test))
    }
    labels = {"train_labels": whole.train.labels.numpy(), "test_labels": whole.test.labels.numpy()}
    np.savez(tmp_path / "digits.npz", **pixels, **labels)
    seen = []
    for settings in (DataSettings(), DataSettings("npz", str(tmp_path / "digits.npz"))):
        few = load(replace(settings, per_class=7))
        assert few.train.labels.bincount().tolist() == [7] * 10
        expected = few_per_class(whole.train, 7, 0)
        assert torch.equal(few.train.images, expected.images)
        assert torch.equal(few.test.images, whole.test.images)
        assert (few.mean, few.std) == (load(settings).mean, load(settings).std)
        other = load(replace(settings, per_class=7, per_class_seed=1))
        assert not torch.equal(other.train.images, few.train.images)
        seen.append(few)
    assert seen[0].classes == whole.classes


def test_training_images_stand_in_for_the_test_images() -> None:
    whole, held = load(DataSettings()), load(DataSettings(held_out=0.1))
    assert len(held.train) + len(held.test) == len(whole.train)
    shares = held.test.labels.bincount() / whole.train.labels.bincount()
    assert shares.tolist() == pytest.approx([0.1] * 10, abs=0.005)
    rows = torch.cat([held.train.images, held.test.images]).flatten(1)
    assert torch.equal(rows.unique(dim=0), whole.train.images.flatten(1).unique(dim=0))
    few = load(DataSettings(held_out=0.1, per_class=3))
    assert len(few.train) == 30 and torch.equal(few.test.images, held.test.images)


def test_one_image_of_each_class_leaves_none_to_hold_out(tmp_path: Path) -> None:
    images, labels = np.zeros((3, 8, 8), np.uint8), np.arange(3)
    parts = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "one.npz", **parts)
    with pytest.raises(InputError, match=r"data\.held_out is 0\.5 and there is one training image of each"):
        load(DataSettings("npz", str(tmp_path / "one.npz"), held_out=0.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": -1}, r"data\.image_size is -1; it must be at least 0"),
        ({"held_out": 1.0}, r"data\.held_out is 1\.0; it must lie in \[0, 1\)"),
        ({"per_class": -1}, r"data\.per_class is -1; it must be at least 0"),
        ({"per_class": 1, "per_class_seed": -1}, r"data\.per_class_seed is -1; it must lie within"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DataSettings(**settings)


def test_fewer_images_than_that() -> None:
    with pytest.raises(InputError, match=r"data\.per_class: 200 images .* class \d has 1\d\d; ask for fewer"):
        load(DataSettings(per_class=200))


def test_import_needs_neither_pillow_nor_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("varcon.data")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("PIL", "sklearn", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(varcon, "data", varcon.data)  # to be put back afterwards
    assert import_module("varcon.data").DataSettings().name == "digits"
