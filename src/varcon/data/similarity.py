"""How alike classes are: from a file, from what their names mean, or by CIFAR-100's superclasses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from varcon.core import InputError

TEXT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
TOLERANCE = 1e-3  # rounding takes cosines past 1, in half precision by this much
WITHIN_SUPERCLASS = 0.5  # half way between other classes and the same one, for want of a measure
# The 20 superclasses of CIFAR-100's 100 classes, as its coarse labels have them.
SUPERCLASSES = """
    beaver dolphin otter seal whale
    aquarium_fish flatfish ray shark trout
    orchid poppy rose sunflower tulip
    bottle bowl can cup plate
    apple mushroom orange pear sweet_pepper
    clock keyboard lamp telephone television
    bed chair couch table wardrobe
    bee beetle butterfly caterpillar cockroach
    bear leopard lion tiger wolf
    bridge castle house road skyscraper
    cloud forest mountain plain sea
    camel cattle chimpanzee elephant kangaroo
    fox porcupine possum raccoon skunk
    crab lobster snail spider worm
    baby boy girl man woman
    crocodile dinosaur lizard snake turtle
    hamster mouse rabbit shrew squirrel
    maple_tree oak_tree palm_tree pine_tree willow_tree
    bicycle bus motorcycle pickup_truck train
    lawn_mower rocket streetcar tank tractor
"""


def class_similarity(source: str, names: list[str]) -> Tensor:
    """[C, C] in [-1, 1] with 1 on the diagonal.

    `source` is "identity", "names" (by a text encoder), "superclasses" (CIFAR-100's), or a .npy file's path.
    """
    if source == "identity":
        return torch.eye(len(names))
    if source == "superclasses":
        return of_superclasses(names)
    matrix = of_names(names) if source == "names" else of_file(Path(source))
    if matrix.shape != (len(names), len(names)):
        raise InputError(
            f"the class similarity {source} is {' x '.join(map(str, matrix.shape))} and there are "
            f"{len(names)} classes; give one row and one column a class"
        )
    if not np.isfinite(matrix).all():
        raise InputError(f"the class similarity {source} holds NaN or infinity; write finite numbers")
    if abs(matrix).max() > 1 + TOLERANCE or abs(matrix.diagonal() - 1).max() > TOLERANCE:
        raise InputError(
            f"the class similarity {source} is not a table of cosines; write numbers from -1 to 1, with 1 "
            "on the diagonal, where a class meets itself"
        )
    return torch.from_numpy(matrix.astype(np.float32))


def of_file(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:  # of one array only: numpy.load would read archives too
            matrix = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(
            f"there is no class similarity {path}; name a .npy file, 'names', 'superclasses' or 'identity'"
        ) from None
    except (OSError, ValueError, EOFError):
        matrix = None
    if matrix is None or matrix.dtype.kind not in "biuf":
        raise InputError(f"{path} is not a readable .npy array of numbers; write it with numpy.save")
    return matrix.astype(np.float64)


def of_superclasses(names: list[str]) -> Tensor:
    group = {name: number for number, line in enumerate(SUPERCLASSES.split("\n")) for name in line.split()}
    unknown = [name for name in names if name not in group]
    if unknown:
        raise InputError(
            f"similarity = 'superclasses' knows CIFAR-100's classes and not {unknown[0]!r}; "
            "name a .npy file, 'names' or 'identity'"
        )
    groups = torch.tensor([group[name] for name in names])
    same = (groups[:, None] == groups).float()
    return (WITHIN_SUPERCLASS * same).fill_diagonal_(1.0)


def of_names(names: list[str]) -> np.ndarray:
    """Cosines of the names' text embeddings, as X-CLR has them."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError(
            "similarity = 'names' needs a text encoder; install it with: pip install 'varcon[text]'"
        ) from None
    try:
        encoder = SentenceTransformer(TEXT_MODEL)
    except OSError as error:  # neither on this disk nor to be reached
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"similarity = 'names' needs the text encoder {TEXT_MODEL}, which is not on this machine and "
            f"cannot be downloaded ({reason}); connect it to the internet, or name a .npy file, "
            "'superclasses' or 'identity'"
        ) from None
    sentences = [f"a photo of a {name.replace('_', ' ')}" for name in names]
    vectors = encoder.encode(sentences, normalize_embeddings=True)
    return np.asarray(vectors) @ np.asarray(vectors).T
