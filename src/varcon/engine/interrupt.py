"""Ctrl-C, SIGTERM and the loss of the terminal as requests that the loop answers when it can save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from varcon import distributed
from varcon.core import RunError


class Interrupted(RunError):
    """The user or the system asked the run to stop; it is saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class Request:
    number = 0  # the signal, once one has come


def to_stop() -> list[signal.Signals]:
    """The signals that ask for it: also that the terminal is closed or the connection lost, unless `nohup`
    has the run outlive it."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # none on Windows
        found.append(signal.SIGHUP)
    return found


@contextmanager
def requests_to_stop() -> Iterator[Request]:
    """Notes the first signal of a kind; a second one acts as usual, but for that of a terminal that closes,
    which both the shell and the system send, and but for several processes, to which torchrun passes on what
    they may have had already."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield request
        return
    before = {number: signal.getsignal(number) for number in to_stop()}

    def note(number: int, frame: Any) -> None:
        request.number = number
        if number in (signal.SIGINT, signal.SIGTERM) and distributed.world_size() == 1:
            signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
