"""What each command of the command line takes; the texts are its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic

import tyro

from varcon.budget import Budget
from varcon.core import InputError
from varcon.evaluations import EvaluateSettings, FurtherSettings
from varcon.files import from_home
from varcon.methods import METHODS
from varcon.recipe import MethodSettings, Recipe


@dataclass
class Train(Generic[MethodSettings]):
    """Train the encoder a recipe describes. Every setting of the recipe is a flag that overrides it, but for
    method.name, which stands in the recipe.

    In place of RECIPE, --data FOLDER chooses one for a folder of images and writes it beside the run.
    """

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """a .toml recipe, or the recipe.json of an earlier run"""
    settings: Annotated[Recipe[MethodSettings], tyro.conf.arg(name="")]
    resume: bool = False
    """go on with the run in the folder, or begin it where there is none"""
    out: Path | None = None
    """the run's folder; by default runs/ and the recipe's name"""


@dataclass
class Evaluate:
    """Judge a trained run by nearest neighbours, by a linear probe, by a map of its test images, and more.

    Features are encoded once and kept in the run's folder.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """the folder of a finished run"""
    settings: Annotated[EvaluateSettings, tyro.conf.arg(name="")]
    further: Annotated[FurtherSettings, tyro.conf.arg(name="")]
    only: str = "standard"
    """evaluations, separated by commas: pixels, knn, linear, discriminant, rank, classifier and map2d,
    together standard; with centroid, logistic, fewshot, clustering, similarity, temperature, calibration,
    outliers and robustness, together all; or real, transfer, finetune and maps"""
    target: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=PATH")] = ()
    """for --only transfer or finetune: a data set by its name and folder; may be given several times"""
    data_path: Annotated[Path | None, tyro.conf.arg(name="data.path")] = None
    """where the data lie now, if they have moved since training"""
    data_store: Annotated[Path | None, tyro.conf.arg(name="data.store")] = None
    """where decoded images are kept, if not where training had them; where that is gone, in memory"""
    device: str = "auto"
    """auto, cpu or cuda"""


@dataclass
class Report:
    """Write one self-contained HTML page about a run, or about several side by side."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")]
    """folders of runs"""
    out: Path | None = None
    """the page; by default report.html in the run's folder, or beside the folders of several, or the next of
    report-2.html, ... where that is about other runs"""


@dataclass
class Compare:
    """Train several methods on the same data, encoder, augmentation and budget, and put them side by side.

    RECIPE's own method is taken as it is there. The method settings and views of another come from the
    recipe of its name beside RECIPE, where there is one; its training there does not count. Started again,
    it goes on where it stopped; the table and the report hold every finished run of the folder, also those
    of earlier calls with other methods or seeds. A folder whose runs were begun with another recipe or
    budget is refused. Times are measured once and kept in the folder's plan.json.
    """

    recipe: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RECIPE")]
    """what all have in common: a .toml recipe"""
    methods: str = ",".join(METHODS)
    """names, separated by commas"""
    seeds: str = "0"
    """numbers, separated by commas; one run of every method for each"""
    budget: Budget = "images"
    """what is equal: the images seen (each view is one), or the time trained (what the slowest needs then)"""
    only: str = "standard"
    """evaluations to judge each run by, separated by commas, as for varcon evaluate"""
    target: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=PATH")] = ()
    """for --only transfer or finetune: a data set by its name and folder; may be given several times"""
    out: Path | None = None
    """folder for runs, table and report; by default runs/compare-, the recipe's name and, if timed, -time"""
    data_path: Annotated[Path | None, tyro.conf.arg(name="data.path")] = None
    """where the data lie, if not where RECIPE has them"""
    devices: str | None = None
    """auto, cpu or cuda, by default RECIPE's; several with commas, such as cuda:0,cuda:1 or cpu,cpu, each
    train a run at the same time"""


@dataclass
class Sweep:
    """Train and judge one run for every combination of settings and seed, and put them side by side.

    Started again with the same words, it goes on where it stopped; with other values, they join the table.
    """

    recipe: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RECIPE")]
    """what all have in common: a .toml recipe"""
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="SETTING=VALUE,VALUE")
    ] = ()
    """a setting by its name in the recipe and the values it takes; may be given several times"""
    seeds: str = "0"
    """numbers, separated by commas; one run of every combination for each"""
    only: str = "standard"
    """evaluations to judge each run by, separated by commas, as for varcon evaluate"""
    target: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=PATH")] = ()
    """for --only transfer or finetune: a data set by its name and folder; may be given several times"""
    out: Path | None = None
    """folder for runs, table and report; by default runs/sweep- and the recipe's name"""
    data_path: Annotated[Path | None, tyro.conf.arg(name="data.path")] = None
    """where the data lie, if not where RECIPE has them"""
    devices: str | None = None
    """auto, cpu or cuda, by default RECIPE's; several with commas, such as cuda:0,cuda:1 or cpu,cpu, each
    train a run at the same time"""


@dataclass
class Reproduce:
    """Make tables and figures of the paper again, the paper's value beside ours.

    Runs are shared by all names and kept: started again, it goes on where it stopped.
    """

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """tables and figures, or all; without a name they are listed"""
    scale: str = "smoke"
    """smoke, small or paper"""
    data: Annotated[str, tyro.conf.arg(metavar="[NAME=]PATH")] = ""
    """your data: cifar10=PATH, cifar100=PATH, folder=PATH or npz=PATH; or a path that shows what it is"""
    store: Annotated[Path | None, tyro.conf.arg(name="data.store")] = None
    """a folder on a fast disk, for the decoded images of a folder that memory has no room for"""
    target: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=PATH")] = ()
    """a data set that table4 transfers to, by its name and path; may be given several times"""
    corrupted: Path | None = None
    """a published folder of corrupted test images, for corruption; by default they are made on the fly"""
    real_labels: Path | None = None
    """a JSON list of the acceptable labels of each test image, for real"""
    seeds: str = "0"
    """numbers, separated by commas; one run of every kind for each"""
    out: Path | None = None
    """folder for runs, tables and figures; by default runs/reproduce-, the scale and the
    name of --data"""
    devices: str = "auto"
    """auto, cpu or cuda; several with commas, such as cuda:0,cuda:1 or cpu,cpu, each train a run at the same
    time"""


@dataclass
class Download:
    """Fetch a public data set, to train on or to transfer to.

    The files come from their authors' servers and are compared with the published checksums. Flowers and pets
    become folders train and test, by their official splits, with a folder for each class. Stopped, it goes on
    where it was when it is called again; where the data are there already, nothing is done.
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """cifar10, cifar100, flowers102 or oxford_pets"""
    to: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("data")
    """where to put the data set's own folder"""


def read_seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise InputError(f"--seeds is {text!r}; give whole numbers separated by commas") from None


@dataclass
class Demo:
    """Train on scikit-learn's handwritten digits, judge the result and write the report."""

    seeds: str = "0"
    """one run for each, separated by commas; several show the spread"""
    out: Path | None = None
    """folder for the runs and the report; by default runs/demo, or runs/demo-2 and so on if taken"""


def parse(kind: Any, verb: str, arguments: list[str], **defaults: Any) -> Any:
    chosen = tyro.cli(kind, args=arguments, prog=f"varcon {verb}", **defaults)
    if getattr(chosen, "out", None):
        chosen.out = from_home(chosen.out)
    return chosen
