"""The file of decoded images and its index."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from varcon.data.rows import NOT_YET, ROW, Rows, index_of, make_long, places_of, sums_of, write_index


@pytest.mark.parametrize("known", [[], [7], [9, 3, 2**64 - 1, 0, 5]])
def test_places_are_those_of_a_dictionary(known):
    wanted = [5, 4, 0, 2**64 - 1, 9, 7, 1]
    found = places_of(np.array(wanted, dtype=np.uint64), np.array(known, dtype=np.uint64))
    assert found.tolist() == [{key: place for place, key in enumerate(known)}.get(one, -1) for one in wanted]


def test_rows_that_the_file_has_lost_are_not_decoded(tmp_path):
    pixels, index = tmp_path / "some.pixels", np.zeros(4, ROW)
    assert len(index_of(pixels, 2)) == 0
    index["image"] = [3, 1, 4, 1 << 63]
    make_long(pixels, 4 * 12)
    write_index(pixels, index)
    assert np.array_equal(index_of(pixels, 2), index)
    pixels.write_bytes(bytes(2 * 12 + 11))
    assert (index_of(pixels, 2)["sums"][:, 0, 0] == NOT_YET).tolist() == [False, False, True, True]
    make_long(pixels, 12)
    assert pixels.stat().st_size == 2 * 12 + 11  # never shorter


def test_sums_are_of_each_channel():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
    assert sums_of(pixels)[0].tolist() == [int(channel.sum()) for channel in pixels]
    assert sums_of(pixels)[1].tolist() == [sum(int(x) ** 2 for x in channel.flat) for channel in pixels]


def test_many_threads_read_and_write_their_own_rows(tmp_path):
    expected = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 5), dtype=np.uint8)
    np.zeros_like(expected).tofile(tmp_path / "rows")
    rows = Rows(tmp_path / "rows", (3, 5, 5), "r+b")

    def there_and_back(place):
        rows.write(place, expected[place])
        found = np.empty((2, 3, 5, 5), dtype=np.uint8)
        rows.read_into(found, [place, place])
        return np.array_equal(found, expected[[place, place]])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(40)))
    rows.close()
    assert np.array_equal(np.fromfile(tmp_path / "rows", np.uint8).reshape(expected.shape), expected)
