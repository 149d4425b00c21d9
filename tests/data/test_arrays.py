from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from varcon.core import Data, InputError
from varcon.data import DataSettings, assemble, load
from varcon.data.arrays import any_images, load_digits, load_npz


def npz(file: Path, **changes: Any) -> str:
    """A good file of 6 + 4 images in 3 classes, but for the changes; None leaves an array out."""
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {
        "train_images": rng.integers(0, 256, (6, 5, 5, 3), dtype=np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": rng.integers(0, 256, (4, 5, 5, 3), dtype=np.uint8),
        "test_labels": np.array([2, 1, 0, 0]),
    }
    content = {key: value for key, value in {**content, **changes}.items() if value is not None}
    np.savez(file, **content)
    return str(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.npz"


# ---- digits ----


@pytest.fixture(scope="module")
def digits() -> Data:
    return load_digits()


def test_digits_nearest_neighbour_scores_as_known(digits: Data) -> None:
    # The grey levels as scikit-learn has them: rounding to uint8 decides a near tie (98.4 %).
    train, test = (
        (split.images[:, 0].flatten(1).double() * 16 / 255).round() for split in (digits.train, digits.test)
    )
    assert (len(train), len(test)) == (1297, 500)
    nearest = torch.cdist(test, train).argmin(1)
    correct = digits.train.labels[nearest] == digits.test.labels
    assert correct.double().mean().item() == pytest.approx(0.982)


def test_digits_lie_nowhere() -> None:
    with pytest.raises(InputError, match=r"data.path is ~/mine, but data.name is digits"):
        load_digits("~/mine")


def test_digits_keep_all_seventeen_levels(digits: Data) -> None:
    assert digits.train.images.unique().tolist() == [round(level * 255 / 16) for level in range(17)]
    assert torch.equal(digits.train.images[:, 0], digits.train.images[:, 2])
    assert digits.train.labels.dtype == torch.int64


def test_digits_test_split_holds_every_class_alike(digits: Data) -> None:
    counts = digits.test.labels.bincount()
    assert counts.min() >= 48 and counts.max() <= 51


# ---- .npz ----


def test_npz_round_trip(file: Path) -> None:
    data = load_npz(npz(file))
    raw = np.load(file)
    for split, part in ((data.train, "train"), (data.test, "test")):
        for i, image in enumerate(raw[f"{part}_images"]):
            for channel in range(3):
                assert torch.equal(split.images[i, channel], torch.from_numpy(image[:, :, channel]))
        assert split.labels.tolist() == raw[f"{part}_labels"].tolist()
        assert split.images.is_contiguous() and split.images.dtype == torch.uint8
    assert data.classes == ["0", "1", "2"]
    assert data.train.images.shape[-1] == 5


@pytest.mark.parametrize("shape", [(6, 5, 5), (6, 5, 5, 1)])
def test_npz_grey_is_repeated(file: Path, shape: tuple[int, ...]) -> None:
    grey = np.arange(150, dtype=np.uint8).reshape(shape)
    images = load_npz(npz(file, train_images=grey)).train.images
    for channel in range(3):
        assert np.array_equal(images[:, channel].numpy(), grey.reshape(6, 5, 5))


@pytest.mark.parametrize("names", [["ant", "bee", "çat"], [b"ant", b"bee", "çat".encode()]])
def test_npz_names_its_classes(file: Path, names: list[Any]) -> None:
    assert load_npz(npz(file, classes=np.array(names))).classes == ["ant", "bee", "çat"]


@pytest.mark.parametrize("dtype", ["uint8", "int16", ">i4", "uint64"])
def test_npz_takes_labels_of_any_integer_type(file: Path, dtype: str) -> None:
    data = load_npz(npz(file, train_labels=np.array([0, 1, 2, 2, 1, 0], dtype=dtype)))
    assert data.train.labels.dtype == torch.int64
    assert data.train.labels.tolist() == [0, 1, 2, 2, 1, 0]


def test_npz_is_brought_to_one_size(file: Path) -> None:
    path = npz(file, test_images=np.zeros((4, 7, 7, 3), np.uint8))
    with pytest.raises(InputError, match=r"5 pixels and test images of 7: set data\.image_size"):
        load_npz(path)
    data = load_npz(path, image_size=6)
    assert data.train.images.shape == (6, 3, 6, 6) and data.test.images.shape == (4, 3, 6, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"test_labels": None, "extra": np.zeros(1)},
            "no array 'test_labels', only .*train_images.*extra.*: it needs",
        ),
        (
            {"train_images": np.zeros((6, 5, 5, 3), np.float32)},
            "train_images of .* are float32 .* multiply values in 0..1 by 255",
        ),
        ({"test_images": np.zeros((4, 5, 5), np.int64)}, "test_images of .* are int64 .* cast"),
        ({"train_images": np.zeros((6, 3, 5, 5), np.uint8)}, r"\[6, 3, 5, 5\] .* put the channels last"),
        (
            {"train_images": np.zeros((6, 5, 5, 1, 1), np.uint8)},
            r"\[6, 5, 5, 1, 1\] and must have \[N, H, W\]",
        ),
        ({"test_images": np.zeros((4, 5, 6), np.uint8)}, "5 x 6 pixels and must be square: crop or pad"),
        ({"test_images": np.zeros((4, 0, 0), np.uint8)}, "0 x 0 pixels"),
        ({"train_labels": np.arange(5)}, "6 train_images but 5 train_labels: give each image one label"),
        ({"train_labels": np.zeros((6, 1), int)}, r"shape \[6, 1\]: give one whole number per image"),
        ({"train_labels": np.zeros(6)}, "float64 and must be whole numbers: cast"),
        ({"test_labels": np.array([0, 1, 3, 2])}, "test_labels of .* 3 at position 2, outside 0..2: number"),
        (
            {"train_labels": np.array([0, 1, 2, 0, -1, 2])},
            "train_labels of .* -1 at position 4, outside 0..2",
        ),
        ({"train_labels": np.array([0, 1, 2, 0, 10**12, 2])}, "1000000000000 at position 4, outside 0..5"),
        (
            {"train_labels": np.array([0, 1, 2, 0, 2**64 - 1, 2], dtype=np.uint64)},
            "18446744073709551615 at position 4, outside 0..5",
        ),
        ({"train_labels": np.array([1, 2, 3, 1, 2, 3])}, r"no training image of class 0 \(0\): number"),
        ({"classes": np.array(["ant", "bee"])}, "train_labels of .* 2 at position 2, outside 0..1"),
        ({"classes": np.array(list("abcd"))}, r"no training image of class 3 \(d\)"),
        ({"classes": np.array(["ant", "bee", "ant"])}, "names 2 classes 'ant': give each"),
        ({"classes": np.array(3)}, "classes of .* give a list of names"),
        ({"classes": np.array([], dtype="U1")}, "classes of .* give a list of names"),
        (
            {"train_images": np.zeros((0, 5, 5), np.uint8), "train_labels": np.zeros(0, int)},
            "train_labels of .* are empty: give at least one image",
        ),
        (
            {"test_images": np.zeros((0, 5, 5), np.uint8), "test_labels": np.zeros(0, int)},
            "test_labels of .* are empty",
        ),
        (
            {"test_labels": np.array([0, 1, 2, "a"], dtype=object)},
            "test_labels of .* cannot be read .*Object arrays.* without Python objects",
        ),
    ],
)
def test_npz_refuses(file: Path, changes: dict[str, Any], message: str) -> None:
    path = npz(file, **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_npz(path)
    assert path in str(caught.value)


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_npz_without_test_arrays_holds_out_training_images(file: Path, kind: str) -> None:
    make = npz if kind == "images" else vectors
    path = make(file, test_images=None, test_labels=None)
    data = load(DataSettings("npz", path, held_out=0.4))
    assert (len(data.train), len(data.test)) == (3, 3)
    assert sorted(data.test.labels.tolist()) == [0, 1, 2]
    with pytest.raises(
        InputError, match=r"no array 'test_images': add it and test_labels, or set data\.held_out"
    ):
        load(DataSettings("npz", path))


def test_npz_missing(file: Path) -> None:
    for path in (file, file.parent):
        with pytest.raises(InputError, match=r"cannot be opened \(.*\): correct data\.path") as caught:
            load_npz(str(path))
        assert str(caught.value).startswith(f"{path} ")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut short"])
def test_npz_that_is_none(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"data\.npz is not a readable \.npz file: write it anew"):
        load_npz(str(file))


def test_npz_that_is_a_single_array(file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(InputError, match="holds a single array: write all of train_images"):
        load_npz(str(file))


def test_npz_damaged_anywhere_is_refused_or_harmless(file: Path) -> None:
    npz(file)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        file.write_bytes(damaged)
        try:
            assert load_npz(str(file)).train.images.shape == (6, 3, 5, 5)
        except InputError:
            refused += 1
    assert refused > 50


# ---- the shared steps ----


def test_memory_is_asked_for_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "available_memory", lambda: 30_000_000)
    with pytest.raises(
        InputError, match=r"need 72\.00 GB .* 0\.03 GB are free: .*image_size to 1290 or less"
    ):
        load_npz(npz(file), image_size=63246)


# ---- vectors ----


def vectors(file: Path, **changes: Any) -> str:
    rng = np.random.default_rng(0)
    good = {"train_images": rng.normal(3, 2, (6, 4)), "test_images": rng.normal(3, 2, (4, 4))}
    return npz(file, **{**good, **changes})


def test_arrays_of_two_dimensions_are_vectors(file: Path) -> None:
    data = load_npz(vectors(file))
    with np.load(file) as stored:
        train, test = stored["train_images"], stored["test_images"]
    assert data.train.images.dtype == torch.float32
    np.testing.assert_allclose(data.train.images.numpy(), train, rtol=1e-6)
    np.testing.assert_allclose(data.test.images.numpy(), test, rtol=1e-6)
    np.testing.assert_allclose(data.mean, train.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(data.std, train.std(axis=0), rtol=1e-6)


def test_constant_features_are_left_at_zero(file: Path) -> None:
    train = np.random.default_rng(0).integers(0, 9, (6, 3))
    train[:, 1] = 7
    data = load_npz(vectors(file, train_images=train, test_images=train[:4]))
    assert data.std[1] == 1
    assert data.mean[1] == 7
    data = load_npz(vectors(file, train_images=np.full((6, 1), 0.1), test_images=np.zeros((4, 1))))
    assert data.std == (1.0,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_images": np.zeros((4, 5))}, "training vectors of 4 features and test vectors of 5"),
        ({"test_images": np.zeros((4, 5, 5))}, r"test_images .* have the shape \[4, 5, 5\]: give vectors"),
        ({"train_images": np.full((6, 4), np.nan)}, "train_images .* hold NaN, infinity or what float32"),
        ({"train_images": np.full((6, 4), 1e300)}, "train_images .* hold NaN, infinity or what float32"),
        ({"train_images": np.full((6, 4), "a")}, "train_images .* give numbers"),
        ({"train_images": np.zeros((5, 4))}, "5 train_images but 6 train_labels"),
        ({"train_images": np.zeros((6, 0))}, r"have the shape \[6, 0\]"),
    ],
)
def test_vectors_it_cannot_take(file: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_npz(vectors(file, **changes))


def test_vectors_have_no_size(file: Path) -> None:
    with pytest.raises(InputError, match=r"holds vectors, and images of 8 pixels .* leave data\.image_"):
        load_npz(vectors(file), image_size=8)


# ---- images in any layout ----


def test_every_layout_gives_the_same_images() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    expected = torch.from_numpy(colour.transpose(0, 3, 1, 2).copy())
    assert torch.equal(any_images(colour), expected)
    assert torch.equal(any_images(colour.transpose(0, 3, 1, 2)), expected)
    grey = colour[..., 0]
    for layout in (grey, grey[..., None], grey[:, None]):
        assert torch.equal(any_images(layout), expected[:, :1].expand(-1, 3, -1, -1))
