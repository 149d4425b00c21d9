"""Variational supervised contrastive learning.

    import varcon
    loss_fn = varcon.VarConLoss(num_classes=10)       # in your own loop
    model = varcon.VarConClassifier().fit(X, y)       # as a scikit-learn estimator
    run = varcon.train("recipes/digits/varcon.toml")  # or the whole way
    model = varcon.load(run)                          # predict, embed

Names are loaded when first used, so that importing varcon costs little beyond torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varcon.core import InputError as InputError
    from varcon.core import RunError as RunError
    from varcon.criterion import VarConLoss as VarConLoss
    from varcon.deploy.model import load as load
    from varcon.estimator import VarConClassifier as VarConClassifier
    from varcon.estimator import VarConEmbedding as VarConEmbedding
    from varcon.recipe import Recipe as Recipe
    from varcon.recipe import load_recipe as load_recipe
    from varcon.run import evaluate as evaluate
    from varcon.run import report as report
    from varcon.run import train as train

_HOMES = {
    "InputError": "varcon.core",
    "RunError": "varcon.core",
    "VarConClassifier": "varcon.estimator",
    "VarConEmbedding": "varcon.estimator",
    "VarConLoss": "varcon.criterion",
    "load": "varcon.deploy.model",
    "Recipe": "varcon.recipe",
    "load_recipe": "varcon.recipe",
    "train": "varcon.run",
    "evaluate": "varcon.run",
    "report": "varcon.run",
}
__version__ = "0.1.0"
__all__ = [
    "InputError",
    "Recipe",
    "RunError",
    "VarConClassifier",
    "VarConEmbedding",
    "VarConLoss",
    "evaluate",
    "load",
    "load_recipe",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'varcon' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
