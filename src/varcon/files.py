"""Files that are whole or absent, whatever happens while they are written; and their fingerprints."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from varcon.core import InputError

FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the user's share of it
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
SECONDS_OF_A_WRITE = 3600.0  # a temporary file untouched for longer is that of a process that was killed


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place once it is complete and on the disk."""
    for left in temporaries(path):
        with suppress(FileNotFoundError):  # another process has cleared it away, or completed it
            if time.time() - left.stat().st_mtime > SECONDS_OF_A_WRITE:
                left.unlink()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
    except OSError as error:  # which names the temporary file, that nobody has heard of
        raise type(error)(error.errno, error.strerror, str(path)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        with naming(path):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk is reported without the file that had no room: here it is `path`."""
    try:
        yield
    except OSError as error:
        cut_short = error.errno is None and "requested and" in str(error)  # numpy's, of an array
        if error.filename or not (cut_short or error.errno in FULL):
            raise
        number = error.errno or errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path)) from None


def temporaries(path: Path) -> Iterable[Path]:
    """Those of `replacing`, which another process is writing or was killed while writing."""
    return path.parent.glob(f"{glob.escape(_prefix(path))}*")


def _prefix(path: Path) -> str:
    return f".{path.name}.varcon-"  # as nobody else names a file: an editor's is .NAME.swp


def from_home(path: str | Path) -> Path:
    """Which a shell does not see to in --out=~/runs; the name of a user who is not there stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def refuse_other_than_utf8(path: Path) -> None:
    """What a recipe, a report or another text would have to name."""
    told = str(path).encode(errors="backslashreplace").decode()
    if told != str(path):
        raise InputError(f"the folder {told} has a name that is not UTF-8; rename it")


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def file_digest(path: Path) -> str:
    """By which what was made from a file is found again as long as the file is the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
