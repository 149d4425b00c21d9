"""Images in a file, against the same folder read into memory."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import InputError
from varcon.data import DataSettings, load, stored
from varcon.data.folder import load_folder
from varcon.data.stored import NOT_YET, StoredImages

SIZE = 6


def make(root: Path, counts: dict[str, int]) -> Path:
    """Folders of classes with so many images each, all different."""
    drawn = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = drawn.integers(0, 256, (SIZE + number % 3, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "pets", {"train/cat": 7, "train/dog": 5, "test/cat": 2, "test/dog": 3})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def sums_file(store: Path) -> Path:
    (file,) = store.glob("*-sums.npy")
    return file


@pytest.mark.parametrize("layout", ["train/", ""])  # with test images, and with some held out in their place
@pytest.mark.parametrize(
    "asked", [{}, {"per_class": 2}, {"held_out": 0.4}, {"held_out": 0.4, "per_class": 1}]
)
def test_the_same_as_in_memory(tmp_path, store, layout, asked):
    counts = {f"{layout}cat": 9, f"{layout}dog": 8}
    root = make(tmp_path / "pets", {**counts, "test/cat": 2, "test/dog": 1} if layout else counts)
    settings = {"name": "folder", "path": str(root), "image_size": SIZE, **asked}
    whole, kept = load(DataSettings(**settings)), load(DataSettings(**settings, store=str(store)))
    assert kept.classes == whole.classes
    assert (kept.mean, kept.std) == (whole.mean, whole.std)  # to the last bit
    for ours, theirs in ((kept.train, whole.train), (kept.test, whole.test)):
        assert isinstance(ours.images, StoredImages)
        assert ours.images.shape == theirs.images.shape and len(ours) == len(theirs)
        assert torch.equal(ours.images[:], theirs.images)
        assert torch.equal(ours.labels, theirs.labels) and ours.files == theirs.files


def test_parts_are_read_in_the_order_asked_for(root, store):
    images, whole = (load_folder(str(root), SIZE, store=place).train.images for place in (str(store), ""))
    places = torch.tensor([11, 0, 5, 5])
    assert torch.equal(images[places], whole[places])
    assert torch.equal(images[3:8], whole[3:8])
    some = images.only(places)
    assert torch.equal(some[1:], whole[places[1:]]) and some.shape == (4, 3, SIZE, SIZE)
    assert torch.equal(torch.cat(list(images.split(5))), whole)
    target = torch.empty((4, 3, SIZE, SIZE), dtype=torch.uint8)
    images.only(torch.arange(11, -1, -1)).only(places).read_into(target)
    assert torch.equal(target, whole.flip(0)[places])
    names = {part.digest() for part in (images, some, images.only(places.flip(0)))}
    assert len(names) == 3 and images.only(places).digest() == some.digest()


def test_what_is_written_to_a_part_does_not_reach_the_file(root, store):
    images = load_folder(str(root), SIZE, store=str(store)).train.images
    before = images[:]
    images[:].zero_()
    images[:3].fill_(7)
    assert torch.equal(load_folder(str(root), SIZE, store=str(store)).train.images[:], before)


def test_the_file_is_numpys_own(root, store):
    data = load_folder(str(root), SIZE, store=str(store))
    (file,) = (path for path in store.glob("*.npy") if not path.name.endswith("-sums.npy"))
    assert file.name.startswith(f"pets-{SIZE}-")
    array = np.load(file)
    assert array.shape == (17, 3, SIZE, SIZE)
    assert np.array_equal(array[:12], data.train.images[:].numpy())


def test_a_second_call_decodes_nothing_and_a_replaced_image_everything(root, store, monkeypatch):
    load_folder(str(root), SIZE, store=str(store))
    decoded = []
    write = stored.write_squares
    monkeypatch.setattr(
        stored, "write_squares", lambda files, *rest: decoded.extend(files) or write(files, *rest)
    )
    load_folder(str(root), SIZE, store=str(store))
    assert decoded == []
    file = root / "train/cat/3.png"
    Image.new("RGB", (SIZE, SIZE), "red").save(file)
    os.utime(file, ns=(1, 1))  # whatever the clock's resolution
    again = load_folder(str(root), SIZE, store=str(store)).train
    assert len(decoded) == 17
    assert torch.equal(again.images[3:4], load_folder(str(root), SIZE).train.images[3:4])


def test_decoding_that_was_stopped_goes_on(root, store, monkeypatch):
    monkeypatch.setattr(stored, "IMAGES_BETWEEN_SAVES", 4)
    write = stored.write_squares

    def stopped(files, size, put, progress):
        def at_most(i, pixels):
            if i == 9:
                raise KeyboardInterrupt
            put(i, pixels)

        write(files, size, at_most, progress, 1)

    monkeypatch.setattr(stored, "write_squares", stopped)
    with pytest.raises(KeyboardInterrupt):
        load_folder(str(root), SIZE, store=str(store))
    known = np.load(sums_file(store))[:, 0, 0] != NOT_YET
    assert known[:9].all() and not known[9:16].any()  # the last is another thread's task

    decoded, seen = [], []
    monkeypatch.setattr(
        stored, "write_squares", lambda files, *rest: decoded.extend(files) or write(files, *rest)
    )
    data = load_folder(str(root), SIZE, lambda done, total, what: seen.append((done, total)), str(store))
    assert len(decoded) == 17 - known.sum() and seen[-1] == (17, 17) and seen[0][0] > 9
    assert torch.equal(data.train.images[:], load_folder(str(root), SIZE).train.images)
    assert data.mean == load_folder(str(root), SIZE).mean


def test_a_broken_image_is_named_and_the_others_are_kept(root, store):
    (root / "train/dog/1.png").write_bytes(b"no image")
    (root / "test/dog/2.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"dog/1\.png cannot be read .*, and also .*dog/2\.png"):
        load_folder(str(root), SIZE, store=str(store))
    assert (np.load(sums_file(store))[:, 0, 0] == NOT_YET).sum() == 2


@pytest.mark.parametrize("damage", ["sums cut short", "images cut short", "no images"])
def test_a_file_that_is_gone_or_cut_short_is_made_again(root, store, damage):
    expected = load_folder(str(root), SIZE, store=str(store)).train.images[:].clone()
    sums = sums_file(store)
    images = sums.with_name(sums.name.replace("-sums", ""))
    if damage == "no images":
        images.unlink()
    else:
        file = sums if damage.startswith("sums") else images
        file.write_bytes(file.read_bytes()[:-50])
    assert torch.equal(load_folder(str(root), SIZE, store=str(store)).train.images[:], expected)


def test_room_is_asked_for_first(root, store, monkeypatch):
    room = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(stored.shutil, "disk_usage", lambda folder: room)
    words = (
        r"17 images of 6 x 6 pixels need 0\.00 GB and .*store has 0\.00 GB free: .*image_size to 4 or less"
    )
    with pytest.raises(InputError, match=words):
        load_folder(str(root), SIZE, store=str(store))


def test_a_store_that_cannot_be_written(root, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"data.store .*file cannot be written .*: set it to a folder of yours"
    ):
        load_folder(str(root), SIZE, store=str(tmp_path / "file"))


def test_other_data_have_no_store():
    with pytest.raises(InputError, match=r"data.store is for data.name folder, not cifar10"):
        DataSettings("cifar10", "data", store="store")


def mean_of_stored(root, store):
    return load_folder(root, SIZE, store=store).mean


def test_several_processes_share_what_one_of_them_decodes(root, store):
    """All begin at once; each has the whole, and the file is made once."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        means = pool.starmap(mean_of_stored, [(str(root), str(store))] * 3)
    assert means == [load_folder(str(root), SIZE).mean] * 3
    assert len(list(store.glob("*.npy"))) == 2


def test_who_waits_is_told_how_far_the_other_has_come(root, store):
    load_folder(str(root), SIZE, store=str(store))
    sums, seen = sums_file(store), []
    whole = np.load(sums)
    np.save(sums, np.where(np.arange(17)[:, None, None] < 5, whole, NOT_YET))

    def finish(done, total, what):
        seen.append((done, total, what))
        np.save(sums, whole)  # the other is done
        stored.fcntl.flock(other, stored.fcntl.LOCK_UN)

    with (store / ".varcon-lock").open("ab") as other:
        stored.fcntl.flock(other, stored.fcntl.LOCK_EX)
        load_folder(str(root), SIZE, finish, str(store))
    assert seen == [(5, 17, "another process decodes images")]


def test_a_file_that_is_cut_short_later_is_an_error_and_no_crash(root, store):
    images = load_folder(str(root), SIZE, store=str(store)).train.images
    sums = sums_file(store)
    file = sums.with_name(sums.name.replace("-sums", ""))
    os.truncate(file, 1000)
    with pytest.raises(OSError, match=r"the file ends early: .*pets-6"):
        images[:]


def test_many_threads_read_and_write_their_own_rows(tmp_path):
    expected = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 5), dtype=np.uint8)
    np.save(tmp_path / "rows.npy", np.zeros_like(expected))
    rows = stored.Rows(tmp_path / "rows.npy", "r+b")

    def there_and_back(place):
        rows.write(place, expected[place])
        found = np.empty((2, 3, 5, 5), dtype=np.uint8)
        rows.read_into(found, [place, place])
        return np.array_equal(found, expected[[place, place]])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(40)))
    rows.close()
    assert np.array_equal(np.load(tmp_path / "rows.npy"), expected)
