import errno
import fcntl
import subprocess
import sys

import pytest

from varcon.core import InputError
from varcon.engine.claim import LOCK, claimed

HOLDER = """
import sys, time
from pathlib import Path
from varcon.engine.claim import claimed
with claimed(Path(sys.argv[1])):
    print("claimed", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_claimed_once_and_free_again_afterwards(tmp_path):
    folder = tmp_path / "runs/one"
    for _ in range(2):
        with claimed(folder):
            (folder / "recipe.json").write_text("{}")
            with pytest.raises(InputError, match=r"another process is training in .*one; wait for it"):
                claimed(folder).__enter__()
        assert [path.name for path in folder.iterdir()] == ["recipe.json"]


def test_a_killed_process_holds_nothing(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(InputError, match="another process"):
            claimed(tmp_path).__enter__()
        holder.kill()
    assert (tmp_path / LOCK).exists()
    with claimed(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()


def test_folders_that_stay_empty_are_removed_with_those_made_for_them(tmp_path):
    (tmp_path / "runs").mkdir()
    with claimed(tmp_path / "runs/group/one"):
        assert (tmp_path / "runs/group/one").is_dir()
    assert list((tmp_path / "runs").iterdir()) == []
    (tmp_path / "mine").mkdir()
    with claimed(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_a_lock_that_its_holder_has_removed_is_not_taken(tmp_path, monkeypatch):
    """Between our opening the file and our locking it, its process ends and removes it."""
    take, held = fcntl.flock, claimed(tmp_path)
    held.__enter__()

    def after_its_end(file, how):
        monkeypatch.setattr(fcntl, "flock", take)
        held.__exit__(None, None, None)
        take(file, how)

    monkeypatch.setattr(fcntl, "flock", after_its_end)
    with claimed(tmp_path), pytest.raises(InputError, match="another process"):
        claimed(tmp_path).__enter__()


def test_without_locks_nobody_is_refused(tmp_path, monkeypatch):
    def unsupported(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with claimed(tmp_path), claimed(tmp_path):
        (tmp_path / "recipe.json").write_text("{}")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]
