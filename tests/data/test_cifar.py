"""The files are written here in the official layout; `python2` lays out the opcodes that Python 2 wrote."""

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from varcon.core import Data, InputError
from varcon.data.cifar import load_cifar10, load_cifar100

Record = dict[str, Any]


def python3(record: Record, protocol: int = 2) -> bytes:
    """As Python 3 writes what it read with encoding='bytes'."""

    def as_bytes(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode()
        return [as_bytes(item) for item in value] if isinstance(value, list) else value

    return pickle.dumps({as_bytes(key): as_bytes(value) for key, value in record.items()}, protocol)


def python2(value: Any) -> bytes:
    """As Python 2 wrote the official files: protocol 2, every string a string of bytes."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, dict):
        items = b"".join(_python2(key) + _python2(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(_python2(item) for item in value) + b"e"
    if isinstance(value, str):
        return _python2(value.encode("latin1"))
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    assert isinstance(value, np.ndarray)
    blank = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _python2("b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + _python2("u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + _python2("|") + b"NNN" + _python2(-1) + _python2(-1) + b"K\x00tb"
    shape = _python2(value.shape[0]) + _python2(value.shape[1]) + b"\x86"
    return blank + b"(K\x01" + shape + dtype + b"\x89" + _python2(value.tobytes()) + b"tb"


def record(count: int, num_classes: int, key: str, seed: int) -> Record:
    rng = np.random.default_rng(seed)
    return {
        "batch_label": "",
        key: [int(label) for label in np.arange(count) % num_classes],
        "data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
    }


def cifar10(folder: Path, write: Any = python3) -> dict[str, Record]:
    files: dict[str, Record] = {f"data_batch_{i}": record(12, 10, "labels", i) for i in range(1, 6)}
    files["test_batch"] = record(7, 10, "labels", 0)
    files["batches.meta"] = {"label_names": [f"name {i}" for i in range(10)], "num_vis": 3072}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(write(content))
    return files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cifar10(tmp_path / "cifar-10-batches-py")
    return tmp_path / "cifar-10-batches-py"


def assert_cifar10(data: Data, files: dict[str, Record]) -> None:
    for i in range(60):
        batch = files[f"data_batch_{i // 12 + 1}"]
        for channel, row, column in ((0, 0, 0), (1, 5, 31), (2, 31, 2)):
            value = batch["data"][i % 12, 1024 * channel + 32 * row + column]
            assert data.train.images[i, channel, row, column] == value
        assert data.train.labels[i] == batch["labels"][i % 12]
    assert torch.equal(data.test.images.flatten(1), torch.from_numpy(files["test_batch"]["data"]))
    assert data.test.labels.tolist() == files["test_batch"]["labels"]
    assert data.classes == [f"name {i}" for i in range(10)]
    assert data.train.images.is_contiguous() and data.train.images.dtype == torch.uint8
    assert data.mean == (0.4914, 0.4822, 0.4465) and data.std == (0.2023, 0.1994, 0.2010)


@pytest.mark.parametrize(
    "write",
    [
        python2,
        python3,
        pickle.dumps,
        lambda record: pickle.dumps(record, 2),
        lambda record: python3(record, 4),
    ],
)
@pytest.mark.parametrize("given", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, write: Any, given: str) -> None:
    files = cifar10(tmp_path / "cifar-10-batches-py", write)
    assert_cifar10(load_cifar10(str(tmp_path / given)), files)


def test_arrays_of_fortran_order(folder: Path) -> None:
    files = {}
    for file in folder.glob("*_batch*"):
        content = record(12, 10, "labels", 9)
        file.write_bytes(pickle.dumps({**content, "data": np.asfortranarray(content["data"])}, 2))
        files[file.name] = content
    assert_cifar10(load_cifar10(str(folder)), files)


def test_old_and_new_names_of_numpy(folder: Path) -> None:
    content = (folder / "test_batch").read_bytes()
    old = content.replace(b"numpy._core.", b"numpy.core.")
    new = old.replace(b"numpy.core.", b"numpy._core.")
    images = []
    for spelling in (old, new):
        (folder / "test_batch").write_bytes(spelling)
        images.append(load_cifar10(str(folder)).test.images)
    assert old != new
    assert torch.equal(*images)


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    train, test = record(120, 100, "fine_labels", 1), record(30, 100, "fine_labels", 2)
    for name, content in {"train": train, "test": test}.items():
        (folder / name).write_bytes(python2({**content, "coarse_labels": [0] * len(content["data"])}))
    names = {"fine_label_names": [f"fine {i}" for i in range(100)], "coarse_label_names": ["coarse"] * 20}
    (folder / "meta").write_bytes(python2(names))
    data = load_cifar100(str(tmp_path))
    assert data.train.labels.tolist() == train["fine_labels"]
    assert torch.equal(data.train.images.flatten(1), torch.from_numpy(train["data"]))
    assert data.classes[42] == "fine 42"
    assert data.mean == (0.5071, 0.4867, 0.4408) and data.std == (0.2675, 0.2565, 0.2761)
    assert load_cifar100(str(tmp_path), image_size=16).test.images.shape == (30, 3, 16, 16)


# ---- pickles that would run something ----


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def shell(marker: Path) -> Call:
    return Call(os.system, f"touch '{marker}'")


def evaluate(marker: Path) -> Call:
    return Call(eval, f"__import__('pathlib').Path({str(marker)!r}).touch()")


def objects(marker: Path) -> np.ndarray:
    array = np.empty(1, dtype=object)
    array[0] = shell(marker)
    return array


def numpy_load(marker: Path) -> Call:
    file = marker.with_suffix(".npy")
    np.save(file, objects(marker), allow_pickle=True)
    return Call(np.load, str(file), None, True)


def forged_dtype(marker: Path) -> bytes:
    """Numbers that call themselves objects: numpy's own reader may take them for addresses."""
    return python2({"data": np.zeros((1, 3072), np.uint8), "labels": [0]}).replace(b"u1", b"O8")


ATTACKS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "shell": (lambda marker: pickle.dumps(shell(marker), 2), r"asks for \w+\.system"),
    "shell in record": (
        lambda marker: pickle.dumps({"data": shell(marker), "labels": [0]}, 2),
        r"asks for \w+\.system",
    ),
    "eval": (lambda marker: pickle.dumps(evaluate(marker), 2), r"asks for __builtin__\.eval"),
    "eval, protocol 4": (lambda marker: pickle.dumps(evaluate(marker), 4), r"asks for builtins\.eval"),
    "numpy.load": (lambda marker: pickle.dumps(numpy_load(marker), 2), r"asks for numpy\.load"),
    "object array": (
        lambda marker: pickle.dumps({"data": objects(marker), "labels": [0]}, 2),
        "arrays of type 'O8' are not admitted",
    ),
    "forged dtype": (forged_dtype, "arrays of type 'O8' are not admitted"),
    "codec": (lambda marker: b"\x80\x02c_codecs\nlookup\n.", r"asks for _codecs\.lookup"),
    "dotted name": (
        lambda marker: b"\x80\x04\x8c\x05numpy\x8c\x09os.system\x93.",
        r"asks for numpy\.os\.system",
    ),
    "persistent id": (lambda marker: b"\x80\x02Pabc\n.", "cannot be unpickled"),
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_no_pickle_runs_anything(folder: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "it ran"
    make, message = ATTACKS[name]
    (folder / "data_batch_1").write_bytes(make(marker))
    with pytest.raises(InputError, match=message) as caught:
        load_cifar10(str(folder))
    assert not marker.exists()
    assert f"{folder / 'data_batch_1'} " in str(caught.value)
    assert f"remove {folder} and fetch it again with `varcon download cifar10 --to " in str(caught.value)


@pytest.mark.parametrize("name", ["shell", "shell in record", "eval", "numpy.load", "object array"])
def test_the_attacks_work_on_a_plain_unpickler(tmp_path: Path, name: str) -> None:
    """Otherwise the absence of the marker above would prove nothing."""
    marker = tmp_path / "it ran"
    pickle.loads(ATTACKS[name][0](marker))
    assert marker.exists()


# ---- damaged and missing files ----


def good(**changes: Any) -> Record:
    return {**record(12, 10, "labels", 1), **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be unpickled"),
        (b"<html>not found</html>", "cannot be unpickled"),
        (python3(good())[:20000], "cannot be unpickled"),
        (python3({"labels": [0]}), "has no 'data'"),
        (python3({"data": np.zeros((1, 3072), np.uint8)}), "has no 'labels'"),
        (pickle.dumps([1, 2], 2), "holds no dictionary"),
        (python3(good(data=[1, 2])), "does not hold its images as an array"),
        (python3(good(data=np.zeros((12, 3072)))), r"float64 \[12, 3072\] instead of uint8 \[N, 3072\]"),
        (python3(good(data=np.zeros((12, 784), np.uint8))), r"uint8 \[12, 784\] instead of"),
        (python3(good(labels=[0] * 11)), "has 12 images but 11 labels"),
        (python3(good(labels=["0"] * 12)), "labels that are not a list of whole numbers"),
    ],
)
def test_damaged_batch(folder: Path, content: bytes, message: str) -> None:
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_cifar10(str(folder))
    assert str(folder / "data_batch_3") in str(caught.value)
    assert "fetch it again with `varcon download cifar10 --to " in str(caught.value)


@pytest.mark.parametrize("label", [-1, 10, 2**70])
def test_label_out_of_range(folder: Path, label: int) -> None:
    (folder / "test_batch").write_bytes(python3(good(labels=[0, 1, label] + [0] * 9)))
    with pytest.raises(InputError, match=f"labels of .*test_batch hold {label} at position 2, outside 0..9"):
        load_cifar10(str(folder))


def test_class_without_training_images(folder: Path) -> None:
    for i in range(1, 6):
        (folder / f"data_batch_{i}").write_bytes(python3(good(labels=[0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0])))
    with pytest.raises(InputError, match=r"no training image of class 9 \(name 9\)"):
        load_cifar10(str(folder))


def test_wrong_number_of_names(folder: Path) -> None:
    (folder / "batches.meta").write_bytes(python3({"label_names": ["one"]}))
    with pytest.raises(InputError, match=r"batches\.meta has no list of 10 label_names"):
        load_cifar10(str(folder))


def test_missing_batch(folder: Path) -> None:
    (folder / "data_batch_4").unlink()
    again = r"data_batch_4 cannot be opened .* fetch it again with `varcon download cifar10"
    with pytest.raises(InputError, match=again):
        load_cifar10(str(folder))


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither .*: fetch it with `varcon download cifar10") as caught:
        load_cifar10(str(tmp_path))
    assert str(tmp_path / "cifar-10-batches-py" / "batches.meta") in str(caught.value)
    with pytest.raises(
        InputError, match=r"`varcon download cifar100 --to '.*/my data'`, or unpack the archive"
    ):
        load_cifar100(str(tmp_path / "my data"))
