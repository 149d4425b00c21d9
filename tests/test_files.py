import errno
import json
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from varcon.files import file_digest, replacing, write_json, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "notes.txt"
    write_text(path, "old")

    def fails():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux that has no room")
@pytest.mark.parametrize("write", [lambda file: file.write(b"x"), lambda file: np.save(file, np.zeros(9))])
def test_a_full_disk_names_the_file_that_had_no_room(tmp_path, write):
    path = tmp_path / "notes.txt"

    def fails():
        with replacing(path), Path("/dev/full").open("wb") as file:
            write(file)

    with pytest.raises(OSError, match="No space left on device: ") as caught:
        fails()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert not list(tmp_path.iterdir())


def test_other_errors_stay_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "notes.txt"):
        (tmp_path / "photo.png").read_bytes()
    assert caught.value.filename == str(tmp_path / "photo.png")


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    """An hour later: until then it may be that of a process which still writes."""

    def killed():
        with replacing(tmp_path / "notes[1].txt") as temporary:
            raise SystemExit(temporary.name)

    with pytest.raises(SystemExit) as caught:
        killed()
    left = tmp_path / caught.value.code
    left.write_text("half")
    write_json(tmp_path / "notes[1].txt", {"a": [1, 2]})
    assert left.read_text() == "half"
    os.utime(left, (time.time() - 3700,) * 2)
    write_json(tmp_path / "notes[1].txt", {"a": [1, 2]})
    assert [p.name for p in tmp_path.iterdir()] == ["notes[1].txt"]
    assert json.loads((tmp_path / "notes[1].txt").read_text()) == {"a": [1, 2]}


def test_two_may_write_one_file_and_other_programs_files_stay(tmp_path):
    path, swap = tmp_path / "recipe.json", tmp_path / ".recipe.json.swp"
    swap.write_text("an editor's")
    os.utime(swap, (0, 0))
    with replacing(path) as slow:
        slow.write_text("of the slow")
        write_text(path, "of the quick")
        assert path.read_text() == "of the quick"
    assert path.read_text() == "of the slow"
    assert swap.read_text() == "an editor's"


def test_files_are_readable_by_others(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours")]
    assert modes[0] == modes[1]


def test_a_digest_tells_contents_apart_and_not_names(tmp_path):
    for name, text in (("one", "x"), ("same", "x"), ("other", "y")):
        write_text(tmp_path / name, text)
    one, same, other = (file_digest(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same != other and len(one) == 16
