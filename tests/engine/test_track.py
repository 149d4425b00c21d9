"""What a tracker is told, read back from the files it writes."""

import json
import signal
import struct
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from varcon import Recipe, distributed, run
from varcon.core import InputError
from varcon.data import load
from varcon.engine.interrupt import Interrupted
from varcon.engine.loop import fit
from varcon.engine.track import tracking
from varcon.recipe import TrainSettings

QUICK = TrainSettings(epochs=4, batch_size=256, device="cpu", warmup_epochs=1, checkpoint_seconds=1e9)


def recipe(track, **train):
    return Recipe(train=replace(QUICK, track=track, **train))


def journal(folder):
    """The rows of metrics.jsonl by their steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row.pop("step"): row for row in rows}


def train_with_a_kill(recipe, folder):
    """Saved at step 5, killed at step 12, when the row of step 10 is written, and resumed."""

    def stop(progress, row):
        if progress.step == 5:
            signal.raise_signal(signal.SIGTERM)

    def kill(progress, row):
        if progress.step == 12:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run.train(recipe, folder, watch=stop)
    with pytest.raises(KeyboardInterrupt):
        run.train(recipe, folder, resume=True, watch=kill)
    return run.train(recipe, folder, resume=True)


def shown_by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            row = found.setdefault(event.step, {})
            assert name not in row, "shown twice"
            row[name] = event.value
    return found


def test_tensorboard_shows_the_journal_and_training_is_the_same(tmp_path):
    folder = run.train(recipe("tensorboard"), tmp_path / "tracked")
    rows = journal(folder)
    assert list(rows) == [5, 10, 15, 20]
    assert shown_by_tensorboard(folder) == {step: pytest.approx(row) for step, row in rows.items()}
    plain = run.train(recipe("none"), tmp_path / "plain")
    assert not (plain / "tensorboard").exists()
    name = "encoder.safetensors"
    assert (folder / name).read_bytes() == (plain / name).read_bytes()


def test_tensorboard_shows_each_row_of_a_resumed_run_once(tmp_path):
    folder = train_with_a_kill(recipe("tensorboard"), tmp_path / "run")
    assert len(list((folder / "tensorboard").iterdir())) == 3
    assert shown_by_tensorboard(folder) == {step: pytest.approx(row) for step, row in journal(folder).items()}


def test_a_resumed_run_may_be_tracked_from_then_on(tmp_path):
    def stop(progress, row):
        if progress.step == 12:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run.train(recipe("none"), tmp_path / "run", watch=stop)
    run.train(recipe("tensorboard"), tmp_path / "run", resume=True)
    assert list(shown_by_tensorboard(tmp_path / "run")) == [15, 20]


def test_only_the_first_process_tracks(tmp_path, monkeypatch):
    """Of the others a run's own files are not there either."""
    monkeypatch.setattr(distributed, "is_main", lambda: False)
    quick = recipe("tensorboard", epochs=1)
    data = load(quick.data)
    fit(run.build_method(quick, data), data, quick, tmp_path, torch.device("cpu"), False, run.no_watcher)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"track is '{name}'.* install it: pip install 'varcon\[{name}\]'"):
        run.train(recipe(name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def records(path):
    """Of a file in LevelDB's log format, which is wandb's: blocks of 32 KiB, records in one or more parts."""
    block, parts = 2**15, b""
    content, place = path.read_bytes(), 7  # after the file's own head
    while place + 7 <= len(content):
        if block - place % block < 7:  # too little for a head is left empty
            place += block - place % block
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def kept_by_wandb(path):
    from wandb.proto.wandb_internal_pb2 import Record

    config, rows = {}, {}
    for content in records(path):
        record = Record.FromString(content)
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        values = {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if values:
            rows[values["_step"]] = {name: value for name, value in values.items() if name[0] != "_"}
    return config, rows


def test_wandb_keeps_the_journal_offline_and_a_resumed_run_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def stop(progress, row):
        if progress.step == 12:
            signal.raise_signal(signal.SIGTERM)

    tracked = recipe("wandb")
    with pytest.raises(Interrupted):
        run.train(tracked, tmp_path / "run", watch=stop)
    folder = run.train(tracked, tmp_path / "run", resume=True)
    name = (folder / "wandb-id.txt").read_text().strip()
    # Of two starts within one second, wandb gives the later one's folder a number behind the name.
    files = sorted(folder.glob(f"wandb/offline-run-*-{name}*/run-{name}.wandb"))
    rows = journal(folder)
    (config, before), (_, after) = sorted(map(kept_by_wandb, files), key=lambda kept: min(kept[1]))
    assert before == {step: rows[step] for step in (5, 10)}
    assert after == {step: rows[step] for step in (15, 20)}
    assert config["train"]["batch_size"] == 256
    assert config["method"]["name"] == "varcon"


class StubRun:
    """A run that its server knows up to step 10."""

    step = 11

    def __init__(self):
        self.rows = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finished = True

    def log(self, values, step):
        self.rows[step] = values


def test_wandb_is_not_told_again_what_its_server_has(tmp_path, monkeypatch):
    opened, asked = StubRun(), {}
    stub = SimpleNamespace(
        init=lambda **options: asked.update(options) or opened, Settings=SimpleNamespace, Error=OSError
    )
    monkeypatch.setitem(sys.modules, "wandb", stub)
    (tmp_path / "wandb-id.txt").write_text("abc\n")
    with tracking(recipe("wandb"), tmp_path, 5) as track:
        for step in (10, 15):
            track({"step": step, "loss": 1.0 / step})
    assert opened.rows == {15: {"loss": 1 / 15}}
    assert opened.finished
    assert (asked["id"], asked["resume"], asked["name"]) == ("abc", "allow", tmp_path.name)


def test_wandb_that_does_not_start_says_what_to_do(tmp_path, monkeypatch):
    def init(**options):
        raise OSError("no key\nlong story")

    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=init, Settings=SimpleNamespace, Error=OSError)
    )
    with (
        pytest.raises(InputError, match=r"does not start \(no key\); log in with: wandb login, or .*offline"),
        tracking(recipe("wandb"), tmp_path, 0),
    ):
        pass
