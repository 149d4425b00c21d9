"""Images that visitors send: read with limits while they arrive, so that memory stays bounded.

Of each request one file at a time is in memory as it came, of the others the pixels that the encoder sees.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from varcon.data.decoding import FORMATS, odd_files_allowed, square

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MEGABYTE = 1_000_000
FILE_BYTES = 20 * MEGABYTE
REQUEST_BYTES = 100 * MEGABYTE
FILES = 100
SECONDS_OF_SILENCE = 30  # after which a visitor who sends nothing more is given up
NAME_LENGTH = 200  # of a file's name, which comes back with the answer


class Refused(Exception):
    """What a visitor asks for is not given; a status of HTTP and one sentence say why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Upload(NamedTuple):
    name: str
    content: bytes | None  # None: it was too large, and has been let go


async def read_files(request: Request) -> AsyncIterator[Upload]:
    """The files of a multipart request, each as soon as it is complete."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Refused(415, "send the images as multipart/form-data, for example: curl -F image=@photo.jpg")
    length = request.headers.get("content-length", "")
    too_much = Refused(413, f"one request may hold {REQUEST_BYTES // MEGABYTE} MB; send the images in parts")
    if length.isdecimal() and int(length) > REQUEST_BYTES:
        raise too_much
    parts, received, files = Parts(), 0, 0
    try:
        parser = MultipartParser(options[b"boundary"], parts.callbacks())
        stream = aiter(request.stream())
        while True:
            async with asyncio.timeout(SECONDS_OF_SILENCE):
                piece = await anext(stream, None)
            if piece is None:
                break
            received += len(piece)
            if received > REQUEST_BYTES:
                raise too_much
            parser.write(piece)
            while parts.complete:
                files += 1
                if files > FILES:
                    raise Refused(413, f"one request may hold {FILES} images; send them in parts")
                yield parts.complete.pop(0)
        if not parts.ended:
            raise Refused(400, "the request ends in the middle of a file; send it again")
    except FormParserError as error:
        reason = str(error).rstrip(".")
        raise Refused(400, f"the request is not proper multipart/form-data ({reason})") from None
    except ClientDisconnect:
        raise Refused(400, "the visitor has left") from None  # nobody hears it, and no log need tell it
    except TimeoutError:
        raise Refused(408, f"nothing came for {SECONDS_OF_SILENCE} s; send the images again") from None


class Parts:
    """Listens to the parser. Of a file that is too large nothing is kept."""

    def __init__(self) -> None:
        self.complete: list[Upload] = []
        self.ended = False
        self._begin()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": self._take,
            "on_part_end": self._end,
            "on_end": lambda: setattr(self, "ended", True),
        }

    def _begin(self) -> None:
        self._field, self._value, self._content = bytearray(), bytearray(), bytearray()
        self._name: str | None = None  # of a part that is no file
        self._too_large = False

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            name = parse_options_header(bytes(self._value))[1].get(b"filename")
            self._name = None if name is None else name.decode("utf-8", "replace")[:NAME_LENGTH]
        self._field, self._value = bytearray(), bytearray()

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._name is None or self._too_large:
            return
        self._too_large = len(self._content) + end - start > FILE_BYTES
        if self._too_large:
            self._content = bytearray()
        else:
            self._content += data[start:end]

    def _end(self) -> None:
        if self._name is not None:
            self.complete.append(Upload(self._name, None if self._too_large else bytes(self._content)))
        self._content = bytearray()


def decode(upload: Upload, size: int) -> np.ndarray:
    """The pixels [size, size, 3] that the encoder sees, by the way that training images went."""
    name, content = upload
    if content is None:
        raise Refused(413, f"{name} is larger than {FILE_BYTES // MEGABYTE} MB; make it smaller")
    if not content:
        raise Refused(400, f"{name} is empty")
    most = Image.MAX_IMAGE_PIXELS or float("inf")
    too_wide = Refused(413, f"{name} has more than {most / 1e6:.0f} million pixels; make it smaller")
    try:
        with odd_files_allowed(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > most:
                raise too_wide
            return square(image, size)
    except Refused:
        raise
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise Refused(415, f"{name} is not an image of a kind that is read here ({kinds})") from None
    except Image.DecompressionBombError:
        raise too_wide from None
    except Exception as error:  # Pillow's readers raise a dozen kinds of errors on damaged files
        reason = str(error).rstrip(".") or type(error).__name__
        raise Refused(400, f"{name} is broken and cannot be read ({reason})") from None
