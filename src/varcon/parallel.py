"""Many runs on several devices at once: one process for each device, each run on one of them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from varcon import runs
from varcon.core import InputError, Progress
from varcon.engine.allocator import keep_freed_memory
from varcon.engine.interrupt import Interrupted, requests_to_stop, to_stop
from varcon.run import pick_device
from varcon.runs import Planned, Result

SECONDS_BETWEEN_MESSAGES = 0.2  # of a worker about its progress: more would cost it time and tell no more
SECONDS_TO_STOP = 120.0  # for a worker to end its step and save


class Shown(Protocol):
    """Where the progress of one device's runs is shown."""

    def begin(self, title: str) -> None: ...
    def step(self, progress: Progress, row: dict[str, float] | None) -> None: ...
    def progress(self, done: int, total: int, what: str) -> None: ...


def read_devices(text: str) -> list[str]:
    """From `cuda:0,cuda:1`: each is a process of its own, and all are of one kind."""
    devices = [name.strip() for name in text.split(",")]
    chosen = [torch.device(pick_device(name)) for name in devices]
    kinds = {device.type for device in chosen}
    if len(kinds) > 1:
        raise InputError(
            f"--devices is {text!r}; runs of one table belong on one kind of device, cpu or cuda"
        )
    if "cpu" not in kinds and len({device.index or 0 for device in chosen}) < len(devices):
        raise InputError(f"--devices is {text!r}; name each GPU once")
    return devices


def carry_out(
    planned: Sequence[Planned], devices: Sequence[str], command: str, shown: Sequence[Shown]
) -> Generator[tuple[Planned, Result]]:
    """Trains and judges every run, and gives each with its result as soon as it is there.

    `shown` has a place for each device. With one device the work is done in this process, run after run. A
    run that fails, or whose process dies, is a result that says so. Ctrl-C, SIGTERM and the loss of the
    terminal stop all workers once they have saved.
    """
    # What is done already is only read, which is quick, and the table is then full however soon we stop.
    left = []
    for number, one in enumerate(planned, start=1):
        title = f"{one.title} ({number} of {len(planned)})"
        if is_done(one):
            yield one, train_and_judge_here(one, title, command, shown[0])
        else:
            left.append((title, one))
    if len(devices) > 1 and len(left) > 1:
        yield from at_once(left, devices, command, shown)
    else:
        for title, one in left:
            yield one, train_and_judge_here(on(one, devices[0]), title, command, shown[0])


def is_done(one: Planned) -> bool:
    try:
        return one.finished and not runs.missing_findings(one, runs.read_findings(one))
    except InputError:  # a damaged file, of which the run's result will tell
        return False


def on(one: Planned, device: str) -> Planned:
    return replace(one, recipe=replace(one.recipe, train=replace(one.recipe.train, device=device)))


def train_and_judge_here(one: Planned, title: str, command: str, shown: Shown) -> Result:
    shown.begin(title)
    return runs.train_and_judge(one, shown.step, shown.progress, command)


def at_once(
    titled: Sequence[tuple[str, Planned]], devices: Sequence[str], command: str, shown: Sequence[Shown]
) -> Generator[tuple[Planned, Result]]:
    waiting = deque(titled)
    on_cpu = sum(torch.device(pick_device(device)).type == "cpu" for device in devices)
    threads = max(1, torch.get_num_threads() // max(1, on_cpu))
    workers = [
        Worker(device, threads, place)
        for device, place in list(zip(devices, shown, strict=True))[: len(waiting)]
    ]
    with requests_to_stop() as stop:
        try:
            for worker in workers:
                worker.give(waiting.popleft(), command)
            while busy := {worker.pipe: worker for worker in workers if worker.task}:
                for pipe in wait(list(busy), timeout=0.5):
                    worker = busy[pipe]  # type: ignore[index]
                    result = worker.answer()
                    if result is None or stop.number:
                        continue
                    assert worker.task is not None
                    yield worker.task, result
                    worker.task = None
                    if waiting:
                        worker.give(waiting.popleft(), command)
                if stop.number:
                    raise Interrupted("stopped; what was trained is saved", stop.number)
        finally:
            stop_all(workers)


class Worker:
    """A process with a device, and what it is doing."""

    def __init__(self, device: str, threads: int, shown: Shown) -> None:
        self.device, self.threads, self.shown = device, threads, shown
        self.task: Planned | None = None
        self._start()

    def _start(self) -> None:
        # Not forked: a process that has used CUDA, or threads, cannot be copied.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.threads), daemon=True)
        self.process.start()
        theirs.close()  # ours only: the pipe then ends when the process does

    def give(self, titled: tuple[str, Planned], command: str) -> None:
        title, self.task = titled
        if not self.process.is_alive():
            self._start()
        self.shown.begin(title)
        with suppress(BrokenPipeError):  # it has just died, as `answer` will find
            self.pipe.send((on(self.task, self.device), command))

    def answer(self) -> Result | None:
        """The result of its run, or None after a message on the way there."""
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            assert self.task is not None
            why = f"its process ended with exit code {self.process.exitcode}"
            return Result(self.task.label, self.task.seed, failed=why)
        if kind == "result":
            return content[0]
        (self.shown.step if kind == "step" else self.shown.progress)(*content)
        return None


def stop_all(workers: Sequence[Worker]) -> None:
    """Idle ones at once, training ones after they have saved."""
    try:
        for worker in workers:
            worker.process.terminate()
        end = time.monotonic() + SECONDS_TO_STOP
        for worker in workers:
            worker.process.join(max(0.0, end - time.monotonic()))
    finally:  # also when the user does not want to wait
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


def work(pipe: Connection, threads: int) -> None:
    """What a worker does until its pipe ends."""
    # Ctrl-C and the loss of the terminal reach every process of it; the first one hears them and tells the
    # others by SIGTERM.
    for number in set(to_stop()) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_freed_memory()
    last = [0.0]

    def tell(kind: str, *content: Any) -> None:
        now = time.monotonic()
        if now - last[0] >= SECONDS_BETWEEN_MESSAGES:
            last[0] = now
            pipe.send((kind, *content))

    with suppress(EOFError, BrokenPipeError, Interrupted):  # the first process has gone, or wants us to
        while True:
            planned, command = pipe.recv()
            try:
                result = runs.train_and_judge(
                    planned,
                    lambda progress, row: tell("step", progress, row),
                    lambda done, total, what: tell("progress", done, total, what),
                    command,
                )
            except (Interrupted, BrokenPipeError):
                raise
            except Exception as error:  # of this run: the others can do without it
                result = Result(planned.label, planned.seed, failed=f"{type(error).__name__}: {error}")
            pipe.send(("result", result))
