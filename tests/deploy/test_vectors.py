import os
import tracemalloc

import numpy as np
import pytest

from varcon.core import InputError
from varcon.deploy.vectors import WRITERS, map_rows, nearest, npy_rows, unit


def rows(count, width=6, seed=0):
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def test_search_finds_what_a_sort_of_all_cosines_finds(monkeypatch):
    from varcon.evaluations import frozen

    bank, queries = unit(rows(300)), unit(rows(7, seed=1))
    cosines = queries.astype(np.float64) @ bank.T.astype(np.float64)
    order = np.argsort(-cosines, axis=1)[:, :9]
    for cells in (frozen.CELLS_AT_ONCE, 700):  # all at once, and two queries at a time
        monkeypatch.setattr(frozen, "CELLS_AT_ONCE", cells)
        found, places = nearest(queries, bank, 9)
        assert (places == order).all()
        assert found == pytest.approx(np.take_along_axis(cosines, order, 1), abs=1e-6)
    assert nearest(queries, bank[:4], 9)[1].shape == (7, 4)
    assert nearest(queries[:0], bank, 9)[1].shape == (0, 9)


def test_directions_have_length_one_and_nothing_stays_nothing():
    made = unit(np.array([[3, 4], [0, 0]], np.float32))
    assert made == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))


def test_rows_are_appended_to_an_npy_file(tmp_path):
    whole = rows(1200)
    with npy_rows(tmp_path / "a.npy", 6) as append:
        for start in range(0, 1200, 7):
            append(whole[start : start + 7])
            assert not (tmp_path / "a.npy").exists()
    assert np.array_equal(np.load(tmp_path / "a.npy"), whole)
    assert np.array_equal(map_rows(tmp_path / "a.npy"), whole)
    with npy_rows(tmp_path / "none.npy", 6):
        pass
    assert np.load(tmp_path / "none.npy").shape == (0, 6)


def test_what_fails_while_it_is_written_leaves_no_file(tmp_path):
    for suffix, writer in WRITERS.items():
        with pytest.raises(KeyboardInterrupt), writer(tmp_path / f"a{suffix}", 6) as write:
            write(rows(2), ["a", "b"], ["", ""])
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_an_archive_has_vectors_paths_and_labels_if_there_are_any(tmp_path):
    whole = rows(5)
    with WRITERS[".npz"](tmp_path / "a.npz", 6) as write:
        write(whole[:2], ["x/1.png", "ä.png"], ["x", ""])
        write(whole[2:], ["3", "4", "5"], ["", "", "long name"])
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert np.array_equal(found["vectors"], whole)
        assert found["paths"].tolist() == ["x/1.png", "ä.png", "3", "4", "5"]
        assert found["labels"].tolist() == ["x", "", "", "", "long name"]
    with WRITERS[".npz"](tmp_path / "b.npz", 6) as write:
        write(whole[:1], ["1.png"], [""])
    with np.load(tmp_path / "b.npz", allow_pickle=False) as found:
        assert set(found) == {"vectors", "paths"}


def test_a_parquet_file_has_the_same_as_columns(tmp_path):
    from pyarrow import parquet

    whole = rows(5)
    with WRITERS[".parquet"](tmp_path / "a.parquet", 6) as write:
        write(whole[:2], ["x/1.png", "2.png"], ["x", ""])
        write(whole[2:], ["3", "4", "5"], ["", "", "y"])
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table["path"].to_pylist() == ["x/1.png", "2.png", "3", "4", "5"]
    assert table["label"].to_pylist() == ["x", None, None, None, "y"]
    assert np.array_equal(np.array(table["vector"].to_pylist(), np.float32), whole)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_name_that_is_not_utf_8_loses_no_row(tmp_path, suffix):
    from pyarrow import parquet

    odd = os.fsdecode("caf\u00e9/ä.png".encode("latin-1"))
    with WRITERS[suffix](tmp_path / f"a{suffix}", 6) as write:
        write(rows(2), [odd, "ä.png"], [odd[:4], ""])
    if suffix == ".npz":
        with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
            assert found["paths"].tolist() == [odd, "ä.png"]
        return
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table["path"].to_pylist() == ["caf?/?.png", "ä.png"]
    assert table["label"].to_pylist() == ["caf?", None]


def test_a_missing_extra_is_named_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with (
        pytest.raises(InputError, match=r"pip install 'varcon\[parquet\]'"),
        WRITERS[".parquet"](tmp_path / "a", 6),
    ):
        pass


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_memory_stays_the_same_however_many_vectors_there_are(tmp_path, suffix):
    block = rows(256, 2048)
    labels = ["some class"] * 256
    tracemalloc.start()
    try:
        with WRITERS[suffix](tmp_path / f"a{suffix}", 2048) as write:
            for start in range(0, 20 * 256, 256):  # 42 MB
                write(block, [f"folder/image{start + number}.jpg" for number in range(256)], labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6
