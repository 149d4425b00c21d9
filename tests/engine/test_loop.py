import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from varcon import Recipe, distributed, run, run_folder
from varcon.core import InputError, Progress, RunError
from varcon.data import DataSettings, load
from varcon.engine import interrupt, loop
from varcon.engine.checkpoint import load_checkpoint, save_checkpoint
from varcon.engine.interrupt import Interrupted, requests_to_stop
from varcon.engine.loop import fit
from varcon.engine.precision import computes_in_bf16
from varcon.evaluations import KNN
from varcon.methods import METHODS
from varcon.recipe import TrainSettings

QUICK = TrainSettings(epochs=4, batch_size=256, device="cpu", warmup_epochs=1)


def recipe(**train):
    return Recipe(train=replace(QUICK, **train))


def weights(folder):
    return (folder / "encoder.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    return run.train(recipe(), tmp_path_factory.mktemp("loop") / "whole")


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_falls_and_every_metric_is_noted(whole):
    found = rows(whole)
    assert [row["step"] for row in found] == [5, 10, 15, 20]
    assert found[-1]["loss"] < found[0]["loss"]
    for row in found:
        assert row["loss"] == pytest.approx(row["kl"] + row["nll"], rel=1e-5)
        assert 0.1 - row["epsilon"] - 1e-3 <= row["tau2"] <= 0.1 + row["epsilon"] + 1e-3
        assert row["images_per_second"] > 0


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(whole, tmp_path):
    assert weights(run.train(recipe(), tmp_path / "same")) == weights(whole)
    assert weights(run.train(recipe(seed=1), tmp_path / "other")) != weights(whole)


def test_without_a_folder_the_same_is_learned_and_nothing_written(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = load(recipe().data)
    method = run.build_method(recipe(), data)
    fit(method, data, recipe(), None, torch.device("cpu"), False, run.no_watcher)
    kept = load_file(whole / "encoder.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in method.encoder.state_dict().items())
    assert list(tmp_path.iterdir()) == []
    method = run.build_method(recipe(), data)
    with pytest.raises(RunError, match=r"diverged at step .* train\.warmup_epochs$"):
        broken = recipe(learning_rate=1e12, warmup_epochs=0)
        fit(method, data, broken, None, torch.device("cpu"), False, run.no_watcher)


def stop_at(step, number):
    def watch(progress: Progress, row):
        if progress.step == step:
            os.kill(os.getpid(), number)

    return watch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_resuming_ends_at_the_same_bytes(whole, tmp_path, number):
    folder = tmp_path / "run"
    for step in (3, 7, 15):  # within an epoch, within another, at an epoch's end
        with pytest.raises(Interrupted, match=f"stopped and saved at step {step} of 20") as caught:
            run.train(recipe(), folder, resume=True, watch=stop_at(step, number))
        assert caught.value.signal == number
        assert torch.load(folder / "last.ckpt", weights_only=True)["step"] == step
    run.train(recipe(), folder, resume=True)
    assert weights(folder) == weights(whole)
    assert [untimed(row) for row in rows(folder)] == [untimed(row) for row in rows(whole)]
    assert signal.getsignal(number) is not None


def test_a_terminal_that_closes_says_so_twice_and_nohup_outlives_it(tmp_path):
    """The shell and the system each send the signal; a second one must not end what is being saved."""

    def twice(progress, row):
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(Interrupted, match="saved at step 3"):
        run.train(recipe(), tmp_path / "run", watch=twice)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run.train(recipe(), tmp_path / "run", resume=True, watch=stop_at(5, signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert torch.load(tmp_path / "run/last.ckpt", weights_only=True)["step"] == 20


def untimed(row):
    return {name: value for name, value in row.items() if name not in ("seconds", "images_per_second")}


def test_a_stop_after_divergence_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    """The rate explodes after the first epoch, and the signal comes before the second one's row."""
    monkeypatch.setattr(loop, "learning_rate", lambda settings, progress: 0.1 if progress.step < 5 else 1e30)
    folder, ce = tmp_path / "run", METHODS["ce"].Settings()
    with pytest.raises(
        RunError, match=r"diverged at step 8 \(the loss is not finite\): .*checkpoint is kept"
    ) as caught:
        run.train(replace(recipe(checkpoint_seconds=0), method=ce), folder, watch=stop_at(8, signal.SIGTERM))
    assert not isinstance(caught.value, Interrupted)
    kept = torch.load(folder / "last.ckpt", weights_only=True)
    assert kept["step"] == 5
    assert all(value.isfinite().all() for value in kept["method"].values())


def test_a_stop_asked_for_again_while_it_is_saved_is_passed_over(tmp_path, monkeypatch):
    plain = loop.TrainingState.save

    def save(state):
        signal.raise_signal(signal.SIGINT)
        plain(state)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop.TrainingState, "save", save)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted, match="saved at step 3"):
        run.train(recipe(), tmp_path / "run", watch=stop_at(3, signal.SIGINT))
    assert torch.load(tmp_path / "run/last.ckpt", weights_only=True)["step"] == 3
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("bad", [10, 20], ids=["checkpoint", "end"])
def test_weights_that_a_step_has_broken_are_not_kept(bad, tmp_path, monkeypatch):
    """Its loss, which was computed before it, is still a number."""
    rates = {bad - 1: torch.inf}
    monkeypatch.setattr(loop, "learning_rate", lambda settings, progress: rates.get(progress.step, 0.1))
    folder = tmp_path / "run"
    with pytest.raises(RunError, match=rf"diverged at step {bad} \(the weights are not .*checkpoint is kept"):
        run.train(recipe(checkpoint_seconds=0), folder)
    kept = torch.load(folder / "last.ckpt", weights_only=True)
    assert kept["step"] == bad - 5
    assert all(value.isfinite().all() for value in kept["method"].values())
    assert not (folder / "encoder.safetensors").exists()


def snapshots(folder):
    return {path.name: path.read_bytes() for path in folder.glob("encoder-*")}


def test_snapshots_are_the_encoder_at_their_epochs(whole, tmp_path):
    """Without changing what is trained, and the same after stops within, at and after their epochs."""
    kept = recipe(snapshots=(2, 0, 4))
    straight = run.train(kept, tmp_path / "straight")
    found = snapshots(straight)
    assert set(found) == {f"encoder-epoch000{epoch}.safetensors" for epoch in (0, 2, 4)}
    assert found["encoder-epoch0004.safetensors"] == weights(straight) == weights(whole)
    untrained = run.build_method(kept, load(kept.data)).encoder.state_dict()
    first = load_file(straight / "encoder-epoch0000.safetensors")
    assert first.keys() == untrained.keys()
    assert all(torch.equal(first[name], untrained[name]) for name in untrained)

    folder = tmp_path / "stopped"
    for step in (3, 10, 12):
        with pytest.raises(Interrupted):
            run.train(kept, folder, resume=True, watch=stop_at(step, signal.SIGTERM))
        if step == 10:  # the end of the second epoch
            assert set(snapshots(folder)) == set(found) - {"encoder-epoch0004.safetensors"}
            saved = torch.load(folder / "last.ckpt", weights_only=True)["method"]
            for name, value in load_file(folder / "encoder-epoch0002.safetensors").items():
                assert torch.equal(value, saved[f"encoder.{name}"])
    with pytest.raises(InputError, match=r"begun with train\.snapshots = \(2, 0, 4\) and cannot go on"):
        run.train(recipe(snapshots=(2, 0)), folder, resume=True)
    run.train(kept, folder, resume=True)
    assert snapshots(folder) == found
    assert weights(folder) == weights(whole)


def test_a_snapshot_past_the_checkpoint_is_made_again(tmp_path):
    """A run killed after a snapshot and before its next checkpoint repeats those epochs."""
    kept = recipe(snapshots=(1, 2))
    expected = snapshots(run.train(kept, tmp_path / "straight"))
    folder = tmp_path / "killed"
    with pytest.raises(Interrupted):
        run.train(kept, folder, watch=stop_at(5, signal.SIGTERM))

    def fail(progress, row):
        if progress.step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train(kept, folder, resume=True, watch=fail)
    assert torch.load(folder / "last.ckpt", weights_only=True)["step"] == 5
    assert snapshots(folder) == expected
    (folder / "encoder-epoch0002.safetensors").write_bytes(b"of a branch that was left")
    run.train(kept, folder, resume=True)
    assert snapshots(folder) == expected


@pytest.mark.parametrize("name", ["moco", "ce"])  # with a teacher, with a classifier
def test_snapshots_of_other_methods_hold_what_the_encoder_file_holds(name, tmp_path):
    other = replace(recipe(epochs=1, snapshots=(1,)), method=METHODS[name].Settings())
    folder = run.train(other, tmp_path / "run")
    assert snapshots(folder) == {"encoder-epoch0001.safetensors": weights(folder)}


def test_three_kills_and_resumes_end_at_the_same_bytes(tmp_path):
    """SIGKILL at random moments of a run in its own process, through the command line."""
    toml = tmp_path / "short.toml"
    toml.write_text(
        '[train]\nepochs = 12\nbatch_size = 256\ncheckpoint_seconds = 0\ndevice = "cpu"\n'
        '[augment]\npolicy = "sim"\n'
    )
    command = [sys.executable, "-m", "varcon", "train", str(toml), "--resume", "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    rows = (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    epoch = json.loads(rows[-1])["seconds"] / len(rows)
    chance = random.Random(0)
    killed, log = tmp_path / "killed", tmp_path / "killed/metrics.jsonl"
    for _ in range(3):
        already = len(log.read_text().splitlines()) if log.exists() else 0
        process = subprocess.Popen(
            [*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) <= already):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, epoch))
        assert process.poll() is None, "the run ended before it could be killed"
        process.kill()
        process.wait()
        assert not (killed / "encoder.safetensors").exists()
    subprocess.run([*command, str(killed)], check=True, capture_output=True)
    assert weights(killed) == weights(tmp_path / "whole")
    for name in ("samples.jsonl", "samples.npz"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_resuming_refuses_another_recipe(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run.train(recipe(), folder, watch=stop_at(3, signal.SIGTERM))
    before = (folder / "last.ckpt").read_bytes()
    with pytest.raises(
        InputError, match=r"begun with train\.learning_rate = 0\.4 and cannot go on with 0\.7"
    ):
        run.train(recipe(learning_rate=0.7), folder, resume=True)
    assert (folder / "last.ckpt").read_bytes() == before
    run.train(recipe(checkpoint_seconds=5.0), folder, resume=True)  # this changes nothing that is computed


def write_few(path, images):
    """The first digits as a file."""
    digits = load(DataSettings()).train
    pixels, labels = digits.images[:images].permute(0, 2, 3, 1).numpy(), digits.labels[:images].numpy()
    np.savez(path, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)


def test_resuming_what_another_version_wrote(tmp_path):
    with pytest.raises(Interrupted):
        run.train(recipe(), tmp_path / "run", watch=stop_at(5, signal.SIGTERM))
    state = load_checkpoint(tmp_path / "run/last.ckpt")
    for change, said in (
        (lambda: state["optimizer"]["param_groups"].pop(), "holds other weights .* another version's"),
        (lambda: state["method"].popitem(), "holds other weights .* another version's"),
        (lambda: state.pop("method"), "truncated or not a checkpoint"),
    ):
        change()
        save_checkpoint(tmp_path / "run/last.ckpt", state)
        with pytest.raises(InputError, match=said):
            run.train(recipe(), tmp_path / "run", resume=True)


def test_resuming_refuses_other_data_and_other_devices(tmp_path):
    write_few(tmp_path / "few.npz", 96)
    few = replace(recipe(batch_size=32), data=DataSettings("npz", str(tmp_path / "few.npz")))
    with pytest.raises(Interrupted):
        run.train(few, tmp_path / "run", watch=stop_at(4, signal.SIGTERM))
    with np.load(tmp_path / "few.npz") as file:
        arrays = {**file}
    labels, images = arrays["train_labels"], arrays["train_images"]
    other = {"train_images": 255 - images}, {"train_labels": labels[::-1]}
    fewer = {"train_images": images[:64], "train_labels": labels[:64]}
    for changed in (*other, fewer):
        np.savez(tmp_path / "few.npz", **arrays | changed)
        with pytest.raises(InputError, match=r"was begun with other data than lie at '.*few\.npz' now"):
            run.train(few, tmp_path / "run", resume=True)
    write_few(tmp_path / "few.npz", 96)
    checkpoint = tmp_path / "run/last.ckpt"
    state = torch.load(checkpoint, weights_only=True)
    state["conditions"]["device"] = "cuda"
    torch.save(state, checkpoint)
    with pytest.raises(InputError, match="begun with device = cuda and cannot go on with cpu"):
        run.train(few, tmp_path / "run", resume=True)
    del state["optimizer"]
    state["conditions"]["device"] = "cpu"
    torch.save(state, checkpoint)
    with pytest.raises(InputError, match="not a checkpoint"):
        run.train(few, tmp_path / "run", resume=True)


def test_what_was_free_to_change_on_resume_is_kept(tmp_path):
    """The data have moved, and another number of neighbours is to judge; the rest of the record stays."""
    write_few(tmp_path / "here.npz", 96)
    few = replace(recipe(batch_size=32), data=DataSettings("npz", str(tmp_path / "here.npz")))
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run.train(few, folder, watch=stop_at(4, signal.SIGTERM), command="as it began")
    before = (folder / "recipe.json").read_bytes()
    (tmp_path / "here.npz").rename(tmp_path / "there.npz")
    moved = replace(
        few,
        data=DataSettings("npz", str(tmp_path / "there.npz")),
        evaluate=replace(few.evaluate, knn=KNN(k=3, also=())),
    )
    with pytest.raises(InputError, match="cannot go on with 1"):
        run.train(replace(moved, train=replace(moved.train, seed=1)), folder, resume=True)
    assert (folder / "recipe.json").read_bytes() == before
    run.train(moved, folder, resume=True)
    assert run_folder.stored_recipe(folder) == moved
    then, now = json.loads(before), json.loads((folder / "recipe.json").read_text())
    assert {**then, "recipe": None} == {**now, "recipe": None}
    assert run.evaluate(folder, device="cpu", only=("knn",))["knn"].scores["top1"] > 0


def test_a_record_that_cannot_be_read_is_not_replaced(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run.train(recipe(), folder, watch=stop_at(3, signal.SIGTERM))
    (folder / "recipe.json").write_text('{"recipe": ')
    with pytest.raises(InputError, match=r"recipe\.json cannot be read; restore it"):
        run.train(recipe(), folder, resume=True)
    assert (folder / "recipe.json").read_text() == '{"recipe": '
    assert torch.load(folder / "last.ckpt", weights_only=True)["step"] == 3


def test_the_clock_goes_on_after_a_resume(tmp_path):
    """Also with the time since the last row, in the middle of which it was stopped."""
    folder = tmp_path / "run"

    def slowly(progress, row):
        if progress.step == 11:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run.train(recipe(), folder, watch=slowly)
    before = rows(folder)[-1]["seconds"]
    run.train(recipe(), folder, resume=True)
    assert [row["step"] for row in rows(folder)] == [5, 10, 15, 20]
    seconds = [row["seconds"] for row in rows(folder)]
    assert seconds == sorted(seconds)
    assert seconds[1] == before
    assert seconds[2] >= before + 0.5


def test_half_precision_trains(tmp_path):
    """On few images: processors without half-precision arithmetic convolve slowly."""
    path = tmp_path / "few.npz"
    write_few(path, 64)
    found = {}
    for precision in ("fp32", "bf16", "fp16", "auto"):
        few = replace(
            recipe(epochs=3, batch_size=32, precision=precision), data=DataSettings("npz", str(path))
        )
        found[precision] = rows(run.train(few, tmp_path / precision))
    of_auto = "bf16" if computes_in_bf16(torch.device("cpu")) else "fp32"
    assert [row["loss"] for row in found["auto"]] == [row["loss"] for row in found[of_auto]]
    for precision in ("bf16", "fp16"):
        assert found[precision][0]["loss"] == pytest.approx(found["fp32"][0]["loss"], rel=0.02)
        assert found[precision][-1]["loss"] < found[precision][0]["loss"]


def test_divergence_ends_in_one_sentence(tmp_path):
    with pytest.raises(RunError, match=r"training diverged at step .* lower train\.learning_rate") as caught:
        run.train(recipe(learning_rate=1e12, warmup_epochs=0), tmp_path / "run")
    assert not isinstance(caught.value, InputError)
    assert not (tmp_path / "run/encoder.safetensors").exists()


def test_processes_ask_each_other_every_few_seconds_however_long_a_step_takes(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    for of_one_step, wanted in ((0.01, [1, 51, 101]), (1.0, [1, 6, 11, 16]), (20.0, [1, 2, 3, 4])):
        asked, now = [], [0.0]
        agreed = loop.Agreement(0, torch.device("cpu"), lambda now=now: now[0])
        monkeypatch.setattr(
            distributed, "sum_over_processes", lambda votes, asked=asked: asked.append(1) or votes
        )
        steps = []
        for step in range(1, wanted[-1] + 1):
            now[0] += of_one_step
            assert agreed(0, step) == 0
            steps += [step] if len(asked) > len(steps) else []
        assert steps == wanted
        assert [agreed(signal.SIGINT, step) for step in range(step + 1, agreed.next + 1)][
            -1
        ] == signal.SIGTERM


def test_a_batch_larger_than_the_data(tmp_path):
    with pytest.raises(InputError, match=r"batch_size is 4096 but there are only 1297 training images"):
        run.train(recipe(batch_size=4096), tmp_path / "run")


@pytest.mark.parametrize(("processes", "apart", "ends"), [(1, 0.5, False), (1, 1.5, True), (2, 1.5, False)])
def test_a_second_signal_ends_one_process_if_it_is_meant(processes, apart, ends, monkeypatch):
    """Not a key pressed twice; and torchrun passes on to several what they may have had already."""
    ended = []
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append("ended"))
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    now = 100.0
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now)
    try:
        with requests_to_stop() as request:
            signal.raise_signal(signal.SIGTERM)
            now += apart
            signal.raise_signal(signal.SIGTERM)
            assert request.number == signal.SIGTERM
        assert ended == (["ended"] if ends else [])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_loss_that_has_diverged_in_another_process_is_not_saved(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run.train(recipe(), folder, watch=stop_at(3, signal.SIGTERM))
    monkeypatch.setattr(distributed, "any_process", lambda flag, device: True)
    with pytest.raises(RunError, match=r"diverged at step 4 \(the loss is not finite.*checkpoint is kept"):
        run.train(recipe(), folder, resume=True, watch=stop_at(4, signal.SIGTERM))
    assert torch.load(folder / "last.ckpt", weights_only=True)["step"] == 3


def test_threads_are_those_that_the_run_was_begun_with(tmp_path, monkeypatch):
    folder, seen = tmp_path / "run", []
    with pytest.raises(Interrupted):
        run.train(recipe(), folder, watch=stop_at(3, signal.SIGTERM))
    facts = json.loads((folder / "recipe.json").read_text())
    assert facts["threads"] == torch.get_num_threads() == 1
    (folder / "recipe.json").write_text(json.dumps({**facts, "threads": 2}))
    monkeypatch.delenv("OMP_NUM_THREADS")
    run.train(recipe(), folder, resume=True, watch=lambda *_: seen.append(torch.get_num_threads()))
    assert set(seen) == {2} and torch.get_num_threads() == 1
