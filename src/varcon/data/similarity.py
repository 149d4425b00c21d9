"""How alike classes are: from a file, or from what their names mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from varcon.core import InputError

TEXT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def class_similarity(source: str, names: list[str]) -> Tensor:
    """[C, C] with 1 on the diagonal: "identity", "names" (by a text encoder), or the path of a .npy file."""
    if source == "identity":
        return torch.eye(len(names))
    matrix = of_names(names) if source == "names" else of_file(Path(source))
    if matrix.shape != (len(names), len(names)):
        raise InputError(
            f"the class similarity {source} is {' x '.join(map(str, matrix.shape))} and there are "
            f"{len(names)} classes; give one row and one column a class"
        )
    if not np.isfinite(matrix).all():
        raise InputError(f"the class similarity {source} holds NaN or infinity; write finite numbers")
    return torch.from_numpy(matrix.astype(np.float32))


def of_file(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(
            f"there is no class similarity {path}; name a .npy file, 'names' or 'identity'"
        ) from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is not a readable .npy array; write it with numpy.save") from None


def of_names(names: list[str]) -> np.ndarray:
    """Cosines of the names' text embeddings, as X-CLR has them."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError(
            "similarity = 'names' needs a text encoder; install it with: pip install 'varcon[text]'"
        ) from None
    sentences = [f"a photo of a {name.replace('_', ' ')}" for name in names]
    vectors = SentenceTransformer(TEXT_MODEL).encode(sentences, normalize_embeddings=True)
    return np.asarray(vectors) @ np.asarray(vectors).T
