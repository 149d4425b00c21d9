"""Settings that make no sense are refused as they are made, by name, long before a step."""

import math

import pytest
from references.small_methods import build

from varcon.core import InputError
from varcon.methods import METHODS

COUNTS = (0, -1)
ABOVE_ZERO = (0.0, -1.0, math.nan, math.inf)
NOT_NEGATIVE = (-1.0, math.nan, math.inf)
SHARE = (-1.0, 2.0, math.nan)

GPACO = {
    "alpha": NOT_NEGATIVE,
    "beta": NOT_NEGATIVE,
    "gamma": NOT_NEGATIVE,
    "temperature": ABOVE_ZERO,
    "queue": COUNTS,
    "dimensions": COUNTS,
}
VARCON = {
    "weight": NOT_NEGATIVE,
    "varcon_temperature": ABOVE_ZERO,
    "epsilon": (*NOT_NEGATIVE, 0.3),
    "epsilon_rate": NOT_NEGATIVE,
}
NONSENSE = {
    "varcon": {
        "temperature": ABOVE_ZERO,
        "start_temperature": (*ABOVE_ZERO, 0.02),  # not above epsilon
        "epsilon": (*NOT_NEGATIVE, 0.3),
        "epsilon_rate": NOT_NEGATIVE,
        "dimensions": COUNTS,
        "classes": ("all",),  # of which a batch's means know only those that are in it
    },
    "supcon": {"temperature": ABOVE_ZERO, "form": ("inn",), "dimensions": COUNTS},
    "ce": {
        "loss": ("focall",),
        "label_smoothing": (-0.1, 1.0, math.nan),
        "mixup": NOT_NEGATIVE,
        "gamma": NOT_NEGATIVE,
        "adafocal_rate": NOT_NEGATIVE,
    },
    "paco": {**GPACO, "momentum": SHARE},
    "gpaco": GPACO,
    "varcon-paco": {**GPACO, **VARCON, "momentum": SHARE},
    "varcon-gpaco": {**GPACO, **VARCON},
    "xclr": {"temperature": ABOVE_ZERO, "similarity_temperature": ABOVE_ZERO, "dimensions": COUNTS},
    "simclr": {"temperature": ABOVE_ZERO, "dimensions": COUNTS},
    "moco": {"temperature": ABOVE_ZERO, "momentum": SHARE, "queue": COUNTS, "dimensions": COUNTS},
    "byol": {"momentum": SHARE, "hidden": COUNTS, "dimensions": COUNTS},
    "swav": {
        "temperature": ABOVE_ZERO,
        "sharpness": ABOVE_ZERO,
        "iterations": COUNTS,
        "prototypes": (1, *COUNTS),
        "frozen_epochs": (-1,),
        "queue": (-1,),
        "queue_from": (-1,),
        "hidden": COUNTS,
        "dimensions": COUNTS,
    },
    "vicreg": {
        "similarity": NOT_NEGATIVE,
        "variance": NOT_NEGATIVE,
        "covariance": NOT_NEGATIVE,
        "dimensions": COUNTS,
    },
    "barlow": {"redundancy": NOT_NEGATIVE, "scale": ABOVE_ZERO, "dimensions": COUNTS},
}
CASES = [
    (name, setting, value)
    for name, settings in NONSENSE.items()
    for setting, values in settings.items()
    for value in values
]


def test_every_method_is_here():
    assert NONSENSE.keys() == METHODS.keys()


@pytest.mark.parametrize(("name", "setting", "value"), CASES)
def test_nonsense(name, setting, value):
    with pytest.raises(
        InputError, match=rf"^method\.{setting} is {value!r}; [^\n]*(must|choose one of) [^\n]+$"
    ):
        METHODS[name].Settings(**{setting: value})


@pytest.mark.parametrize("name", METHODS)
def test_the_ends_of_what_is_allowed(name):
    """Off, where 0 means off, and the smallest sizes: these build."""
    small = {"hidden": 1, "dimensions": 1, "prototypes": 2, "queue": 1, "iterations": 1}
    off = {
        "alpha": 0,
        "gamma": 0,
        "weight": 0,
        "redundancy": 0,
        "covariance": 0,
        "mixup": 0,
        "frozen_epochs": 0,
    }
    fields = METHODS[name].Settings.__dataclass_fields__
    chosen = {key: value for key, value in (small | off).items() if key in fields}
    settings = build(name, **chosen).settings
    assert {key: getattr(settings, key) for key in chosen} == chosen


@pytest.mark.parametrize("name", ["paco", "gpaco", "varcon-paco", "varcon-gpaco"])
def test_no_loss_is_left(name):
    with pytest.raises(InputError, match=r"method\.alpha and method\.beta are both 0"):
        METHODS[name].Settings(alpha=0.0, beta=0.0)


def test_epsilon_is_held_below_the_temperature_it_adapts():
    with pytest.raises(InputError, match=r"method\.epsilon is 0\.06; .*method\.varcon_temperature, 0\.05"):
        METHODS["varcon-gpaco"].Settings(epsilon=0.06, varcon_temperature=0.05)
    build("varcon-gpaco", epsilon=0.1, varcon_temperature=0.2)  # where it begins is within its range
