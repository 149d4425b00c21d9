"""A server of the small run, as it is in use: with a port, and with real requests."""

import shutil
import threading
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from varcon.deploy.model import load
from varcon.deploy.serve.answers import Answers
from varcon.deploy.serve.app import make_app
from varcon.deploy.serve.command import LOOPBACK_NAMES, SECONDS_TO_FINISH, listening, url
from varcon.deploy.serve.gallery import open_gallery


def silent(done, total, what):
    pass


@contextmanager
def running(model, index=None):
    """The address of a server, and what it answers from."""
    answers = Answers(model, open_gallery(model, index, None, silent)[0])
    with listening("127.0.0.1", 0) as listener:
        # As `varcon serve` does: a browser that keeps asking must not keep the server from ending.
        app = make_app(answers, LOOPBACK_NAMES)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_FINISH)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url(listener), answers
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def served(trained, model, tmp_path_factory):
    """A copy of the run, for what a server keeps in its folder."""
    return shutil.copytree(trained, tmp_path_factory.mktemp("serve") / "served")


@pytest.fixture(scope="session")
def server(served):
    with running(load(served, "cpu")) as found:
        yield found


@pytest.fixture(scope="session")
def address(server):
    return server[0]


@pytest.fixture(scope="session")
def answers(server):
    return server[1]


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as found:
        yield found


@pytest.fixture(scope="session")
def run_server():
    return running
