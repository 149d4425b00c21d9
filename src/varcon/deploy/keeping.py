"""Where what is learned from images is kept for next time: with the model, if that may be written."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import IO

from varcon.files import FORBIDDEN


class NotKept(UserWarning):
    """The work is done again next time."""


def place_to_keep(model: Path, name: str) -> Path:
    """The folder `name` of the model's, made; where it may not be written, one that goes with the process."""
    place = model / name
    try:
        place.mkdir(parents=True, exist_ok=True)
        nameless_file(place, place).close()
    except OSError as error:
        if error.errno not in FORBIDDEN:  # a full disk is for the user to mend
            raise
        place = passing_folder(model.resolve(), error.strerror) / name
        place.mkdir(parents=True, exist_ok=True)
    return place


@cache  # one folder, and one warning, for all that is learned with a model
def passing_folder(model: Path, why: str) -> Path:
    warnings.warn(
        f"{model} may not be written ({why}), so what is learned from images is not kept for next time",
        NotKept,
        stacklevel=2,
    )
    made = tempfile.mkdtemp(prefix="varcon-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def nameless_file(folder: Path, wanted: Path) -> IO[bytes]:
    """A file that goes when it is closed. Where there can be none, the error names what was `wanted`."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:  # which names the temporary file, that nobody has heard of
        raise type(error)(error.errno, error.strerror, str(wanted)) from None
