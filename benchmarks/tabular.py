"""VarConClassifier on tables beside logistic regression and scikit-learn's MLPClassifier.

    python benchmarks/tabular.py

Five folds, the same for all; accuracy, log loss and the processor's seconds for a fit are means over them.
All have their default settings but for the steps that logistic regression may take, the others behind a
StandardScaler; VarConClassifier standardises by itself, and its defaults were chosen on other tables.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from varcon import VarConClassifier


def made(**settings: Any) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(flip_y=0.02, random_state=0, **settings)


TABLES = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits as vectors": lambda: load_digits(return_X_y=True),
    "made, 5 classes": lambda: made(n_samples=2000, n_features=30, n_informative=10, n_classes=5),
    "made, 80 : 15 : 5": lambda: made(
        n_samples=1200, n_informative=8, n_classes=3, weights=[0.8, 0.15, 0.05]
    ),
}
RIVALS = {
    "VarConClassifier": lambda: VarConClassifier(random_state=0),
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "MLPClassifier": lambda: make_pipeline(StandardScaler(), MLPClassifier(random_state=0)),
}


def judged(model: Any, X: np.ndarray, y: np.ndarray, folds: StratifiedKFold) -> np.ndarray:
    """Accuracy in percent, log loss and the processor's seconds for a fit, each a mean over the folds."""
    found = []
    for train, test in folds.split(X, y):
        began = time.process_time()
        model.fit(X[train], y[train])
        seconds = time.process_time() - began
        chances = model.predict_proba(X[test])
        accuracy = 100 * np.mean(model.classes_[chances.argmax(axis=1)] == y[test])
        found.append((accuracy, log_loss(y[test], chances, labels=model.classes_), seconds))
    return np.mean(found, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), metavar="NAME")
    tables = parser.parse_args().tables
    # Its 200 passes leave MLPClassifier a little short of its own criterion; its accuracy does not suffer.
    warnings.simplefilter("ignore", ConvergenceWarning)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    print(f"| accuracy % / log loss / CPU seconds | {' | '.join(RIVALS)} |")
    print(f"|---|{'---|' * len(RIVALS)}")
    found = {}
    for table in tables:
        X, y = TABLES[table]()
        found[table] = np.array([judged(make(), X, y, folds) for make in RIVALS.values()])
        print_row(f"{table} ({len(X):,} x {X.shape[1]})", found[table])
    for kind, begins in (("real", False), ("made", True)):
        some = [rows for table, rows in found.items() if table.startswith("made") == begins]
        if some:
            print_row(f"mean of the {kind} tables", np.mean(some, axis=0))
    print_row("mean", np.mean(list(found.values()), axis=0))


def print_row(title: str, rows: np.ndarray) -> None:
    cells = (f"{accuracy:.1f} / {loss:.3f} / {seconds:.2f}" for accuracy, loss, seconds in rows)
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
