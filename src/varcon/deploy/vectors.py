"""Vectors: written row by row to files that may exceed memory, and searched, exactly, where they lie."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch

from varcon.core import InputError
from varcon.deploy.keeping import nameless_file
from varcon.evaluations.frozen import row_blocks
from varcon.files import naming, replacing

Append = Callable[[np.ndarray], None]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1; zero stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def nearest(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and row [Q, k] of each query's nearest vectors, the nearest first; all are of length 1.

    Every vector is looked at. They may be mapped from a file: only the queries' cosines are held in memory.
    """
    k = min(k, len(vectors))
    asked = np.ascontiguousarray(queries, vectors.dtype)
    cosines, rows = np.empty((len(queries), k), vectors.dtype), np.empty((len(queries), k), np.int64)
    for block in row_blocks(len(queries), max(1, len(vectors))):
        # numpy's product: of one query it goes at the speed of memory, torch's at half of that.
        found = torch.from_numpy(asked[block] @ vectors.T).topk(k, dim=1)
        cosines[block], rows[block] = found.values.numpy(), found.indices.numpy()
    return cosines, rows


def map_rows(path: Path) -> np.ndarray:
    """An .npy file without reading it. Copy-on-write, for torch minds arrays that cannot be written."""
    return np.load(path, mmap_mode="c", allow_pickle=False)


@contextmanager
def npy_rows(path: Path, width: int) -> Iterator[Append]:
    """Rows [n, width] appended to an .npy file, which appears once they are complete."""
    with replacing(path) as temporary, temporary.open("w+b") as file, appending(file, width) as append:
        yield append


@contextmanager
def appending(file: IO[bytes], width: int) -> Iterator[Append]:
    count = 0

    def append(rows: np.ndarray) -> None:
        nonlocal count
        count += len(rows)
        file.write(np.ascontiguousarray(rows, "<f4").tobytes())

    def head() -> int:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(file, shape)
        return file.tell()

    begin = head()
    yield append
    file.seek(0)
    if head() != begin:  # numpy leaves room for the number of rows to grow
        raise RuntimeError("the head of an .npy file has grown over its first row")


@contextmanager
def npz_writer(out: Path, width: int) -> Iterator[Callable[[np.ndarray, list[str], list[str]], None]]:
    """An .npz file with `vectors`, `paths` and, where there are any, `labels`."""
    names: tuple[list[str], list[str]] = ([], [])
    # An archive tells each array's size before its rows, and how many files are broken is known at the end.
    with naming(out), nameless_file(out.parent, out) as aside:
        with appending(aside, width) as append:

            def write(vectors: np.ndarray, paths: list[str], labels: list[str]) -> None:
                append(vectors)
                names[0].extend(paths)
                names[1].extend(labels)

            yield write
        aside.seek(0)
        with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            with archive.open("vectors.npy", "w", force_zip64=True) as member:
                shutil.copyfileobj(aside, member, 2**20)
            for name, values in zip(("paths", "labels"), names, strict=True):
                if any(values):
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.save(member, np.array(values))


@contextmanager
def parquet_writer(out: Path, width: int) -> Iterator[Callable[[np.ndarray, list[str], list[str]], None]]:
    """A Parquet file with the columns `path`, `label` (null where there is none) and `vector`."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError("a .parquet file needs pyarrow: pip install 'varcon[parquet]'") from None

    kinds = {"path": pa.string(), "label": pa.string(), "vector": pa.list_(pa.float32(), width)}
    schema = pa.schema(kinds)
    with replacing(out) as temporary, parquet.ParquetWriter(temporary, schema) as writer:

        def write(vectors: np.ndarray, paths: list[str], labels: list[str]) -> None:
            numbers = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
            columns = [
                pa.array(map(readable, paths), pa.string()),
                pa.array([readable(label) or None for label in labels], pa.string()),
                pa.FixedSizeListArray.from_arrays(numbers, width),
            ]
            writer.write_table(pa.table(columns, schema=schema))

        yield write


def readable(name: str) -> str:
    """With ? in the place of what is not UTF-8 in a file's name, which Parquet and a browser do not take."""
    return name.encode("utf-8", "replace").decode("utf-8")


WRITERS = {".npz": npz_writer, ".parquet": parquet_writer}
