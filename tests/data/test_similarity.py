import sys
import types

import numpy as np
import pytest
import torch

from varcon.core import InputError
from varcon.data.similarity import class_similarity

NAMES = ["cat", "sea_lion", "truck"]


def test_from_a_file(tmp_path):
    matrix = np.array([[1, 0.5, 0], [0.5, 1, 0.1], [0, 0.1, 1]])
    np.save(tmp_path / "classes.npy", matrix)
    torch.testing.assert_close(
        class_similarity(str(tmp_path / "classes.npy"), NAMES), torch.tensor(matrix).float()
    )
    assert torch.equal(class_similarity("identity", NAMES), torch.eye(3))


def test_files_that_do_not_serve(tmp_path):
    with pytest.raises(InputError, match=r"there is no class similarity .*none\.npy"):
        class_similarity(str(tmp_path / "none.npy"), NAMES)
    np.save(tmp_path / "two.npy", np.eye(2))
    with pytest.raises(InputError, match="is 2 x 2 and there are 3 classes"):
        class_similarity(str(tmp_path / "two.npy"), NAMES)
    np.save(tmp_path / "nan.npy", np.full((3, 3), np.nan))
    with pytest.raises(InputError, match="holds NaN"):
        class_similarity(str(tmp_path / "nan.npy"), NAMES)
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(InputError, match=r"is not a readable \.npy array"):
        class_similarity(str(tmp_path / "text.npy"), NAMES)


def test_from_names_by_a_text_encoder(monkeypatch):
    """A stand-in for the text encoder, which would be downloaded: it tells what it was asked."""
    asked = []

    class Encoder:
        def __init__(self, model):
            asked.append(model)

        def encode(self, sentences, normalize_embeddings):
            asked.extend(sentences)
            assert normalize_embeddings
            return np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])

    fake = types.SimpleNamespace(SentenceTransformer=Encoder)
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    expected = torch.tensor([[1, 0.6, 0], [0.6, 1, 0.8], [0, 0.8, 1]])
    torch.testing.assert_close(class_similarity("names", NAMES), expected)
    assert asked[1:] == ["a photo of a cat", "a photo of a sea lion", "a photo of a truck"]
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"pip install 'varcon\[text\]'"):
        class_similarity("names", NAMES)
