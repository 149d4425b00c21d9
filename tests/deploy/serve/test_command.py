"""`varcon serve` as a person starts and stops it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from varcon.cli import main
from varcon.deploy.serve import command


def test_it_prints_its_address_and_ctrl_c_ends_it(served, model, data):
    process = subprocess.Popen(
        [sys.executable, "-m", "varcon", "serve", str(served), "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true"},
    )
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0] == f"{served}: 3 classes, 36 training images\n"
        address = re.fullmatch(r"serving at (http://127\.0\.0\.1:\d+)\n", lines[1])[1]
        assert "only this machine" in lines[2]
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            assert "<!doctype html>" in client.get("/").text
            content = (data / "test/red/03.png").read_bytes()
            found = client.post("/api/predict", files={"image": ("a.png", content)}).json()["images"]
            assert found[0]["label"] == model.predict([data / "test/red/03.png"])[0].label
            process.send_signal(signal.SIGINT)  # while a connection is open
            rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert rest == "ended\n"
    assert "Traceback" not in errors


class Ended:
    """A server that ends at once."""

    def __init__(self, config):
        self.config = config

    def run(self, sockets):
        raise KeyboardInterrupt


def test_other_machines_are_let_in_with_a_warning_only(served, capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.Server", Ended)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["serve", str(served), "--host", "0.0.0.0", "--port", "0", "--open"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"serving at http://{re.escape(socket.gethostname())}:\d+", shown[1])
    assert "there is no password" in shown[2]
    assert opened == [shown[1].removeprefix("serving at ")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "within 0..65535"),
        (["--host", "no.such.machine.invalid"], "no address of a machine"),
        (["--index", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_slips_are_told_in_a_sentence(served, capsys, arguments, words):
    assert main(["serve", str(served), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path, capsys):
    with command.listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path / "no-run"), "--port", str(port)]) == 2
    assert f"cannot listen at 127.0.0.1 port {port} (address already in use)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fastapi", "uvicorn", "python_multipart"])
def test_a_missing_package_is_told_with_the_command_that_installs_it(served, capsys, monkeypatch, name):
    for module in list(sys.modules):
        if module.split(".")[0] == name or module.startswith("varcon.deploy.serve."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["serve", str(served)]) == 2
    assert capsys.readouterr().err == f"varcon: varcon serve needs {name}: pip install 'varcon[serve]'\n"


def test_addresses_are_written_as_browsers_take_them():
    with command.listening("localhost", 0) as listener:
        assert command.is_loopback(listener)
    if socket.has_ipv6:
        with command.listening("::1", 0) as listener:
            assert command.url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
            assert command.is_loopback(listener)


def test_it_starts_in_a_second_or_two_once_all_is_kept(served):
    """Beyond the imports, which other commands wait for too; processor time, for others share the machine."""
    from varcon.deploy.model import load
    from varcon.deploy.serve.gallery import open_gallery

    open_gallery(load(served, "cpu"), None, None, lambda *_: None)
    began = time.process_time()
    open_gallery(load(served, "cpu"), None, None, lambda *_: None)
    assert time.process_time() - began < 0.5
