"""Against a server on loopback that serves small archives of the published structure."""

import hashlib
import io
import os
import pickle
import signal
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from varcon.cli import main
from varcon.core import InputError
from varcon.data import download as module
from varcon.data.cifar import load_cifar10, load_cifar100
from varcon.data.download import DATA_SETS, Published, download
from varcon.data.listing import find_images


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []  # file and range
        self.resumes = True
        self.dies_after: int | None = None  # bytes of an answer
        self.at_death = lambda: None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path.removeprefix("/"), self.headers["Range"]
        self.server.asked.append((name, wanted))
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.resumes else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.dies_after])
        if self.server.dies_after is not None:
            self.wfile.flush()
            self.server.at_death()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as one:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            one.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def mat(values: dict[str, Any]) -> bytes:
    packed = io.BytesIO()
    savemat(packed, values)
    return packed.getvalue()


def served(server: Server, name: str, files: dict[str, bytes], holds: dict[str, int]) -> dict[str, Published]:
    """The data set `name` with these files in place of its own."""
    server.files |= files
    sums = {file: hashlib.md5(content).hexdigest() for file, content in files.items()}
    return {name: replace(DATA_SETS[name], address=server.address, files=sums, holds=holds)}


def part(num_classes: int, key: bytes, seed: int) -> bytes:
    """Incompressible, so that an archive of it is of some size."""
    pixels = np.random.default_rng(seed).integers(0, 256, (num_classes, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": pixels, key: list(range(num_classes))}, 2)


@pytest.fixture
def cifar100(server: Server) -> dict[str, Published]:
    names = [f"name {i}" for i in range(100)]
    files = {
        "cifar-100-python/meta": pickle.dumps({"fine_label_names": names}, 2),
        "cifar-100-python/train": part(100, b"fine_labels", 1),
        "cifar-100-python/test": part(100, b"fine_labels", 2),
    }
    packed = {"cifar-100-python.tar.gz": archive(files)}
    return served(server, "cifar100", packed, DATA_SETS["cifar100"].holds)


ARCHIVE = "cifar-100-python.tar.gz"
PART = f"{ARCHIVE}.part"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def pixels(num_classes: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).integers(0, 256, (num_classes, 3072), dtype=np.uint8)
    return found.reshape(-1, 3, 32, 32)


# ---- what is fetched ----


def test_cifar100_is_what_its_loader_reads(server: Server, cifar100: Any, tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    folder, was_there = download("cifar100", tmp_path / "a/b", lambda *one: told.append(one), cifar100)
    assert (folder, was_there) == (tmp_path / "a/b/cifar-100-python", False)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["cifar-100-python"]
    data = load_cifar100(str(tmp_path / "a/b"))
    assert (data.train.images.numpy() == pixels(100, 1)).all()
    assert (data.test.images.numpy() == pixels(100, 2)).all()
    size = len(server.files[ARCHIVE])
    for what in (f"downloading {ARCHIVE}", f"unpacking {ARCHIVE}"):
        done = [one[0] for one in told if one[2] == what]
        assert done == sorted(done)
        assert done.count(size) == 1, "the end is told once"
    assert {total for _, total, _ in told} == {size}


def test_cifar10_is_what_its_loader_reads(server: Server, tmp_path: Path) -> None:
    files = {f"cifar-10-batches-py/data_batch_{i}": part(10, b"labels", i) for i in range(1, 6)}
    files["cifar-10-batches-py/test_batch"] = part(10, b"labels", 6)
    files["cifar-10-batches-py/batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")}, 2)
    packed = {"cifar-10-python.tar.gz": archive(files)}
    sets = served(server, "cifar10", packed, DATA_SETS["cifar10"].holds)
    folder, _ = download("cifar10", tmp_path, None, sets)
    data = load_cifar10(str(folder))
    assert (data.train.images.numpy() == np.concatenate([pixels(10, i) for i in range(1, 6)])).all()
    assert (data.test.images.numpy() == pixels(10, 6)).all()


def test_flowers_lie_by_split_and_number(server: Server, tmp_path: Path) -> None:
    files = {
        "102flowers.tgz": archive({f"jpg/image_{i:05}.jpg": b"image %d" % i for i in range(1, 8)}),
        "imagelabels.mat": mat({"labels": np.array([[77, 77, 1, 1, 102, 102, 77]], np.uint8)}),
        "setid.mat": mat({"trnid": [[1, 3]], "valid": np.array([[6]], np.uint16), "tstid": [[7, 2, 4, 5]]}),
    }
    sets = served(server, "flowers102", files, {"train/*/*.jpg": 3, "test/*/*.jpg": 4})
    folder, _ = download("flowers102", tmp_path, None, sets)
    assert contents(tmp_path) == {
        "flowers102/train/077/image_00001.jpg": b"image 1",
        "flowers102/train/001/image_00003.jpg": b"image 3",
        "flowers102/train/102/image_00006.jpg": b"image 6",
        "flowers102/test/077/image_00002.jpg": b"image 2",
        "flowers102/test/077/image_00007.jpg": b"image 7",
        "flowers102/test/001/image_00004.jpg": b"image 4",
        "flowers102/test/102/image_00005.jpg": b"image 5",
    }
    assert find_images(folder).classes == ["001", "077", "102"]


def test_pets_lie_by_split_and_breed(server: Server, tmp_path: Path) -> None:
    names = ["Abyssinian_1", "Abyssinian_2", "german_shorthaired_1", "german_shorthaired_20"]
    images = {f"images/{name}.jpg": name.encode() for name in names}
    lists = {
        "annotations/trainval.txt": b"Abyssinian_2 1 1 1\ngerman_shorthaired_1 2 2 1\n",
        "annotations/test.txt": b"Abyssinian_1 1 1 1\ngerman_shorthaired_20 2 2 1\n",
        "annotations/list.txt": b"#Image CLASS-ID\nAbyssinian_1 1 1 1\n",
    }
    files = {
        "images.tar.gz": archive({**images, "images/Abyssinian_1.mat": b"?"}),
        "annotations.tar.gz": archive(lists),
    }
    sets = served(server, "oxford_pets", files, {"train/*/*.jpg": 2, "test/*/*.jpg": 2})
    download("oxford_pets", tmp_path, None, sets)
    assert contents(tmp_path) == {
        "oxford_pets/train/Abyssinian/Abyssinian_2.jpg": b"Abyssinian_2",
        "oxford_pets/train/german_shorthaired/german_shorthaired_1.jpg": b"german_shorthaired_1",
        "oxford_pets/test/Abyssinian/Abyssinian_1.jpg": b"Abyssinian_1",
        "oxford_pets/test/german_shorthaired/german_shorthaired_20.jpg": b"german_shorthaired_20",
    }


def test_what_is_there_is_not_fetched(server: Server, cifar100: Any, tmp_path: Path) -> None:
    download("cifar100", tmp_path, None, cifar100)
    before = contents(tmp_path)
    server.asked.clear()
    assert download("cifar100", tmp_path, None, cifar100) == (tmp_path / "cifar-100-python", True)
    (tmp_path / "cifar-100-python/train").unlink()
    with pytest.raises(
        InputError, match="cifar-100-python has only 0 of 1 files train: remove it, or choose"
    ):
        download("cifar100", tmp_path, None, cifar100)
    assert contents(tmp_path) == {name: before[name] for name in before if not name.endswith("train")}
    assert server.asked == []


def test_an_archive_brought_by_other_means(server: Server, cifar100: Any, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(b"something else")
    with pytest.raises(InputError, match=r"instead of .*: move it away") as caught:
        download("cifar100", tmp_path, None, cifar100)
    assert hashlib.md5(b"something else").hexdigest() in str(caught.value)
    assert contents(tmp_path) == {ARCHIVE: b"something else"}
    (tmp_path / ARCHIVE).write_bytes(server.files[ARCHIVE])
    download("cifar100", tmp_path, None, cifar100)
    assert server.asked == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-100-python", ARCHIVE]


# ---- downloads that break ----


@pytest.mark.parametrize("resumes", [True, False])
def test_a_broken_download_goes_on(server: Server, cifar100: Any, tmp_path: Path, resumes: bool) -> None:
    whole = server.files[ARCHIVE]
    server.dies_after, server.resumes = 100_000, resumes
    with pytest.raises(
        InputError, match=rf"broke after 100,000 of {len(whole):,} bytes .* goes on from there"
    ):
        download("cifar100", tmp_path, None, cifar100)
    assert contents(tmp_path) == {PART: whole[:100_000]}
    server.dies_after = None
    told: list[tuple[int, int, str]] = []
    folder, _ = download("cifar100", tmp_path, lambda *one: told.append(one), cifar100)
    assert server.asked == [(ARCHIVE, None), (ARCHIVE, "bytes=100000-")]
    assert told[0][:2] == (100_000 if resumes else 0, len(whole))
    assert ("from its beginning, as the server cannot resume" in told[0][2]) == (not resumes)
    assert (load_cifar100(str(folder)).train.images.numpy() == pixels(100, 1)).all()
    assert not (tmp_path / PART).exists()


@pytest.mark.parametrize("before", [b"", b"x" * 1000, b"x" * 10_000_000])
def test_a_wrong_checksum(server: Server, cifar100: Any, tmp_path: Path, before: bytes) -> None:
    """Of what is served, of a beginning that is not its, and of one longer than all that is served."""
    right = hashlib.md5(server.files[ARCHIVE]).hexdigest()
    if before:
        (tmp_path / PART).write_bytes(before)
    else:
        server.files[ARCHIVE] = b"<html>sorry</html>"
    with pytest.raises(InputError, match=rf"{ARCHIVE} came with .* instead of {right}.*{PART} was removed"):
        download("cifar100", tmp_path, None, cifar100)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_costs_none_that_has_arrived(server: Server, cifar100: Any, tmp_path: Path) -> None:
    whole = server.files.pop(ARCHIVE)
    with pytest.raises(
        InputError, match=rf"{server.address}{ARCHIVE} answers 404 \(Not Found\): try later[^;]*$"
    ):
        download("cifar100", tmp_path, None, cifar100)
    (tmp_path / PART).write_bytes(whole[:10])
    with pytest.raises(InputError, match=rf"answers 404 \(Not Found\): .*; .*{PART} keeps 10 bytes"):
        download("cifar100", tmp_path, None, cifar100)
    assert contents(tmp_path) == {PART: whole[:10]}


def test_no_network(server: Server, cifar100: Any, tmp_path: Path) -> None:
    nobody = {"cifar100": replace(cifar100["cifar100"], address="http://127.0.0.1:1/")}
    with pytest.raises(
        InputError, match=r"127\.0\.0\.1:1/cifar.* cannot be reached .*refused.*check the network"
    ):
        download("cifar100", tmp_path, None, nobody)


def test_a_full_disk(cifar100: Any, tmp_path: Path) -> None:
    (tmp_path / PART).symlink_to("/dev/full")
    with pytest.raises(InputError, match=rf"the disk of {tmp_path} is full; make room"):
        download("cifar100", tmp_path, None, cifar100)


def test_a_place_that_is_no_folder(server: Server, cifar100: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match=r"file.*: .*choose another place with --to"):
            download("cifar100", tmp_path / place, None, cifar100)
    assert (tmp_path / "file").read_text() == "mine"
    assert server.asked == []


# ---- unpacking ----


def test_an_archive_cannot_write_elsewhere(server: Server, tmp_path: Path) -> None:
    packed = {ARCHIVE: archive({"cifar-100-python/meta": b"1", "../../evil": b"2"})}
    sets = served(server, "cifar100", packed, {"meta": 1})
    with pytest.raises(InputError, match=rf"{PART} cannot be unpacked .*evil.*outside the destination"):
        download("cifar100", tmp_path / "a", None, sets)
    assert contents(tmp_path) == {f"a/{PART}": packed[ARCHIVE]}
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / PART]


@pytest.mark.parametrize("content", [b"no archive", None])
def test_an_archive_that_holds_something_else(server: Server, tmp_path: Path, content: bytes | None) -> None:
    packed = {ARCHIVE: content or archive({"cifar-100-python/meta": b"1"})}
    sets = served(server, "cifar100", packed, DATA_SETS["cifar100"].holds)
    with pytest.raises(InputError, match="gave only 0 of 1 files train" if content is None else "unpacked"):
        download("cifar100", tmp_path, None, sets)
    assert contents(tmp_path) == {PART: packed[ARCHIVE]}


def test_half_unpacked_is_not_there(server: Server, cifar100: Any, tmp_path: Path) -> None:
    """Stopped in the middle of unpacking, or killed then; either way nothing is fetched twice."""

    def stop(done: int, total: int, what: str) -> None:
        if what.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("cifar100", tmp_path, stop, cifar100)
    assert contents(tmp_path) == {PART: server.files[ARCHIVE]}
    killed = tmp_path / ".cifar-100-python.unpacking-xyz/cifar-100-python"
    killed.mkdir(parents=True)
    (killed / "meta").write_bytes(b"half")
    server.asked.clear()
    download("cifar100", tmp_path, None, cifar100)
    assert server.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-100-python"]
    assert (load_cifar100(str(tmp_path)).test.images.numpy() == pixels(100, 2)).all()


# ---- the command ----


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cifar100: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "DATA_SETS", {**DATA_SETS, **cifar100})
    return tmp_path


def test_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in ("", " (already there)"):
        assert main(["download", "cifar100"]) == 0
        shown = capsys.readouterr().out
        assert f"data: data/cifar-100-python{ending}\n" in shown
        assert (
            "next: varcon train recipes/cifar100/varcon_small.toml --data.path data/cifar-100-python\n"
            in shown
        )
        assert (f"downloading {ARCHIVE}, MB: 1 of 1, 0 s left\n" in shown) == (not ending)


def test_the_command_fails_with_a_sentence(
    server: Server, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download", "cifar-100"]) == 2
    assert capsys.readouterr().err == (
        "varcon: there is no data set 'cifar-100' to download; did you mean 'cifar100'?\n"
    )
    assert main(["download", "imagenet"]) == 2
    assert "choose one of cifar10, cifar100, flowers102, oxford_pets\n" in capsys.readouterr().err
    server.files.clear()
    assert main(["download", "cifar100"]) == 2
    error = capsys.readouterr().err
    assert "answers 404" in error
    assert error.count("\n") == 1


def test_ctrl_c_keeps_what_has_arrived(
    server: Server, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real signal, while the server has stopped sending."""
    released, arrived = threading.Event(), here / "my data" / PART

    def interrupt() -> None:
        while not arrived.exists() or arrived.stat().st_size < 90_000:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        released.wait(30)

    server.dies_after, server.at_death = 100_000, interrupt
    assert main(["download", "cifar100", "--to", "my data"]) == 130
    released.set()
    told = "varcon: stopped; what has arrived is kept in my data; continue with: "
    assert capsys.readouterr().err == f"{told}varcon download cifar100 --to 'my data'\n"
    assert arrived.read_bytes() == server.files[ARCHIVE][:100_000]
    server.dies_after = None
    assert main(["download", "cifar100", "--to", "my data"]) == 0
    assert server.asked[1:] == [(ARCHIVE, "bytes=100000-")]
    assert len(load_cifar100("my data").train) == 100
