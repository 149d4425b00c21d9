"""CIFAR-10 and CIFAR-100 as their authors publish them: folders of pickled dictionaries."""

from __future__ import annotations

import pickle
import re
import shlex
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from varcon.core import Data, InputError, OnProgress, Split
from varcon.data.assemble import assemble, check_labels, given_path, to_labels

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def load_cifar10(path: str, image_size: int = 0, progress: OnProgress | None = None) -> Data:
    folder = find_folder(path, "cifar-10-batches-py", "batches.meta", "cifar10")
    classes = read_classes(folder / "batches.meta", "label_names", 10)
    train = read_split([folder / f"data_batch_{i}" for i in range(1, 6)], "labels", len(classes))
    test = read_split([folder / "test_batch"], "labels", len(classes))
    mean_and_std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    return assemble(train, test, classes, image_size, str(folder), mean_and_std)


def load_cifar100(path: str, image_size: int = 0, progress: OnProgress | None = None) -> Data:
    folder = find_folder(path, "cifar-100-python", "meta", "cifar100")
    classes = read_classes(folder / "meta", "fine_label_names", 100)
    train = read_split([folder / "train"], "fine_labels", len(classes))
    test = read_split([folder / "test"], "fine_labels", len(classes))
    mean_and_std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    return assemble(train, test, classes, image_size, str(folder), mean_and_std)


def find_folder(path: str, name: str, meta: str, data_set: str) -> Path:
    parent = given_path(path, f"the folder {name}, or the one that holds it")
    for folder in (parent / name, parent):
        if (folder / meta).is_file():
            return folder
    raise InputError(
        f"there is neither {parent / name / meta} nor {parent / meta}: "
        f"fetch it with `{fetching(data_set, parent)}`, or unpack the archive of {PAGE} there"
    )


def read_classes(file: Path, key: str, count: int) -> list[str]:
    names = read_record(file).get(key)
    if not isinstance(names, list) or len(names) != count:
        raise damaged(file, f"has no list of {count} {key}")
    return [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names]


def read_split(files: list[Path], label_key: str, num_classes: int) -> Split:
    parts = [read_part(file, label_key, num_classes) for file in files]
    pixels = np.concatenate([pixels for pixels, _ in parts])  # [N, 3072]
    labels = np.concatenate([labels for _, labels in parts])
    return Split(torch.from_numpy(np.ascontiguousarray(pixels)).view(-1, 3, 32, 32), to_labels(labels))


def read_part(file: Path, label_key: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    record = read_record(file)
    for key in ("data", label_key):
        if key not in record:
            raise damaged(file, f"has no {key!r}")
    pixels, labels = record["data"], record[label_key]
    if not isinstance(pixels, np.ndarray):
        raise damaged(file, "does not hold its images as an array")
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (3 * 32 * 32,):
        raise damaged(file, f"has images of {pixels.dtype} {list(pixels.shape)} instead of uint8 [N, 3072]")
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise damaged(file, f"has {label_key} that are not a list of whole numbers")
    if len(labels) != len(pixels):
        raise damaged(file, f"has {len(pixels)} images but {len(labels)} {label_key}")
    values = np.array(labels, dtype=object)  # of any size until they are known to be in range
    check_labels(values, num_classes, f"{label_key} of {file}")
    return pixels, values.astype(np.int64)


def read_record(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            record = PlainUnpickler(stream, file).load()
    except OSError as error:
        raise InputError(f"{file} cannot be opened ({error.strerror}): {anew(file)}") from error
    except InputError:
        raise
    except Exception as error:  # pickle raises a dozen kinds of errors on damaged files
        raise damaged(file, f"cannot be unpickled ({error})") from error
    if not isinstance(record, dict):
        raise damaged(file, "holds no dictionary")
    # Files written by Python 2 give str keys, those written by Python 3 often bytes.
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: (
            value.array if isinstance(value, PickledArray) else value
        )
        for key, value in record.items()
    }


def fetching(data_set: str, to: Path) -> str:
    return shlex.join(["varcon", "download", data_set, "--to", str(to)])


def anew(file: Path) -> str:
    command = fetching("cifar10" if "batch" in file.name else "cifar100", file.parent.parent)
    return f"remove {file.parent} and fetch it again with `{command}`, or from {PAGE}"


def damaged(file: Path, what: str) -> InputError:
    return InputError(f"{file} {what}; it is not a CIFAR file and was not loaded: {anew(file)}")


class PlainUnpickler(pickle.Unpickler):
    """Admits arrays, lists, dictionaries, strings, bytes and numbers.

    A pickle is a program and may name any function to be called. This reader knows five names and
    answers each with a stand-in of ours; not even numpy's own functions are within its reach, because
    they trust their arguments (a forged array of objects reads memory at will).
    """

    def __init__(self, stream: BinaryIO, file: Path) -> None:
        super().__init__(stream, encoding="latin1")  # for the strings of Python 2
        self.file = file

    def find_class(self, module: str, name: str) -> Any:
        # Numpy 2 renamed its core; both spellings are in circulation.
        wanted = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if wanted not in STAND_INS:
            raise damaged(self.file, f"asks for {module}.{name}")
        return STAND_INS[wanted]


class PickledType:
    """What a pickle says of a numpy dtype: ('u1', align, copy), later (version, byte order, ...)."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch("[biuf][1248]", code):
            raise ValueError(f"arrays of type {code!r} are not admitted")
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|"):
            raise ValueError(f"unknown byte order {state[1]!r}")
        self.code = state[1] + self.code


class PickledArray:
    """What a pickle says of a numpy array: nothing at first, later (version, shape, dtype, order, bytes)."""

    def __init__(self, *_: object) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if isinstance(content, str):  # the bytes of Python 2
            content = content.encode("latin1")
        self.array = np.frombuffer(content, dtype.code).reshape(shape, order="F" if fortran else "C")


def latin1(text: str = "", encoding: str = "latin1") -> bytes:
    """How protocol 2, which has no bytes, spells them; whatever the encoding asked for, this one is used."""
    return text.encode("latin1")


STAND_INS: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": PickledArray,
    "numpy.ndarray": None,  # only ever an argument of _reconstruct
    "numpy.dtype": PickledType,
    "_codecs.encode": latin1,
    "__builtin__.bytes": latin1,  # the empty bytes
}
