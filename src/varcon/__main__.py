"""The command `varcon`, and `python -m varcon`."""

import os
import sys
import warnings
from pathlib import Path

in_full = warnings.formatwarning


def in_a_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What this package warns of, for people: where in its code that was, is not theirs to know."""
    if Path(filename).is_relative_to(Path(__file__).parent):
        return f"varcon: {message}\n"
    return in_full(message, category, filename, lineno, line)


def main() -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python began, as by a daemon or `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115, it stays
    # Before torch is imported: its profiler, by which memory on a CPU is counted, else tells of every start.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        from varcon.cli import main as command
        from varcon.terminal import flush_or_drop
    except KeyboardInterrupt:  # while torch is imported, which takes a second or two: nothing has begun
        print("varcon: interrupted", file=sys.stderr)
        return 130
    warnings.formatwarning = in_a_line
    try:
        code = command()
    finally:
        flush_or_drop()
    if code and os.environ.get("WORLD_SIZE", "1") != "1":
        # Python's own end would wait for the other processes, which may be waiting for this one.
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
