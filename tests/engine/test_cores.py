"""Free cores by rows as Linux writes them."""

import itertools
import math
import os

import pytest
import torch

from varcon.cli import main
from varcon.engine import cores

# Of 100 ticks core 0 is idle, core 1 waits for a disk, core 2 is busy, core 3 three quarters of the time.
PASSING = [
    (0, 0, 0, 100, 0, 0, 0, 0),
    (0, 0, 0, 0, 100, 0, 0, 0),
    (90, 0, 5, 0, 0, 0, 5, 0),
    (0, 65, 0, 25, 0, 0, 0, 10),
]


def statistics(looks, passing=PASSING):
    """As Linux writes them, after so many times 100 ticks."""
    times = [[1000 + looks * ticks for ticks in core] for core in passing]
    cores = [f"cpu{number} {' '.join(map(str, core))} 0 0" for number, core in enumerate(times)]
    return "\n".join(["cpu  500 0 50 1000 10 0 1 2 0 0", *cores, "intr 12345 0 9", "ctxt 99", ""])


@pytest.fixture
def four_cores(tmp_path, monkeypatch):
    """Two and a quarter of them free; torch would use all."""
    file = tmp_path / "stat"
    file.write_text(statistics(0))
    looks = itertools.count(1)
    monkeypatch.setattr(cores, "STATISTICS", file)
    monkeypatch.setattr(cores, "SHARE", tmp_path / "cpu.max")
    monkeypatch.setattr(cores.time, "sleep", lambda seconds: file.write_text(statistics(next(looks))))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    return chosen


def test_idle_time_is_counted_over_the_cores_that_are_ours(four_cores, monkeypatch, tmp_path):
    assert cores.free_cores(0.1) == pytest.approx(2.25)
    for ours, expected in (({2}, 0.0), ({0, 3}, 1.25)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, ours=ours: ours)
        assert cores.free_cores(0.1) == pytest.approx(expected)


def test_as_many_threads_as_cores_are_free(four_cores):
    assert cores.use_free_cores().startswith(
        "other programs leave about 2.2 cores free: computing with 2 threads instead of 4"
    )
    assert four_cores == [2]


def test_a_moment_decides_nothing(four_cores, monkeypatch, tmp_path):
    """A second look, for longer, finds all of them free."""
    idle = [(0, 0, 0, 1000, 0, 0, 0, 0)] * 4
    looks = iter([statistics(1), statistics(2, idle)])
    monkeypatch.setattr(cores.time, "sleep", lambda seconds: (tmp_path / "stat").write_text(next(looks)))
    assert cores.use_free_cores() == "" and four_cores == []
    assert not list(looks)


def test_a_run_goes_on_with_the_threads_it_was_begun_with(four_cores, monkeypatch):
    with cores.threads_as_begun(3):
        assert four_cores == [3]
    assert four_cores == [3, 4]
    with cores.threads_as_begun(None):  # begun by an earlier version
        pass
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with cores.threads_as_begun(3):
        pass
    assert four_cores == [3, 4]


def test_where_all_are_busy_one_thread_is_left(four_cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2})
    assert "with 1 thread instead of 4" in cores.use_free_cores()
    assert four_cores == [1]


def test_a_container_has_its_share(four_cores, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores.free_cores(0.1) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.free_cores(0.1) == pytest.approx(2.25)


def test_threads_stay_where_somebody_has_chosen_them_or_nobody_can_tell(four_cores, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert cores.use_free_cores() == ""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cores.use_free_cores() == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for content in ("", "cpu0 of another kind\n"):
        (tmp_path / "stat").write_text(content)
        monkeypatch.setattr(cores.time, "sleep", lambda seconds: None)
        assert cores.free_cores(0.1) == math.inf and cores.use_free_cores() == ""
    (tmp_path / "stat").unlink()
    assert cores.free_cores(0.1) == math.inf
    monkeypatch.delattr(os, "sched_getaffinity")  # not Linux
    assert cores.use_free_cores() == "" and four_cores == []


def test_commands_that_compute_say_so(four_cores, tmp_path, capsys):
    missing = str(tmp_path / "missing")
    others = (["evaluate", missing, "--help"], ["report", missing], ["train", missing, "--resume"])
    for arguments in (["evaluate", missing], *others):
        main(arguments)
        said = "computing with 2 threads instead of 4" in capsys.readouterr().out
        assert said == (arguments == ["evaluate", missing])
