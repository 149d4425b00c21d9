"""What arrays must look like to be drawn, so that a broken file is named instead."""

from __future__ import annotations

from fnmatch import fnmatch

import numpy as np

# Of each finding's arrays: what the values are, and the sizes. Within a finding a letter stands for one size.
RELIABILITY = {"*bin_confidence": "share B", "*bin_accuracy": "share B", "*bin_images": "index B"}
PROBE = {"accuracy": "finite E"}
SHAPES: dict[str, dict[str, str]] = {
    "knn": {"confusion": "index C C", "predictions": "index N"},
    "pixels": {"confusion": "index C C"},
    "linear": PROBE,
    "linear-augmented": PROBE,
    "finetune*": {"accuracy": "finite E", "map": "number E", "loss": "number E"},
    "map2d": {
        "points": "finite N 2",
        "labels": "index N",
        "predictions": "index N",
        "chosen": "index N",
    },
    "maps": {"points": "finite S N 2", "labels": "index N", "epochs": "finite S"},
    "clustering": {"class_linkage": "tree C-1 4", "classes": "index C"},
    "similarity": {
        "similarity": "finite C C",
        "classes": "index C",
        "order": "order C",
        "pairs": "index P 2",
        "pair_similarity": "finite P",
        "superclasses": "index C",
    },
    "temperature": {
        "density": "finite B",
        "edges": "finite B+1",
        "hardest_labels": "index H",
        "hardest_rivals": "index H",
        "hardest_confidence": "finite H",
        "hardest_pictures": "pixels K S T 3",
    },
    "calibration": RELIABILITY,
    "classifier-calibration": RELIABILITY,
    "outliers": {"*@*": "finite _"},
    "robustness": {"accuracy": "finite C S", "corruptions": "text C", "severities": "index S"},
    "transfer": {
        "names": "text T",
        "measures": "text T",
        "values": "number T",
        "top1": "number T",
        "mean_per_class": "number T",
    },
}


def fault(finding: str, arrays: dict[str, np.ndarray]) -> str:
    """What is wrong with a finding's arrays, if anything."""
    expected = next((shapes for name, shapes in SHAPES.items() if fnmatch(finding, name)), {})
    sizes: dict[str, int] = {}
    for pattern, words in expected.items():
        for name in (name for name in arrays if fnmatch(name, pattern)):
            kind, *wanted = words.split()
            if not _fits(arrays[name].shape, wanted, sizes):
                found = " x ".join(map(str, arrays[name].shape)) or "no size"
                known = [f"{letter} = {size}" for letter, size in sizes.items() if letter in "".join(wanted)]
                told = f" ({', '.join(known)})" if known else ""
                return f"{name} has {found} values and should have {' x '.join(wanted)}{told}"
            if not _is(kind, arrays[name]):
                return f"{name} holds other values than {KINDS[kind]}"
    return ""


KINDS = {
    "number": "numbers",
    "finite": "finite numbers",
    "share": "numbers from 0 to 1",
    "index": "whole numbers from 0 on",
    "pixels": "bytes",
    "text": "text",
    "order": "each place once",
    "tree": "a tree of merges",
}


def _fits(shape: tuple[int, ...], wanted: list[str], sizes: dict[str, int]) -> bool:
    if len(shape) != len(wanted):
        return False
    for size, word in zip(shape, wanted, strict=True):
        letter, more = word[0], int(word[1:] or 0) if not word.isdecimal() else 0
        expected = int(word) if word.isdecimal() else sizes.setdefault(letter, size - more) + more
        if letter != "_" and size != expected:
            return False
    return True


def _is(kind: str, values: np.ndarray) -> bool:
    if kind == "text":
        return values.dtype.kind == "U"
    if kind == "pixels":
        return values.dtype == np.uint8
    if kind in ("index", "order"):
        whole = values.dtype.kind in "iu" and bool((values >= 0).all())
        return whole and (kind == "index" or bool((np.sort(values) == np.arange(len(values))).all()))
    if values.dtype.kind not in "fiu":
        return False
    if kind == "tree":
        from scipy.cluster.hierarchy import is_valid_linkage

        return bool(np.isfinite(values).all()) and is_valid_linkage(values.astype(float))
    if kind == "share":
        return not ((values < 0) | (values > 1)).any()  # NaN of an empty bin is neither
    return kind == "number" or bool(np.isfinite(values).all())
