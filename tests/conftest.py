import os
import shutil
import signal

# Before torch is imported anywhere, so that worker processes started by tests inherit it too.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from browser import Browser

torch.set_num_threads(1)
# On a GPU torch's own float32 convolutions would round their inputs to 10 bits: no oracle for a kernel.
torch.backends.cudnn.allow_tf32 = False

if not torch.cuda.is_available():
    # Before triton is imported anywhere: where no GPU runs its kernels, numpy interprets them.
    os.environ["TRITON_INTERPRET"] = "1"


# A suite that was started with nohup or in the background ignores the signals that tests send, and what it
# starts would too: a run that nohup has started outlives its terminal.
for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(config, items):
    """Tests of the GPU itself exist only where there is one; those of a page, where there is a browser."""
    absent = {"gpu"} if not torch.cuda.is_available() else set()
    absent |= {"browser"} if BROWSER is None else set()
    items[:] = [item for item in items if not any(item.get_closest_marker(name) for name in absent)]


def pytest_terminal_summary(terminalreporter):
    if BROWSER is None:
        terminalreporter.write_line(
            f"tests marked browser are left out: none of {', '.join(BROWSERS)} is on the path; "
            "install one, for example: apt-get install chromium"
        )


@pytest.fixture(scope="session")
def browser_program() -> str:
    assert BROWSER, "a test that takes a browser must be marked: pytest.mark.browser"
    return BROWSER


@pytest.fixture(scope="session")
def window(browser_program, tmp_path_factory):
    found = Browser(browser_program, tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def fresh_compiler() -> None:
    """For tests that compile: torch counts the versions of a function over all of them, and gives up at 8."""
    torch.compiler.reset()
