import json
from pathlib import Path

import pytest
import torch

from varcon.engine.journal import Averages, Journal, read_rows


def test_rows_past_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Journal(path, 0) as journal:
        for step in (10, 20, 30):
            journal.write({"step": step, "seconds": step / 10})
    with path.open("a") as file:
        file.write('{"step": 40, "lo')  # killed while writing
    assert [row["step"] for row in read_rows(path)] == [10, 20, 30]
    with Journal(path, 20) as journal:
        assert journal.seconds == 2.0
        journal.write({"step": 30, "seconds": 3.5})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 10, "seconds": 1.0},
        {"step": 20, "seconds": 2.0},
        {"step": 30, "seconds": 3.5},
    ]


def test_other_processes_keep_no_journal():
    with Journal(None, 5) as journal:
        journal.write({"step": 10, "seconds": 1.0})
        assert journal.seconds == 0.0


def test_averages_are_means_between_rows():
    averages = Averages()
    for value in (1.0, 2.0, 6.0):
        averages.add({"loss": torch.tensor(value)})
    row = averages.take(images_per_step=4)
    assert row["loss"] == pytest.approx(3.0)
    assert row["images_per_second"] > 0
    averages.add({"loss": torch.tensor(5.0)})
    assert averages.take(4)["loss"] == pytest.approx(5.0)


def test_a_row_that_was_begun_goes_on_elsewhere():
    first, second = Averages(), Averages()
    for value in (1.0, 2.0):
        first.add({"loss": torch.tensor(value), "kl": torch.tensor(value / 4)})
    state = {**first.state(), "seconds": 10.0}
    second.restore(state, torch.device("cpu"))
    second.add({"loss": torch.tensor(6.0), "kl": torch.tensor(1.5)})
    assert second.total("loss") == 9.0
    assert state["sums"].tolist() == [3.0, 0.75, 2.0]  # stays as it was
    row = second.take(images_per_step=4)
    assert (row["loss"], row["kl"]) == (3.0, 0.75)
    assert row["images_per_second"] == pytest.approx(3 * 4 / 10, rel=0.2)  # those ten seconds count too


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux that has no room")
def test_a_full_disk_names_the_journal(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(OSError, match="No space left") as caught, Journal(path, 0) as journal:
        path.symlink_to("/dev/full")
        journal.write({"step": 1})
    assert caught.value.filename == str(path)
