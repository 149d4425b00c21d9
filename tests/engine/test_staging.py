"""Images that are brought to the device step by step, against all of them there."""

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from PIL import Image

from varcon import run
from varcon.core import InputError, Split
from varcon.data import DataSettings, load
from varcon.engine import staging
from varcon.engine.interrupt import Interrupted
from varcon.engine.journal import read_rows
from varcon.engine.staging import Resident, Staged, images_for_steps, where_images_stay
from varcon.files import file_digest
from varcon.recipe import Recipe, TrainSettings

CPU = torch.device("cpu")
SETTINGS = TrainSettings(batch_size=8, seed=3)


@pytest.fixture
def split() -> Split:
    """Each image is filled with its own number."""
    numbers = torch.arange(50, dtype=torch.uint8)
    return Split(numbers.view(50, 1, 1, 1).expand(50, 3, 4, 4).contiguous(), torch.arange(50) % 5)


@pytest.mark.parametrize("step", [0, 4, 13])
@pytest.mark.parametrize("balanced", [False, True])
def test_each_step_has_its_own_images(split, step, balanced):
    settings = replace(SETTINGS, balanced=balanced)
    resident, staged = Resident(split, CPU), Staged(split, 8, CPU)
    both = zip(resident.batches(settings, step), staged.batches(settings, step), strict=False)
    for _, (expected, indices) in zip(range(20), both, strict=False):  # over three epochs
        assert torch.equal(indices, expected)
        assert torch.equal(staged.images, resident.images[resident.places(indices)])
        assert staged.places(indices) is None
        assert torch.equal(staged.labels[indices], split.labels[indices])


def test_indices_stay_as_they_were_given(split):
    """A step may still read them when the slot that they came in is filled anew."""
    coming = Staged(split, 8, CPU).batches(SETTINGS, 0)
    given = [next(coming) for _ in range(6)]
    expected = Resident(split, CPU).batches(SETTINGS, 0)
    assert all(torch.equal(indices, next(expected)) for indices in given)


def test_images_are_read_ahead_by_one_thread_which_ends_with_the_run(split):
    class Slow:
        shape, dtype = split.images.shape, split.images.dtype
        readers: ClassVar[set[str]] = set()

        def only(self, which):
            return self

        def read_into(self, target):
            self.readers.add(threading.current_thread().name)

    before = threading.active_count()
    coming = Staged(Split(Slow(), split.labels), 8, CPU).batches(SETTINGS, 0)
    next(coming)
    assert threading.active_count() == before + 1
    coming.close()
    assert threading.active_count() == before and Slow.readers == {"images_0"}


def test_an_error_of_reading_reaches_the_run(split):
    class Broken:
        shape, dtype = split.images.shape, split.images.dtype

        def only(self, which):
            return self

        def read_into(self, target):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        next(Staged(Split(Broken(), split.labels), 8, CPU).batches(SETTINGS, 0))


@pytest.mark.parametrize(("free", "place"), [(2 * 50 * 48, "device"), (2 * 50 * 48 - 1, "memory")])
def test_a_gpu_without_room_leaves_images_in_memory(split, free, place, monkeypatch):
    monkeypatch.setattr(staging.torch.cuda, "mem_get_info", lambda device: (free, 10**9))
    assert where_images_stay(split.images, torch.device("cuda")) == place
    assert where_images_stay(split.images, CPU) == "device"
    assert isinstance(images_for_steps(split, 8, CPU), Resident)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pictures") / "digits"
    data = load(DataSettings())
    for part, split in (("train", data.train), ("test", data.test)):
        for number, (image, label) in enumerate(zip(split.images[:200], split.labels.tolist(), strict=False)):
            folder = root / part / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:03}.png")
    return root


def a_recipe(pictures: Path, store: str = "") -> Recipe:
    settings = TrainSettings(epochs=3, batch_size=32, device="cpu", snapshots=(1,))
    return Recipe(data=DataSettings("folder", str(pictures), 8, store), train=settings)


def outcome(folder: Path) -> tuple:
    rows = [{**row, "seconds": 0, "images_per_second": 0} for row in read_rows(folder / "metrics.jsonl")]
    return file_digest(folder / "encoder.safetensors"), rows


def test_training_from_a_store_ends_at_the_same_bytes(pictures, tmp_path):
    whole = run.train(a_recipe(pictures), tmp_path / "whole")
    stored = run.train(a_recipe(pictures, str(tmp_path / "store")), tmp_path / "stored")
    assert outcome(stored) == outcome(whole)
    facts = [run.recorded_facts(folder)["images_stay_on"] for folder in (whole, stored)]
    assert facts == ["device", "disk"]
    scores = [
        run.evaluate(folder, device="cpu", only=("knn", "linear", "pixels")) for folder in (whole, stored)
    ]
    for name in scores[0]:
        assert scores[0][name].scores == scores[1][name].scores
    files = len(list((stored / "features").iterdir()))
    run.evaluate(stored, device="cpu", only="knn")  # by the features that are kept
    assert len(list((stored / "features").iterdir())) == files


def test_a_stopped_run_goes_on_from_another_store(pictures, tmp_path):
    """Or from memory: where images lie is no part of what a run computes."""

    def stop(progress, row):
        if progress.step == 8:
            signal.raise_signal(signal.SIGTERM)

    whole = run.train(a_recipe(pictures), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run.train(a_recipe(pictures, str(tmp_path / "one")), tmp_path / "stored", watch=stop)
    run.train(a_recipe(pictures, str(tmp_path / "two")), tmp_path / "stored", resume=True)
    assert outcome(tmp_path / "stored")[0] == outcome(whole)[0]


def test_a_store_is_found_from_everywhere_and_not_needed_any_more(pictures, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = run.train(a_recipe(pictures, "store"), tmp_path / "run")

    def judged(**places):
        return run.evaluate(folder, device="cpu", only="pixels", **places)["pixels"].scores

    monkeypatch.chdir(tmp_path / "there")
    expected = judged()
    assert not list(Path().iterdir())  # as it would be by a relative place
    assert judged(data_store="another") == expected and list(Path("another").glob("*.pixels"))
    (tmp_path / "here/store").rename(tmp_path / "gone")
    assert judged() == expected
    assert not (tmp_path / "here/store").exists()


def test_a_store_in_the_run_s_folder(pictures, tmp_path):
    for place in ("run", "run/decoded"):
        with pytest.raises(InputError, match=r"data\.store .* lies in the run's folder .*: set it to an"):
            run.train(a_recipe(pictures, str(tmp_path / place)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
