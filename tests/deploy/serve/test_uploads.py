import asyncio
import tracemalloc

import pytest

from varcon.deploy.serve import uploads
from varcon.deploy.serve.uploads import Refused, read_files

HEAD = (
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="%s"\r\nContent-Type: image/png\r\n\r\n'
)


class Sent:
    """A request whose body comes in these pieces."""

    def __init__(self, pieces, pause=0.0):
        self.headers = {"content-type": "multipart/form-data; boundary=x"}
        self._pieces, self._pause = pieces, pause

    async def stream(self):
        for piece in self._pieces:
            await asyncio.sleep(self._pause)
            yield piece


def read(request):
    async def gather():
        return [upload async for upload in read_files(request)]

    return asyncio.run(gather())


def test_files_are_found_wherever_the_body_is_cut():
    contents = {b"a.png": b"first\r\n--", b"b \xc3\xa9.png": b"\r\n--xy\r\n", b"c": b""}
    body = b"".join(HEAD % name + content + b"\r\n" for name, content in contents.items())
    body += b'--x\r\nContent-Disposition: form-data; name="note"\r\n\r\nno file\r\n--x--\r\n'
    wanted = [(name.decode(), content) for name, content in contents.items()]
    for size in (1, 2, 3, 7, 50, len(body)):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        assert [tuple(found) for found in read(Sent(pieces))] == wanted


def test_of_a_file_that_is_too_large_nothing_is_kept():
    def pieces():
        yield HEAD % b"huge.png"
        for _ in range(50):
            yield bytes(1_000_000)
        yield b"\r\n" + HEAD % b"small.png" + b"abc\r\n--x--\r\n"

    tracemalloc.start()
    found = read(Sent(pieces()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [tuple(one) for one in found] == [("huge.png", None), ("small.png", b"abc")]
    assert peak < 2 * uploads.FILE_BYTES + 5_000_000  # a growing array is copied now and then


def test_who_sends_nothing_more_is_given_up(monkeypatch):
    monkeypatch.setattr(uploads, "SECONDS_OF_SILENCE", 0.05)
    with pytest.raises(Refused, match="nothing came") as caught:
        read(Sent([HEAD % b"a", b"abc"], pause=1))
    assert caught.value.status == 408
