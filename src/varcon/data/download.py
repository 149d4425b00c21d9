"""Public data sets, fetched from their authors' servers and laid out as the loaders read them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from platform import python_version
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from varcon.core import InputError, OnProgress
from varcon.limits import did_you_mean

CHUNK = 2**18  # bytes
PATIENCE = 60  # seconds in which nothing arrives
md5 = partial(hashlib.md5, usedforsecurity=False)  # what the authors publish: it finds damage, not forgery


@dataclass(frozen=True)
class Published:
    address: str  # where the files lie
    files: dict[str, str]  # name: MD5
    folder: str  # what they become
    holds: dict[str, int]  # how many files of a pattern are in a whole folder
    use: str  # the command that trains on the folder named after it
    arrange: Callable[[Path], None] = lambda unpacked: None
    """makes `folder` from what the archives hold, where they do not hold it already"""


def download(
    name: str, to: Path, progress: OnProgress | None = None, published: dict[str, Published] | None = None
) -> tuple[Path, bool]:
    """The data set's folder inside `to`, and whether it was there already. Progress is told in bytes."""
    published = DATA_SETS if published is None else published
    if name not in published:
        hint = did_you_mean(name, published) or f"; choose one of {', '.join(published)}"
        raise InputError(f"there is no data set {name!r} to download{hint}")
    if not hasattr(tarfile, "data_filter"):
        raise InputError(f"unpacking an archive safely needs Python 3.11.4; this is {python_version()}")
    wanted, to, tell = published[name], to.expanduser(), progress or (lambda done, total, what: None)
    folder = to / wanted.folder
    try:
        if folder.exists():
            if lack := lacking(folder, wanted):
                raise InputError(f"{folder} has only {lack}: remove it, or choose another place with --to")
            return folder, True
        to.mkdir(parents=True, exist_ok=True)
        files = [fetch(wanted.address + one, to / one, known, tell) for one, known in wanted.files.items()]
        unpack(files, wanted, folder, tell)
        for file in files:
            if file.suffix == ".part":  # ours, and of no more use
                file.unlink()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fault = f"the disk of {to} is full" if full else f"{error.filename or to}: {error.strerror or error}"
        cure = "make room" if full else "mend this or choose another place with --to"
        kept = "the bytes that have arrived are kept for the next call"
        raise InputError(f"{fault}; {cure} ({kept})") from error
    return folder, False


def lacking(folder: Path, wanted: Published) -> str:
    for pattern, count in wanted.holds.items():
        if (found := sum(1 for _ in folder.glob(pattern))) < count:
            return f"{found:,} of {count:,} files {pattern}"
    return ""


def fetch(address: str, target: Path, expected: str, tell: OnProgress) -> Path:
    """A file of the right checksum: `target` where a user has put it, or `target`.part once it is whole."""
    if target.exists():
        with target.open("rb") as stream:
            found = hashlib.file_digest(stream, md5).hexdigest()
        if found != expected:
            told = f"{target} has the MD5 checksum {found} instead of {expected}"
            raise InputError(f"{told}: move it away, and it is downloaded; it was left as it is")
        return target
    part = target.with_name(f"{target.name}.part")
    found = receive(address, part, expected, tell)
    if found != expected:
        part.unlink()  # nothing tells which of its bytes are wrong, so that none can be built on
        told = f"{address} came with the MD5 checksum {found} instead of {expected}"
        raise InputError(f"{told}, damaged or changed; {part} was removed, and the next call begins anew")
    return part


def receive(address: str, part: Path, expected: str, tell: OnProgress) -> str:
    """Goes on where `part` ends; the checksum of all its bytes is returned."""
    digest, done = md5(), part.stat().st_size if part.exists() else 0
    if done:
        with part.open("rb") as stream:
            digest = hashlib.file_digest(stream, md5)
        if digest.hexdigest() == expected:
            return expected
    cure = f"try later, or bring the file into {part.parent} by other means"
    cure += f"; {part} keeps {done:,} bytes, and the next call goes on from there" if done else ""
    try:
        ask = {"User-Agent": "varcon", **({"Range": f"bytes={done}-"} if done else {})}
        response = urlopen(Request(address, headers=ask), timeout=PATIENCE)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # there are no bytes beyond these, which the checksum has just refused
            return digest.hexdigest()
        raise InputError(f"{address} answers {error.code} ({error.reason}): {cure}") from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise InputError(f"{address} cannot be reached ({reason}): check the network, {cure}") from error
    what = f"downloading {part.stem}"
    if done and response.status != 206:
        digest, done, what = md5(), 0, f"{what} from its beginning, as the server cannot resume"
    total = done + response.length if response.length else 0  # 0: it does not say

    def broken(reason: object) -> InputError:
        so_far = f"{done:,} of {total:,} bytes" if total else f"{done:,} bytes"
        told = f"the connection to {address} broke after {so_far} ({reason})"
        return InputError(f"{told}; {part} keeps them, and the next call goes on from there")

    with response, part.open("ab" if done else "wb") as growing:
        while True:
            if total:
                tell(done, total, what)
            try:
                chunk = response.read1(CHUNK)
            except (OSError, HTTPException) as error:
                raise broken(error) from error
            if not chunk:
                break
            growing.write(chunk)
            digest.update(chunk)
            done += len(chunk)
    if done < total:
        raise broken("closed by the server")
    return digest.hexdigest()


def unpack(files: Iterable[Path], wanted: Published, folder: Path, tell: OnProgress) -> None:
    """Elsewhere at first: `folder` appears whole or not at all."""
    prefix = f".{wanted.folder}.unpacking-"
    for left in folder.parent.glob(f"{prefix}*"):  # by a process that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as place:
        staging = Path(place)
        for file in files:
            name = file.name.removesuffix(".part")
            if name.endswith(".mat"):
                shutil.copyfile(file, staging / name)
                continue
            try:
                extract(file, staging, f"unpacking {name}", tell)
            except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
                raise InputError(f"{file} cannot be unpacked ({error}); it is kept as it is") from error
        wanted.arrange(staging)
        if lack := lacking(staging / wanted.folder, wanted):
            raise InputError(f"{wanted.address} gave only {lack}; its archives are kept as they are")
        (staging / wanted.folder).rename(folder)


def extract(file: Path, place: Path, what: str, tell: OnProgress) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:gz") as archive:
        for member in archive:
            archive.extract(member, place, filter="data")  # refuses what leads out of the place
            tell(min(stream.tell(), size - 1), size, what)  # the last bytes read may hold many members
    tell(size, size, what)


def arrange_flowers(unpacked: Path) -> None:
    from scipy.io import loadmat

    labels = loadmat(unpacked / "imagelabels.mat")["labels"].ravel()  # 1 to 102, of images 1, 2, ...
    numbers = loadmat(unpacked / "setid.mat")
    # As in papers on transfer, the validation images are training images.
    for key, split in {"trnid": "train", "valid": "train", "tstid": "test"}.items():
        for number in numbers[key].ravel():
            image = unpacked / "jpg" / f"image_{number:05}.jpg"
            move(image, unpacked / "flowers102" / split / f"{labels[number - 1]:03}")


def arrange_pets(unpacked: Path) -> None:
    for file, split in {"trainval.txt": "train", "test.txt": "test"}.items():
        for line in (unpacked / "annotations" / file).read_text(encoding="utf-8").splitlines():
            name = line.split()[0]  # Abyssinian_100; what follows are numbers of its class, species and breed
            breed = name.rpartition("_")[0]
            move(unpacked / "images" / f"{name}.jpg", unpacked / "oxford_pets" / split / breed)


def move(image: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image.rename(folder / image.name)


DATA_SETS = {
    "cifar10": Published(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        "cifar-10-batches-py",
        {"batches.meta": 1, "data_batch_[1-5]": 5, "test_batch": 1},
        "varcon train recipes/cifar10/varcon_small.toml --data.path",
    ),
    "cifar100": Published(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        "cifar-100-python",
        {"meta": 1, "train": 1, "test": 1},
        "varcon train recipes/cifar100/varcon_small.toml --data.path",
    ),
    "flowers102": Published(
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        {
            "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
            "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
            "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
        },
        "flowers102",
        {"train/*/*.jpg": 2040, "test/*/*.jpg": 6149},
        "varcon train --data",
        arrange_flowers,
    ),
    "oxford_pets": Published(
        "https://thor.robots.ox.ac.uk/~vgg/data/pets/",
        {
            "images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c",
            "annotations.tar.gz": "95a8c909bbe2e81eed6a22bccdf3f68f",
        },
        "oxford_pets",
        {"train/*/*.jpg": 3680, "test/*/*.jpg": 3669},
        "varcon train --data",
        arrange_pets,
    ),
}
