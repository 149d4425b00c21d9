"""Images in a file, against the same folder read into memory."""

import errno
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import InputError
from varcon.data import DataSettings, decoding, load, stored
from varcon.data.folder import load_folder
from varcon.data.rows import NOT_YET
from varcon.data.stored import StoredImages
from varcon.engine.interrupt import Interrupted

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


def pixels_file(store: Path) -> Path:
    (file,) = store.glob("*.pixels")
    return file


def index_file(store: Path) -> Path:
    return pixels_file(store).with_suffix(".index")


def decoded(store: Path) -> np.ndarray:
    """Whether each row of the file is."""
    return np.load(index_file(store))["sums"][:, 0, 0] != NOT_YET


@pytest.fixture
def watched(monkeypatch) -> list[Path]:
    """The files that are decoded."""
    files, write = [], stored.write_squares

    def write_squares(which, *rest):
        files.extend(which)
        write(which, *rest)

    monkeypatch.setattr(stored, "write_squares", write_squares)
    return files


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


def test_the_file_is_pixels_alone(root, store):
    data = load_folder(str(root), SIZE, store=str(store))
    file = pixels_file(store)
    assert file.name.startswith(f"pets-{SIZE}-")
    pixels = np.fromfile(file, np.uint8).reshape(17, 3, SIZE, SIZE)
    assert np.array_equal(pixels[:12], data.train.images[:].numpy())


def test_a_second_call_decodes_nothing_and_later_ones_what_is_new(root, store, watched):
    first = load_folder(str(root), SIZE, store=str(store)).train.images
    assert len(watched) == 17
    watched.clear()
    load_folder(str(root), SIZE, store=str(store))
    assert watched == []
    replaced, added, removed = (root / "train/cat" / name for name in ("3.png", "10.png", "0.png"))
    before = first[:]
    for file in (replaced, added):
        Image.new("RGB", (SIZE, SIZE), "red").save(file)
        os.utime(file, ns=(1, 1))  # whatever the clock's resolution
    removed.unlink()
    again = load_folder(str(root), SIZE, store=str(store))
    assert watched == [added, replaced]  # in the order of their names
    whole = load_folder(str(root), SIZE)
    assert torch.equal(again.train.images[:], whole.train.images) and again.mean == whole.mean
    assert torch.equal(again.test.images[:], whole.test.images)
    assert torch.equal(first[:], before)  # of a run that goes on meanwhile
    assert again.train.images.digest() != first.digest()


def test_a_folder_by_another_name_is_known_again(root, store, watched):
    first = load_folder(str(root), SIZE, store=str(store)).train.images
    again = load_folder(str(root.rename(root.with_name("cats"))), SIZE, store=str(store)).train.images
    assert len(watched) == 17
    assert torch.equal(first[:], again[:]) and first.digest() == again.digest()


def test_a_folder_that_has_grown_keeps_what_is_decoded(tmp_path, store, watched):
    root = make(tmp_path / "pets", {"train/cat": 4, "test/cat": 2})
    load_folder(str(root), SIZE, store=str(store))
    make(root, {"train/dog": 20})
    images = load_folder(str(root), SIZE, store=str(store)).train.images
    assert len(watched) == 26
    assert torch.equal(images[:], load_folder(str(root), SIZE).train.images)


def test_sizes_and_names_are_not_mixed_up(tmp_path, store):
    root = make(tmp_path / f"pets-{SIZE}-x", {"train/cat": 4, "test/cat": 2})
    for size in (2 * SIZE, SIZE, 2 * SIZE):
        images = load_folder(str(root), size, store=str(store)).train.images
        assert torch.equal(images[:], load_folder(str(root), size).train.images)


def test_folders_whose_files_agree_in_all_but_their_pixels(tmp_path, store):
    for name, seed in (("clean", 1), ("noisy", 2)):
        drawn = np.random.default_rng(seed)
        for number in range(20):
            file = tmp_path / name / f"{'train' if number < 15 else 'test'}/cat/{number}.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(file)
            os.utime(file, ns=(1, 1))
    for name in ("clean", "noisy", "clean"):
        images = load_folder(str(tmp_path / name), SIZE, store=str(store)).train.images
        assert torch.equal(images[:], load_folder(str(tmp_path / name), SIZE).train.images)


@pytest.mark.parametrize("lost", [slice(0, 0), slice(0, 300)])  # the whole file, or its end
def test_lost_pixels_are_not_there_again_when_decoding_is_killed(root, store, monkeypatch, lost):
    expected = load_folder(str(root), SIZE, store=str(store)).train.images[:]
    file = pixels_file(store)
    file.write_bytes(file.read_bytes()[lost])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stored, "write_squares", lambda *_: interrupt())
        patch.setattr(stored.Rows, "flush", lambda _: interrupt())  # and nothing is saved
        load_folder(str(root), SIZE, store=str(store))
    assert torch.equal(load_folder(str(root), SIZE, store=str(store)).train.images[:], expected)


def test_other_folders_have_files_of_their_own(tmp_path, root, store):
    other = make(tmp_path / "birds", {"train/cat": 3, "train/dog": 9, "test/cat": 2, "test/dog": 3})
    for folder in (root, other):
        images = load_folder(str(folder), SIZE, store=str(store)).train.images
        assert torch.equal(images[:], load_folder(str(folder), SIZE).train.images)
    assert len(list(store.glob("*.pixels"))) == 2


def stopping(monkeypatch, store, at, stop):
    """Decodes on one thread, until `stop` is called before so many images."""
    write = stored.write_squares

    def stopped(files, size, put, progress):
        def at_most(i, pixels):
            if i == at:
                stop()
            put(i, pixels)

        write(files, size, at_most, progress)

    monkeypatch.setattr(stored, "write_squares", stopped)
    monkeypatch.setattr(decoding, "ThreadPoolExecutor", partial(ThreadPoolExecutor, 1))


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("seconds", [0.0, 30.0])  # between saves
def test_decoding_that_was_stopped_goes_on(root, store, monkeypatch, watched, seconds):
    monkeypatch.setattr(stored, "SECONDS_BETWEEN_SAVES", seconds)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping(patch, store, 9, interrupt)
        load_folder(str(root), SIZE, store=str(store))
    known = decoded(store)
    assert known[:9].all() and not known[9:16].any()  # the last is another task

    watched.clear()
    seen = []
    data = load_folder(str(root), SIZE, lambda done, total, what: seen.append((done, total)), str(store))
    assert len(watched) == 17 - known.sum() and seen[-1] == (17, 17) and seen[0][0] == known.sum()
    assert torch.equal(data.train.images[:], load_folder(str(root), SIZE).train.images)
    assert data.mean == load_folder(str(root), SIZE).mean


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_decoding_and_nothing_is_lost(tmp_path, store, monkeypatch, number):
    root = make(tmp_path / "pets", {"train/cat": 40, "test/cat": 2})
    stopping(monkeypatch, store, 20, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted, match="stopped; the images that are decoded are kept") as stopped:
        load_folder(str(root), SIZE, store=str(store))
    assert stopped.value.signal == number
    assert 20 < decoded(store).sum() <= 42


def test_a_broken_image_is_named_and_the_others_are_kept(root, store, watched):
    broken = [root / "test/dog/2.png", root / "train/dog/1.png"]
    for file in broken:
        file.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"dog/1\.png cannot be read .*, and also .*dog/2\.png"):
        load_folder(str(root), SIZE, store=str(store))
    assert (~decoded(store)).sum() == 2
    watched.clear()
    for file in broken:
        Image.new("RGB", (SIZE, SIZE), "red").save(file)
    images = load_folder(str(root), SIZE, store=str(store)).train.images
    assert sorted(watched) == broken
    assert torch.equal(images[:], load_folder(str(root), SIZE).train.images)


def test_an_error_of_the_disk_is_no_image_s(tmp_path, store, monkeypatch):
    root = make(tmp_path / "pets", {"train/cat": 70, "test/cat": 2})
    write, written = stored.Rows.write, []

    def failing(rows, place, square):
        written.append(place)
        if place == 5:
            raise OSError(errno.EIO, "Input/output error", "the file")
        write(rows, place, square)

    monkeypatch.setattr(stored.Rows, "write", failing)
    with pytest.raises(OSError, match="Input/output error: 'the file'"):
        load_folder(str(root), SIZE, store=str(store))
    assert len(written) < 72  # the rest is left undone
    assert decoded(store).any() and not decoded(store)[5]


@pytest.mark.parametrize("damage", ["index cut short", "no index", "pixels cut short", "no pixels"])
def test_a_file_that_is_gone_or_cut_short_is_made_again(root, store, damage):
    expected = load_folder(str(root), SIZE, store=str(store)).train.images[:].clone()
    file = index_file(store) if "index" in damage else pixels_file(store)
    if damage.startswith("no"):
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-50])
    assert torch.equal(load_folder(str(root), SIZE, store=str(store)).train.images[:], expected)


def test_who_reads_a_file_keeps_it_when_its_index_is_lost(root, store):
    load_folder(str(root), SIZE, store=str(store))
    (root / "train/cat/00.png").write_bytes((root / "train/dog/0.png").read_bytes())
    images = load_folder(str(root), SIZE, store=str(store)).train.images  # a row was added, not in order
    before = images[:]
    index_file(store).unlink()
    again = load_folder(str(root), SIZE, store=str(store)).train.images
    assert torch.equal(images[:], before) and torch.equal(again[:], before)


def test_without_locks_nobody_s_images_are_lost(root, store, monkeypatch):
    """Another process has the file half decoded when we begin, and is done before we are."""
    monkeypatch.setattr(stored, "fcntl", None)
    expected = load_folder(str(root), SIZE).train.images
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping(patch, store, 9, interrupt)
        load_folder(str(root), SIZE, store=str(store))
    index_file(store).unlink()  # as long as the other has not saved
    theirs = stored.Rows(pixels_file(store), (3, SIZE, SIZE))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping(patch, store, 1, interrupt)
        load_folder(str(root), SIZE, store=str(store))
    kept = np.empty((9, 3, SIZE, SIZE), dtype=np.uint8)
    theirs.read_into(kept, list(range(9)))
    assert np.array_equal(kept, expected[:9].numpy())
    assert torch.equal(load_folder(str(root), SIZE, store=str(store)).train.images[:], expected)


def test_room_is_asked_for_first(root, store, monkeypatch):
    room = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(stored.shutil, "disk_usage", lambda folder: room)
    words = (
        r"17 images of 6 x 6 pixels need 0\.00 GB and .*store has 0\.00 GB free: .*image_size to 4 or less"
    )
    with pytest.raises(InputError, match=words):
        load_folder(str(root), SIZE, store=str(store))


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_store_that_cannot_be_written(root, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"data.store .* cannot be written .*: set it to a folder of yours"):
        load_folder(str(root), SIZE, store=str(tmp_path / place))


def test_a_store_among_the_images(root):
    with pytest.raises(InputError, match="lies inside the folder of images"):
        load_folder(str(root), SIZE, store=str(root / "train/decoded"))


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
    assert len(list(store.glob("*.pixels"))) == 1


def decode_slowly(root, store):
    write = stored.Rows.write

    def slow(rows, place, square):
        time.sleep(0.05)
        write(rows, place, square)

    stored.Rows.write = slow
    load_folder(root, SIZE, store=store)


def test_who_waits_is_told_how_far_the_other_has_come(tmp_path, store):
    root = make(tmp_path / "pets", {"train/cat": 200, "test/cat": 2})
    other = multiprocessing.get_context("spawn").Process(target=decode_slowly, args=(str(root), str(store)))
    other.start()
    while not list(store.glob("*.pixels")):  # it is at it
        time.sleep(0.01)
    seen = []
    data = load_folder(str(root), SIZE, lambda *facts: seen.append(facts), str(store))
    other.join()
    counts = [done for done, total, what in seen]
    assert {(total, what) for _, total, what in seen} == {(202, "another process decodes images")}
    assert counts == sorted(counts) and any(0 < count < 202 for count in counts)
    assert torch.equal(data.train.images[:], load_folder(str(root), SIZE).train.images)


def test_a_file_that_is_cut_short_later_is_an_error_and_no_crash(root, store):
    images = load_folder(str(root), SIZE, store=str(store)).train.images
    os.truncate(pixels_file(store), 1000)
    with pytest.raises(OSError, match=r"the file ends early: .*pets-6"):
        images[:]
