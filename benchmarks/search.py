"""Time the exact search of `varcon search` over vectors on disk: `python benchmarks/search.py`.

Vectors of length 1, float32, are written to a file, mapped and searched by cosine: every vector is looked at.
The first search after the file is opened also reads it, from the system's cache, for it is just written.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import surroundings, write_table

from varcon.deploy.vectors import map_rows, nearest, npy_rows, unit

ROWS_AT_ONCE = 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vectors", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=21, help="timed searches of each")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    head = (
        f"The {arguments.top} nearest of all vectors to one query, and to 100; {surroundings('cpu')}; "
        f"median and least of {arguments.repeats}."
    )
    lines = [
        "| vectors | dimensions | MB on disk | first, ms | median, ms | least, ms | 100 queries, ms each |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count in arguments.vectors:
        for width in arguments.dimensions:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "vectors.npy"
                fill(path, count, width)
                lines.append(row(path, arguments.top, arguments.repeats))
    write_table("Time of an exact search", head, lines, arguments.out)
    return 0


def fill(path: Path, count: int, width: int) -> None:
    rng = np.random.default_rng(0)
    with npy_rows(path, width) as append:
        for start in range(0, count, ROWS_AT_ONCE):
            append(unit(rng.standard_normal((min(ROWS_AT_ONCE, count - start), width), np.float32)))


def row(path: Path, top: int, repeats: int) -> str:
    vectors = map_rows(path)
    queries = unit(np.random.default_rng(1).standard_normal((100, vectors.shape[1]), np.float32))
    first = search(queries[:1], vectors, top)
    seconds = [search(queries[turn % 100][None], vectors, top) for turn in range(repeats)]
    many = min(search(queries, vectors, top) for _ in range(3)) / len(queries)
    megabytes = path.stat().st_size / 1e6
    times = [first, statistics.median(seconds), min(seconds), many]
    cells = " | ".join(f"{1000 * value:.1f}" for value in times)
    return f"| {len(vectors):,} | {vectors.shape[1]} | {megabytes:,.0f} | {cells} |"


def search(queries: np.ndarray, vectors: np.ndarray, top: int) -> float:
    begin = time.perf_counter()
    nearest(queries, vectors, top)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
