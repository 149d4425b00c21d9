"""Free cores by rows as Linux writes them."""

import math
import os

import pytest
import torch

from varcon.cli import main
from varcon.engine import cores

BEFORE = """cpu  500 0 50 1000 10 0 1 2 0 0
cpu0 100 0 10 200 5 0 1 1 0 0
cpu1 100 0 10 200 5 0 0 1 0 0
cpu2 100 0 10 200 0 0 0 0 0 0
cpu3 100 0 10 200 0 0 0 0 0 0
intr 12345 0 9
ctxt 99
"""
# 100 ticks later: core 0 idle, core 1 waiting for a disk, core 2 busy, core 3 three quarters busy
AFTER = """cpu  500 0 50 1000 10 0 1 2 0 0
cpu0 100 0 10 300 5 0 1 1 0 0
cpu1 100 0 10 200 105 0 0 1 0 0
cpu2 190 0 15 200 0 0 5 0 0 0
cpu3 100 65 10 225 0 0 0 10 0 0
intr 22345 0 9
ctxt 199
"""


@pytest.fixture
def four_cores(tmp_path, monkeypatch):
    """Two and a quarter of them free; torch would use all."""
    file = tmp_path / "stat"
    file.write_text(BEFORE)
    monkeypatch.setattr(cores, "STATISTICS", file)
    monkeypatch.setattr(cores, "SHARE", tmp_path / "cpu.max")
    monkeypatch.setattr(cores.time, "sleep", lambda seconds: file.write_text(AFTER))
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
        (tmp_path / "stat").write_text(BEFORE)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, ours=ours: ours)
        assert cores.free_cores(0.1) == pytest.approx(expected)


def test_as_many_threads_as_cores_are_free(four_cores):
    assert cores.use_free_cores().startswith(
        "other programs leave about 2.2 cores free: computing with 2 threads instead of 4"
    )
    assert four_cores == [2]


def test_where_all_are_busy_one_thread_is_left(four_cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2})
    assert "with 1 thread instead of 4" in cores.use_free_cores()
    assert four_cores == [1]


def test_a_container_has_its_share(four_cores, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores.free_cores(0.1) == 1.5
    (tmp_path / "stat").write_text(BEFORE)
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
    for arguments in (["evaluate", missing], ["evaluate", missing, "--help"], ["report", missing]):
        (tmp_path / "stat").write_text(BEFORE)
        main(arguments)
        said = "computing with 2 threads instead of 4" in capsys.readouterr().out
        assert said == (arguments == ["evaluate", missing])
