"""A folder in which one process at a time trains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from varcon.core import InputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".varcon-lock"  # a file in the folder, for as long as its process trains there or after a kill


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Makes the folder and refuses it to others meanwhile; what is still empty at the end is removed again.

    The system itself takes the lock from a process that ends, in whatever way. Where the system or the file
    system knows no locks, nobody is refused.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    file = locked(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()  # before it is unlocked: it is then nobody else's yet
            for path in made:
                path.rmdir()
        file.close()


def locked(folder: Path) -> IO[Any]:
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(
                f"another process is training in {folder}; wait for it or stop it, "
                "or put this run elsewhere with --out FOLDER"
            ) from None
        except OSError:  # no locks here
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its holder removed it after we had opened it: a lock on it would keep nobody out
