import json
import stat

import pytest

from varcon.files import replacing, write_json, write_text


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


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    (tmp_path / ".notes.txt.x7f3").write_text("half")
    write_json(tmp_path / "notes.txt", {"a": [1, 2]})
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert json.loads((tmp_path / "notes.txt").read_text()) == {"a": [1, 2]}


def test_files_are_readable_by_others(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours")]
    assert modes[0] == modes[1]
