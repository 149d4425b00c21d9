"""A run's model for use elsewhere: weights or program, config.json, two matrices and a model card."""

from __future__ import annotations

import io
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from varcon.core import InputError, OnProgress, RunError
from varcon.deploy.card import card
from varcon.deploy.config import CONFIG, Config
from varcon.deploy.model import READERS, encoder_of, load
from varcon.engine.checkpoint import save_weights
from varcon.files import naming, write_text
from varcon.limits import did_you_mean
from varcon.run_folder import runs_in

HERE = Path(__file__).parent
UNFINISHED = ".unfinished"
AGREEMENT = 1e-4  # of a program's features with the encoder's, relative to the largest


def export(
    run: str | Path,
    to: str = "safetensors",
    out: str | Path | None = None,
    data_path: str | Path | None = None,
    progress: OnProgress | None = None,
) -> Path:
    """Writes a finished run's model as `safetensors`, `onnx`, `pt2` or `hub` and returns its folder.

    That is `out`, which must be new or empty; by default the format's name in the run's folder `export`.
    """
    run = Path(run).expanduser()
    if to not in FORMATS:
        hint = did_you_mean(to, FORMATS) or f"; choose one of {', '.join(FORMATS)}"
        raise InputError(f"there is no format {to!r} to export to{hint}")
    folder = Path(out).expanduser() if out else run / "export" / to
    if folder.exists() and (not folder.is_dir() or any(file.name != UNFINISHED for file in folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; put the export elsewhere with -o FOLDER")
    if run.exists() and not (run / "recipe.json").exists():
        raise InputError(f"{run} is not a run: it has no recipe.json; {runs_in(run) or 'name a run'}")
    if run.exists() and not os.access(nearest := existing(folder), os.W_OK):
        raise InputError(f"{nearest} may not be written; put the export elsewhere with -o FOLDER")
    model = load(run, "cpu", data_path, progress)
    place = folder.resolve()  # of "." too the name is known then
    there = place.exists()  # and empty: it stays the same folder, which somebody may be in
    written = place / UNFINISHED if there else place.with_name(f".{place.name}{UNFINISHED}")
    shutil.rmtree(written, ignore_errors=True)  # of an export that was killed
    written.mkdir(parents=True)
    try:
        encoder = encoder_of(model.weights, model.config)
        FORMATS[to](encoder, model.config, written)
        if to in ("onnx", "pt2"):
            check(encoder, written / f"model.{to}", model.config)
            shutil.copyfile(HERE / "use_model.py", written / "use_model.py")
        write_text(written / "README.md", card(run, encoder, model.config, to))
        model.config.write(written)
        if there:
            for file in sorted(written.iterdir(), key=lambda file: file.name == CONFIG):  # which comes last
                file.replace(place / file.name)
        else:
            written.replace(place)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return folder


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())


def to_safetensors(encoder: nn.Module, config: Config, folder: Path) -> None:
    save_weights(folder / "model.safetensors", encoder)


def to_pt2(encoder: nn.Module, config: Config, folder: Path) -> None:
    whole = io.BytesIO()  # where a disk is full, torch's own writing ends the whole process
    torch.export.save(program_of(encoder, config), whole)
    with naming(folder / "model.pt2"):
        (folder / "model.pt2").write_bytes(whole.getbuffer())


def to_onnx(encoder: nn.Module, config: Config, folder: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("exporting to onnx needs onnx and onnxscript: pip install 'varcon[onnx]'") from None
    program = program_of(encoder, config)
    with quiet(), naming(folder / "model.onnx"):
        torch.onnx.export(
            program,
            (),
            folder / "model.onnx",
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=ANY_BATCH,
            external_data=False,  # one file
            verbose=False,
        )


FORMATS: dict[str, Callable[[nn.Module, Config, Path], None]] = {
    "safetensors": to_safetensors,
    "onnx": to_onnx,
    "pt2": to_pt2,
    "hub": to_safetensors,
}
ANY_BATCH = ({0: torch.export.Dim("batch")},)


def program_of(encoder: nn.Module, config: Config) -> torch.export.ExportedProgram:
    """Without the lines of code that each operation is from, which it would name by whole paths of files."""
    program = torch.export.export(encoder, example(config), dynamic_shapes=ANY_BATCH)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def example(config: Config) -> tuple[torch.Tensor]:
    """Two images: of a batch of one the exporters would take the 1 for a constant."""
    return (torch.zeros(2, 3, config.image_size, config.image_size),)


@torch.no_grad()
def check(encoder: nn.Module, program: Path, config: Config) -> None:
    """An exporter that has misunderstood a network says nothing; its program does, on another batch."""
    images = torch.randn(3, *example(config)[0].shape[1:], generator=torch.Generator().manual_seed(0))
    wanted = encoder(images)
    try:
        found = READERS[program.name](program, config, torch.device("cpu"))(images)
        apart = float((found - wanted).abs().max() / wanted.abs().max())
    except InputError:
        raise
    except Exception as error:  # of onnxruntime's own kinds
        raise RunError(f"the exported program fails ({error}); export to another format") from None
    if not apart <= AGREEMENT:
        raise RunError(
            f"the exported program differs from the encoder by {apart:.1g}; export to another format"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporter tells about its own parts and about packages that it does not need."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
