"""The command `varcon`, and `python -m varcon`."""

import os
import sys


def main() -> int:
    # Before torch is imported: its profiler, by which memory on a CPU is counted, else tells of every start.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        from varcon.cli import main as command
        from varcon.terminal import flush_or_drop
    except KeyboardInterrupt:  # while torch is imported, which takes a second or two: nothing has begun
        print("varcon: interrupted", file=sys.stderr)
        return 130
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
