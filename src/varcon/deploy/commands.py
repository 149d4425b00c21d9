"""The commands that use a trained run: what they take, and what they print."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from varcon.core import InputError, OnProgress, RunError
from varcon.deploy.every_command import DataPath, Run, beside, parse
from varcon.deploy.outputs import check_place, check_target, writer

if TYPE_CHECKING:  # what the other commands do not wait for
    from varcon.deploy.model import Model, Prediction

Out = tyro.conf.arg(aliases=["-o"])


@dataclass
class Predict:
    """Tell the classes of images: one line each, with the nearest training images.

    An image is marked as unlike anything seen if it fits the training images worse than 99 % of the test
    images do, and of fewer than 100 test images worse than 99 % of the training images too. A training image
    itself is never marked. The first time a run is used its data are encoded, where varcon evaluate has not
    done so.
    """

    run: Run
    """the folder of a finished run, or one that varcon export wrote"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE [IMAGE ...]")]
    """files, folders, or patterns such as 'photos/**/*.jpg'"""
    top: int = 1
    """how many of the most likely classes to show"""
    neighbours: int = 3
    """how many of the nearest training images to show"""
    json: str | None = None
    """a file to write instead: .json a list, .jsonl an object a line; - for such lines on standard output"""
    csv: str | None = None
    """a .csv file to write instead, as a table; - for standard output"""
    data_path: DataPath = None
    """where the run's data lie now, if they have moved since training"""
    device: str = "auto"
    """auto, cpu or cuda"""


@dataclass
class Embed:
    """Write the features of all images in a folder to a file, which may exceed memory.

    An .npz file has the arrays vectors [N, F], paths and, where the images lie in subfolders, labels: the
    classes as training reads them, whatever folders lie within. A .parquet file has the columns path, label
    and vector.
    """

    run: Run
    """the folder of a finished run, or one that varcon export wrote"""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """of images, at any depth"""
    out: Annotated[Path, Out]
    """the file to write, vectors.npz or vectors.parquet"""
    data_path: DataPath = None
    """where the run's data lie now, if they have moved since training"""
    device: str = "auto"
    """auto, cpu or cuda"""


@dataclass
class Search:
    """Find the images of a folder that are most like given ones, by the cosine of their features.

    The folder is encoded once. Its index is kept with the run; later only new and changed files are encoded.
    """

    run: Run
    """the folder of a finished run, or one that varcon export wrote"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE [IMAGE ...]")]
    """what to look for: files, folders or patterns"""
    index: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """where to look: a folder of images, at any depth"""
    top: int = 5
    """how many images to show for each"""
    data_path: DataPath = None
    """where the run's data lie now, if they have moved since training"""
    device: str = "auto"
    """auto, cpu or cuda"""


@dataclass
class Export:
    """Write a run's model for use elsewhere, with its preprocessing, classes and a model card.

    safetensors: weights under torchvision's names. onnx: a program for onnxruntime, with a script that
    predicts without varcon or torch. pt2: a program of torch.export. hub: a folder in the layout of the
    Hugging Face hub; nothing is uploaded.
    """

    run: Run
    """the folder of a finished run"""
    to: str = "safetensors"
    """safetensors, onnx, pt2 or hub"""
    out: Annotated[Path | None, Out] = None
    """a new or empty folder; by default the format's name in the run's folder export"""
    data_path: DataPath = None
    """where the run's data lie now, if they have moved since training"""


def predict(arguments: list[str], console: Console) -> None:
    chosen: Predict = parse(Predict, "predict", arguments)
    files = some_images(chosen.run, chosen.images, "predict")
    if chosen.json and chosen.csv:
        raise InputError("predict writes either --json or --csv; call it twice for both")
    check_target(chosen)
    if chosen.top < 1 or chosen.neighbours < 0:
        raise InputError(
            f"--top is {chosen.top} and --neighbours {chosen.neighbours}; they count from 1 and 0"
        )
    from varcon.deploy.images import read_blocks

    broken = 0
    with ExitStack() as stack:
        aside = stack.enter_context(beside(console, "predicting"))
        model = load(chosen, aside.progress)
        show = stack.enter_context(writer(chosen, len(model.classes), console))
        done = 0
        for block in read_blocks(files, model.config.image_size):
            features = model.embed_pixels(block.pixels)
            found = model.predict_features(features, chosen.top, chosen.neighbours)
            shown: dict[Path, Prediction | str] = {
                **dict(zip(block.files, found, strict=True)),
                **block.broken,
            }
            for file in files[done : done + len(shown)]:  # in the order in which they were named
                show(file, shown[file])
            broken, done = broken + aside.warn(block.broken.values()), done + len(shown)
            aside.progress(done, len(files), "predicting")
    count_broken(broken, len(files))


def embed(arguments: list[str], console: Console) -> None:
    chosen: Embed = parse(Embed, "embed", arguments)
    from varcon.data.listing import class_of
    from varcon.deploy.images import read_blocks
    from varcon.deploy.vectors import WRITERS

    out, root = chosen.out.expanduser(), chosen.folder.expanduser()
    if not root.exists():  # a pattern would have no folder from which its files' paths are told
        raise InputError(f"there is no folder {chosen.folder}; embed takes one folder of images, no pattern")
    files = some_images(chosen.run, [str(root)], "embed")
    check_place(out, WRITERS)
    broken = done = 0
    with beside(console, "embedding") as aside:
        model = load(chosen, aside.progress)
        with WRITERS[out.suffix](out, model.features) as write:
            for block in read_blocks(files, model.config.image_size):
                paths = [str(file.relative_to(root)) if file != root else file.name for file in block.files]
                labels = [class_of(file, root) for file in block.files]
                write(model.embed_pixels(block.pixels), paths, labels)
                broken += aside.warn(block.broken.values())
                done += len(block.files) + len(block.broken)
                aside.progress(done, len(files), "embedding")
    console.print(f"{done - broken:,} vectors of {model.features} numbers: {out}", soft_wrap=True)
    count_broken(broken, len(files))


def search(arguments: list[str], console: Console) -> None:
    chosen: Search = parse(Search, "search", arguments)
    files = some_images(chosen.run, chosen.images, "search")
    if chosen.top < 1:
        raise InputError(f"--top is {chosen.top}; it counts from 1")
    if not chosen.index.expanduser().is_dir():
        raise InputError(f"there is no folder {chosen.index} to search")
    from varcon.deploy.images import read_blocks
    from varcon.deploy.index import open_index

    with beside(console, "searching") as aside:
        model = load(chosen, aside.progress)
        index = open_index(model, chosen.index, aside.progress)
        broken = aside.warn(index.broken)
        for block in read_blocks(files, model.config.image_size):
            found = index.search(model.embed_pixels(block.pixels), chosen.top)
            for file, hits in zip(block.files, found, strict=True):
                console.out(file, highlight=False)
                for cosine, hit in hits:
                    console.out(f"  {cosine:.4f}  {hit}", highlight=False)
            broken += aside.warn(block.broken.values())
    count_broken(broken, len(files) + len(index.entries))


def export(arguments: list[str], console: Console) -> None:
    chosen: Export = parse(Export, "export", arguments)
    from varcon.deploy.export import export as write

    with beside(console, "exporting") as aside:
        folder = write(chosen.run, chosen.to, chosen.out, chosen.data_path, aside.progress)
    for file in sorted(folder.iterdir()):
        console.out(f"{file.stat().st_size:>12,}  {file}", highlight=False)
    console.out(f"next: read {folder / 'README.md'}", highlight=False)


def serve(arguments: list[str], console: Console) -> None:
    """Its own room has the rest: a server takes more than this file should hold."""
    from varcon.deploy.serve.command import serve as start

    start(arguments, console)


def some_images(run: Path, places: tuple[str, ...] | list[str], verb: str) -> list[Path]:
    """Looked for before the model is loaded: a slip in a path is told at once. That of the run comes first,
    lest one who names it last reads that it holds no images."""
    from varcon.deploy.images import find_images
    from varcon.deploy.model import check_model

    if not places:
        raise InputError(f"{verb} needs images after the run, for example: varcon {verb} RUN photo.jpg")
    check_model(run.expanduser())
    return find_images(places)


def load(chosen: Predict | Embed | Search, progress: OnProgress) -> Model:
    from varcon.deploy.model import load as load_model

    return load_model(chosen.run, chosen.device, chosen.data_path, progress)


def count_broken(broken: int, total: int) -> None:
    if broken:
        raise RunError(f"{broken} of {total} images could not be read, as told above; the others are done")


VERBS: dict[str, Callable[[list[str], Console], None]] = {
    "predict": predict,
    "embed": embed,
    "search": search,
    "export": export,
    "serve": serve,
}
