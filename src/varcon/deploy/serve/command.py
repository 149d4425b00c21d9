"""`varcon serve`: what it takes, what it prints, and the server's life."""

from __future__ import annotations

import ipaddress
import os
import socket
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from varcon.core import InputError
from varcon.deploy.every_command import DataPath, Run, beside, parse

LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
SECONDS_TO_FINISH = 5  # what is under way, once the server is told to stop


@dataclass
class Serve:
    """Show a trained run as a web page: predictions with the nearest images, and a map of the embedding.

    Drop images on the page to see their classes. The same is there for programs as JSON, under /api/. The
    first start encodes the images and draws the map; later ones take two or three seconds.
    """

    run: Run
    """the folder of a finished run, or one that varcon export wrote"""
    index: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """a folder of images to show and search in place of the training images"""
    port: int = 8000
    """where the page is found; 0: any that is free"""
    host: str = "127.0.0.1"
    """the address to listen at; by default only this machine can reach the page"""
    open: bool = False
    """open the page in a browser"""
    data_path: DataPath = None
    """where the run's data lie now, if they have moved since training"""
    device: str = "auto"
    """auto, cpu or cuda"""


def serve(arguments: list[str], console: Console) -> None:
    chosen: Serve = parse(Serve, "serve", arguments)
    try:
        import uvicorn

        from varcon.deploy.serve.app import make_app
    except ImportError as error:
        missing = (error.name or "more").split(".")[0]
        raise InputError(f"varcon serve needs {missing}: pip install 'varcon[serve]'") from None
    from varcon.deploy.model import load
    from varcon.deploy.serve.answers import Answers
    from varcon.deploy.serve.gallery import open_gallery

    if chosen.index and not chosen.index.expanduser().is_dir():
        raise InputError(f"there is no folder {chosen.index} to show")
    with listening(chosen.host, chosen.port) as listener:  # first: a port in use is told at once
        with beside(console, "starting") as aside:
            model = load(chosen.run, chosen.device, chosen.data_path, aside.progress)
            gallery, amiss = open_gallery(model, chosen.index, chosen.data_path, aside.progress)
            aside.warn(amiss)
        local = is_loopback(listener)
        app = make_app(Answers(model, gallery), LOOPBACK_NAMES | {chosen.host} if local else None)
        shown = (
            f"{len(gallery):,} {gallery.title}" if gallery else "no images of its own; name some with --index"
        )
        address = url(listener)
        console.out(f"{model.weights.parent}: {len(model.classes)} classes, {shown}", highlight=False)
        console.out(f"serving at {address}", highlight=False)
        if local:
            console.out("only this machine can reach it; Ctrl-C ends it", highlight=False)
        else:
            console.out(
                "varcon: whoever can reach this address can use the page and see its images; there is no "
                "password; Ctrl-C ends it",
                highlight=False,
            )
        if chosen.open:
            webbrowser.open(address)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=SECONDS_TO_FINISH
        )
        with suppress(KeyboardInterrupt):  # which uvicorn raises once it has ended well
            uvicorn.Server(config).run(sockets=[listener])
    console.out("ended", highlight=False)


def listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise InputError(f"--port is {port}; it must lie within 0..65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except socket.gaierror:
        raise InputError(f"--host {host} is no address of a machine") from None
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise InputError(
            f"cannot listen at {host} port {port} ({reason}); choose another --port or --host"
        ) from None


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def url(listener: socket.socket) -> str:
    """As a browser takes it: a server that listens at all addresses is found by the machine's name."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
