import sys
from importlib import import_module
from typing import get_args, get_type_hints

import pytest

import varcon
from varcon.core import InputError
from varcon.data import DATASETS, DataSettings, load


def test_every_name_has_a_loader() -> None:
    assert set(get_args(get_type_hints(DataSettings)["name"])) == set(DATASETS)


def test_load_passes_the_settings_on() -> None:
    assert load(DataSettings(image_size=12)).train.images.shape == (1297, 3, 12, 12)


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="no data set 'cifar-10'; choose one of digits, cifar10"):
        load(DataSettings(name="cifar-10"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="choose one of digits, cifar10"):
        load(DataSettings(name="wxyz"))  # type: ignore[arg-type]


def test_negative_size() -> None:
    with pytest.raises(InputError, match="image_size is -1: use 0"):
        load(DataSettings(image_size=-1))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "folder", "npz"])
def test_empty_path(name: str) -> None:
    with pytest.raises(InputError, match=r"data\.path is empty: set it to"):
        load(DataSettings(name=name))  # type: ignore[arg-type]


def test_import_needs_neither_pillow_nor_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("varcon.data")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("PIL", "sklearn", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(varcon, "data", varcon.data)  # to be put back afterwards
    assert import_module("varcon.data").DataSettings().name == "digits"
