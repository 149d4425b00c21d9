"""The verbs: train, evaluate, report. Each reads as what it does; the rooms do the work."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from varcon import distributed
from varcon.core import (
    Data,
    Encoder,
    Evaluation,
    Findings,
    InputError,
    Method,
    OnProgress,
    Progress,
    RunError,
)
from varcon.data import DataSettings, load
from varcon.encoders import FOR_VECTORS
from varcon.encoders.pretrained import refuse_absent, start_from
from varcon.engine.check import check, check_before_data
from varcon.engine.checkpoint import load_weights, read_weights, save_weights, snapshot_path
from varcon.engine.cores import threads_as_begun
from varcon.engine.loop import Watcher, fit
from varcon.evaluations import (
    FOR_IMAGES,
    FURTHER,
    STANDARD,
    EvaluateSettings,
    FurtherSettings,
    chosen_evaluations,
)
from varcon.evaluations.calibration import ClassifierCalibration
from varcon.evaluations.classifier import OwnClassifier
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.maps import SnapshotMaps
from varcon.evaluations.rank import Rank
from varcon.evaluations.real import RealAccuracy
from varcon.evaluations.store import FeatureStore
from varcon.files import from_home, write_json
from varcon.layers import CosineClassifier
from varcon.methods import METHODS
from varcon.recipe import Recipe, load_recipe
from varcon.run_folder import (
    RUNS,
    describe,
    facts_of,
    finished_weights,
    is_trained_on,
    learned_epsilon,
    own_folder,
    recorded_facts,
    run_name,
    stored_recipe,
    without_lost_store,
    write_findings,
)

FIRST_WEIGHTS = threading.Lock()  # drawn from torch's one generator, and estimators are fitted in threads too


def no_watcher(progress: Progress, row: dict[str, float] | None) -> None: ...


def nothing() -> None: ...


def train(
    recipe: Recipe[Any] | str | Path,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watcher = no_watcher,
    progress: OnProgress | None = None,
    command: str | None = None,
    begins: Callable[[], None] = nothing,
) -> Path:
    """Trains what the recipe says and returns the run's folder.

    `out` is the folder, by default runs/ and the recipe's name; one that holds a run is never written
    over. `resume` goes on with the run in it, or begins it where there is none. `watch` is called after
    every step, `progress` while data are read. `command` is noted in the folder as what repeats the run.
    `begins` is called when the folder is claimed and the data are read, before anything is written there.
    """
    name = "run" if isinstance(recipe, Recipe) else run_name(Path(recipe))
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    folder = from_home(out) if out else RUNS / name
    recipe = with_whole_store(recipe, folder)
    with (
        own_folder(folder, recipe, resume),
        distributed.process_group(pick_device(recipe.train.device)) as device,
        memory_errors(),
    ):
        begun = (folder / "last.ckpt").exists()
        check_before_data(recipe, distributed.world_size())
        if recipe.encoder.weights and not begun:
            refuse_absent(Path(recipe.encoder.weights).expanduser())  # before images are read for minutes
        data = data_of(folder, recipe.data, progress)
        if begun and not is_trained_on(folder, data, by_labels=True):
            raise InputError(
                f"{folder} was begun with other data than lie at {recipe.data.path!r} now; restore those, or "
                "start another run with --out FOLDER"
            )
        first, *others = distributed.gather(facts_of(data))
        if any(other != first for other in others):
            raise InputError(
                "the processes have read different data; start again when nothing writes them, with "
                "data.image_size given"
            )
        method = build_method(recipe, data, first_weights=not begun)
        check(method, recipe, data, distributed.world_size())
        if distributed.is_main() and not begun:
            begins()
            again = ["varcon", "train", str(folder / "recipe.json"), "--out", f"{folder}-again"]
            command = command or shlex.join(again)
            write_json(folder / "recipe.json", describe(recipe, data, device, command))
        distributed.barrier()
        with threads_as_begun(recorded_facts(folder).get("threads") if device.type == "cpu" else None):
            fit(method, data, recipe, folder, device, begun, watch)
        if distributed.is_main():
            if method.classifier is not None:
                save_weights(folder / "classifier.safetensors", method.classifier)
            save_weights(folder / "encoder.safetensors", method.encoder)  # last: it marks the run as finished
        distributed.barrier()
    return folder


@torch.enable_grad()  # some of them learn, whatever a notebook has turned off
def evaluate(
    folder: str | Path,
    settings: EvaluateSettings | None = None,
    data_path: str | Path | None = None,
    device: str = "auto",
    progress: OnProgress | None = None,
    found: Callable[[str, Findings], None] = lambda name, findings: None,
    only: str | Sequence[str] = STANDARD,
    further: FurtherSettings | None = None,
    data_store: str | Path | None = None,
) -> dict[str, Findings]:
    """Judges a finished run and writes what it finds into the run's folder.

    `data_path` says where the data lie now, if not where the recipe has them, and `data_store` the same of
    decoded images; `found` is called with each evaluation's name and findings as they come. `only` names the
    evaluations ("standard" and "all" are several), `further` sets those that a recipe does not. The features
    are encoded once and kept in the folder.
    """
    folder = from_home(folder)
    recipe = stored_recipe(folder)
    only = chosen_evaluations(only, of_vectors=recipe.encoder.name in FOR_VECTORS)
    settings = settings or recipe.evaluate
    further = further or FurtherSettings().at_temperature(recipe.method, learned_epsilon(folder))
    weights = finished_weights(folder)
    where = torch.device(pick_device(device))
    source = recipe.with_data_path(data_path, data_store).data
    on_others = shlex.join(["varcon", "evaluate", str(folder), "--only", "transfer", "--target", "NAME=PATH"])
    if data_path and recipe.data.name == "digits":
        raise InputError(
            f"{folder} was trained on scikit-learn's digits; judge it on another data set: {on_others}"
        )
    data = data_of(folder, source, progress, store_given=bool(data_store))
    if not is_trained_on(folder, data):
        raise InputError(
            f"{folder} was trained on other data than lie at {source.path!r} now; restore those, or judge it "
            f"on another data set: {on_others}"
        )
    if data.train.images.ndim == 2 and (unfit := [name for name in only if name in FOR_IMAGES]):
        raise InputError(f"{unfit[0]} is an evaluation of images and the data of {folder} are vectors")
    encoder = load_encoder(recipe, weights, data)
    frozen = FrozenEncoder(encoder, data, where, progress, FeatureStore(folder / "features", weights, data))
    tasks: dict[str, tuple[Evaluation, FrozenEncoder]] = {
        "pixels": (settings.knn, raw_pixels(data, where)),
        "knn": (settings.knn, frozen),
        settings.linear.name: (settings.linear, frozen),
        "rank": (Rank(), frozen),
    }
    if (folder / "classifier.safetensors").exists():
        layer = load_classifier(folder / "classifier.safetensors", encoder.features, len(data.classes))
        layer = layer.to(where)
        tasks["classifier"] = (OwnClassifier(layer), frozen)
        tasks["classifier-calibration"] = (ClassifierCalibration(layer, further.calibration), frozen)
    results: dict[str, Findings] = {}

    def once(name: str) -> Evaluation:
        """An evaluation of those above, which is not made again where it has just been."""
        return lambda encoder, data: results[name] if name in results else tasks[name][0](encoder, data)

    classifiers = {name: once(name) for name in ("knn", settings.linear.name, "classifier") if name in tasks}
    fine_tunings = further.fine_tunings()
    asked = {name: getattr(further, name) for name in FURTHER if name != "finetune"} | fine_tunings
    tasks |= {name: (evaluation, frozen) for name, evaluation in asked.items()}
    tasks["real"] = (RealAccuracy(further.real, classifiers), frozen)
    earlier = {
        epoch: partial(open_snapshot, folder, epoch, recipe, data, where, progress)
        for epoch in sorted({*recipe.train.snapshots} - {recipe.train.epochs})  # which the encoder is
    }
    tasks["maps"] = (SnapshotMaps(further.maps, earlier, recipe.train.epochs), frozen)
    tasks["map2d"] = (settings.map2d, frozen)  # the slowest last: the numbers are there before the picture
    also = {"linear": [settings.linear.name], "calibration": ["classifier-calibration"]}
    also["finetune"] = list(fine_tunings)
    wanted = {*only, *(finding for name in only for finding in also.get(name, ()))}
    for name, (evaluation, what) in tasks.items():
        if name in wanted:
            began = time.perf_counter()
            with memory_errors():
                results[name] = evaluation(what, data)
            write_findings(folder, name, results[name], evaluation, data, time.perf_counter() - began)
            found(name, results[name])
    return results


def with_whole_store(recipe: Recipe[Any], folder: Path) -> Recipe[Any]:
    """Whose place is known wherever other commands are started."""
    if not recipe.data.store:
        return recipe
    store = Path(recipe.data.store).expanduser().absolute()
    if store.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"data.store {recipe.data.store} lies in the run's folder {folder}: set it to another"
        )
    return replace(recipe, data=replace(recipe.data, store=str(store)))


def data_of(
    folder: Path, source: DataSettings, progress: OnProgress | None, store_given: bool = False
) -> Data:
    """A relative path counts from where a command is started, which need not be where training was."""
    place = Path(source.path).expanduser()
    if not store_given:
        source = without_lost_store(folder, source)
    if source.path and not place.exists() and (folder / "recipe.json").exists():
        raise InputError(
            f"the data of {folder} are looked for at {place.absolute()}, where nothing is: say where they "
            "lie now with --data.path"
        )
    return load(source, progress)


def report(folders: str | Path | Sequence[str | Path], out: str | Path | None = None, note: str = "") -> Path:
    """Writes one HTML file about one run or several and returns its path: `out`, or report.html in the run's
    folder or beside the folders of several, or report-2.html, ... where that is a page about other runs.
    Below the first table of several stands `note`, what a reader must know of it."""
    from varcon.reports import free_place, write_report

    several = [folders] if isinstance(folders, str | Path) else list(folders)
    if not several:
        raise InputError("a report needs at least one run folder")
    if out and Path(out).suffix not in (".html", ".htm"):  # a slip must not replace a script or a picture
        raise InputError(f"the report {out} should end in .html or .htm")
    paths = [from_home(folder) for folder in several]
    beside = paths[0] if len(paths) == 1 else paths[0].parent
    return write_report(paths, from_home(out) if out else free_place(paths, beside), note)


def build_method(recipe: Recipe[Any], data: Data, first_weights: bool = True) -> Method:
    """The recipe's method around its encoder, with weights that depend on the seed alone, or the encoder's on
    a file; `first_weights` spares reading that where others will take their place."""
    if torch.get_default_dtype() != torch.float32:
        raise InputError(
            f"torch makes new tensors of {torch.get_default_dtype()} here and training counts on float32: "
            "call torch.set_default_dtype(torch.float32) first"
        )
    with FIRST_WEIGHTS, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.train.seed)
        encoder = recipe.encoder.build(data.train.images.shape[1:])
        if recipe.encoder.weights and first_weights:
            start_from(encoder, Path(recipe.encoder.weights).expanduser())
        method = METHODS[recipe.method_name](encoder, recipe.method, len(data.classes))
    method.meet_classes(data.classes)
    return method


def load_encoder(recipe: Recipe[Any], weights: Path, data: Data) -> Encoder:
    with torch.device("meta"):  # no first weights: the trained ones take their place
        encoder = recipe.encoder.build(data.train.images.shape[1:])
    load_weights(weights, encoder)
    return encoder


def load_classifier(weights: Path, features: int, classes: int) -> nn.Linear | CosineClassifier:
    layer: nn.Linear | CosineClassifier
    if "temperature" in read_weights(weights):
        layer = CosineClassifier(nn.Parameter(torch.empty(classes, features)), 1.0)
    else:
        layer = nn.utils.skip_init(nn.Linear, features, classes)
    load_weights(weights, layer)
    return layer


def open_snapshot(
    folder: Path,
    epoch: int,
    recipe: Recipe[Any],
    data: Data,
    device: torch.device,
    progress: OnProgress | None,
) -> FrozenEncoder:
    """The encoder as it was after this epoch; its features are not kept, of which there would be many."""
    return FrozenEncoder(load_encoder(recipe, snapshot_path(folder, epoch), data), data, device, progress)


def pick_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    cure = "choose auto, cpu, cuda or one of several as cuda:0, cuda:1, ..."
    try:
        kind = torch.device(name)
    except RuntimeError:
        kind = None
    if kind is None or kind.type not in ("cpu", "cuda"):
        raise InputError(f"there is no device {name!r}; {cure}")
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"{name!r} is asked for and {torch.cuda.device_count()} CUDA devices are here; {cure}"
        )
    return name


@contextmanager
def memory_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise RunError(
            "the device ran out of memory: lower train.batch_size, choose a smaller encoder or smaller "
            "images, or train in bf16"
        ) from None
