import sys
import types

import numpy as np
import pytest
import torch

from varcon.core import InputError
from varcon.data.similarity import SUPERCLASSES, class_similarity

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
    np.savez(tmp_path / "several.npz", a=np.eye(3), b=np.eye(3))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "several.npz").read_bytes()[:200])
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "words.npy", np.full((3, 3), "alike"))
    np.save(tmp_path / "complex.npy", np.eye(3) * 1j)
    for name in ("several.npz", "cut.npz", "text.npy", "words.npy", "complex.npy"):
        with pytest.raises(InputError, match=rf"{name} is not a readable \.npy array of numbers"):
            class_similarity(str(tmp_path / name), NAMES)


@pytest.mark.parametrize(
    "matrix",
    [
        [[-5, 3, 0], [9, 0, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 0.9, 0], [0, 0, 1]],  # a class unlike itself
        [[1, 2, 0], [0, 1, 0], [0, 0, 1]],  # and one more like another
        [[1, -1e39, 0], [0, 1, 0], [0, 0, 1]],  # finite in float64 only
    ],
)
def test_tables_that_are_no_cosines(tmp_path, matrix):
    np.save(tmp_path / "classes.npy", np.array(matrix, dtype=np.float64))
    with pytest.raises(InputError, match=r"from -1 to 1, with 1 on the diagonal"):
        class_similarity(str(tmp_path / "classes.npy"), NAMES)


def test_whole_numbers_and_half_precision_serve(tmp_path):
    np.save(tmp_path / "whole.npy", np.eye(3, dtype=np.int64))
    assert torch.equal(class_similarity(str(tmp_path / "whole.npy"), NAMES), torch.eye(3))
    rounded = np.array([[1, 0.3, 0], [0.3, 1.0005, 0], [0, 0, 1]], dtype=np.float16)
    np.save(tmp_path / "half.npy", rounded)
    assert class_similarity(str(tmp_path / "half.npy"), NAMES).dtype == torch.float32


def test_superclasses_of_cifar100():
    names = [name for line in SUPERCLASSES.split("\n") for name in line.split()]
    assert len(set(names)) == 100
    matrix = class_similarity("superclasses", sorted(names))
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().tolist() == [1.0] * 100
    assert ((matrix == 0.5).sum(1) == 4).all()
    assert ((matrix == 0).sum(1) == 95).all()
    few = class_similarity("superclasses", ["bus", "rose", "train"])  # whatever the order
    assert few.tolist() == [[1, 0, 0.5], [0, 1, 0], [0.5, 0, 1]]
    with pytest.raises(InputError, match=r"knows CIFAR-100's classes and not 'cat'"):
        class_similarity("superclasses", NAMES)


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


def test_a_text_encoder_that_cannot_be_downloaded(monkeypatch):
    def unreachable(model):
        raise OSError("We couldn't connect to 'https://huggingface.co'\nCheck your connection")

    fake = types.SimpleNamespace(SentenceTransformer=unreachable)
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    with pytest.raises(InputError, match=r"downloaded \(We couldn't connect .*co'\); .* or name a \.npy"):
        class_similarity("names", NAMES)
