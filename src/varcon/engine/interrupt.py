"""Ctrl-C, SIGTERM and the loss of the terminal as requests that the loop answers when it can save."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from varcon import distributed
from varcon.core import RunError

IMPATIENT = 1.0  # seconds after the first signal, from which a second one means it


class Interrupted(RunError):
    """The user or the system asked the run to stop; it is saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class Request:
    number = 0  # the signal, once one has come
    came = 0.0  # when the first did


def to_stop() -> list[signal.Signals]:
    """The signals that ask for it: also that the terminal is closed or the connection lost, unless `nohup`
    has the run outlive it."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # none on Windows
        found.append(signal.SIGHUP)
    return found


@contextmanager
def requests_to_stop() -> Iterator[Request]:
    """Notes a signal. A second one acts as usual, if it is not the same key pressed twice at once; but for
    that of a terminal that closes, which both the shell and the system send, and but for several processes,
    to which torchrun passes on what they may have had already."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield request
        return
    before = {number: signal.getsignal(number) for number in to_stop()}

    def note(number: int, frame: Any) -> None:
        repeated, request.number = request.number, number
        request.came = request.came or time.monotonic()
        means_it = time.monotonic() - request.came > IMPATIENT and distributed.world_size() == 1
        if repeated and means_it and number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Passes over further signals while what they ask for is being done: one that broke in as a thread was
    handed its work could leave that thread waiting for ever, and the process with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
