"""One HTML page from run folders: it opens offline, prints well and repeats byte for byte."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from varcon.core import InputError
from varcon.files import write_text
from varcon.reports import collect, overview
from varcon.reports.collect import Run, flat, number
from varcon.reports.figures import Section, drawings_in, sections_of_groups, sections_of_run
from varcon.reports.groups import differing_settings, group_by_recipe
from varcon.reports.svg import COLOURS, Drawing
from varcon.reports.tables import plain

KNOWN_FINDINGS = ("knn", "linear", "pixels", "map2d")


@dataclass(frozen=True)
class Chapter:
    """All that the page says about one run."""

    run: Run
    sections: list[Section]
    missing: list[str]  # findings that no evaluation has left yet
    command_to_evaluate: str


def write_report(folders: list[Path], target: Path, note: str = "") -> Path:
    """Writes the page for one run, or for several side by side, and returns where it lies."""
    folders, target = [Path(folder) for folder in folders], Path(target)
    _write(target, _render(collect.read_runs(folders), note, _mark(folders, target)))
    return target


def free_place(folders: list[Path], beside: Path) -> Path:
    """For a page about these runs: report.html or, where that is about others, the first of report-2.html,
    report-3.html, ... that is not. A page without a mark may be about anything."""
    names = itertools.chain(["report.html"], (f"report-{number}.html" for number in itertools.count(2)))
    places = (beside / name for name in names)
    return next(place for place in places if not place.exists() or _is_about(folders, place))


def _is_about(folders: list[Path], page: Path) -> bool:
    try:
        return _mark(folders, page) in page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _mark(folders: list[Path], page: Path) -> Markup:
    """Which runs a page is about: their folders as seen from it, so that all may be moved together."""
    seen = {os.path.relpath(folder.resolve(), page.parent.resolve()) for folder in folders}
    return Markup('<meta name="runs" content="{}">').format(json.dumps(sorted(seen)))


def drawings(folder: Path) -> list[Drawing]:
    """All that can be drawn of one run, from what lies in its folder."""
    (run,) = collect.read_runs([Path(folder)])
    return drawings_in(sections_of_run(run))


def write_drawings(folder: Path, target: Path) -> list[Path]:
    """Each drawing of a run as an SVG file of its own in the folder `target`, for a paper or a talk."""
    files = []
    for place, drawing in enumerate(drawings(folder), start=1):
        words = re.sub(r"[^a-z0-9]+", "-", drawing.title.lower().replace("τ₂", "tau2")).strip("-")
        files.append(Path(target) / f"{place:02d}-{words}.svg")
        _write(files[-1], drawing.standalone())
    return files


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    except OSError as error:
        raise InputError(f"the report cannot be written ({error}); choose another file") from None


def _render(runs: list[Run], note: str, mark: Markup) -> str:
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": lambda value: "—" if value is None else f"{value:.2f}",
        "count": lambda value: "—" if value is None else f"{value:,}",
        "plain": plain,
        "breakable": _breakable,
        "duration": overview.duration,
        "date": _date,
        "flat": flat,
    }
    groups = group_by_recipe(runs)
    names = (dict.fromkeys(run.method for run in runs), dict.fromkeys(run.data for run in runs))
    kinds = ("methods", "data sets")
    several = len(runs) > 1
    page = environment.get_template("page.html").render(
        title=" on ".join(_named(list(names_), what) for names_, what in zip(names, kinds, strict=True)),
        mark=mark,
        lead=_lead(runs, len(groups)),
        overview=overview.tables(groups, note) if several else [],
        compared=sections_of_groups(groups) if several else [],
        chapters=[_chapter(run) for run in runs],
        anchors={run.name: f"run-{place}" for place, run in enumerate(runs, start=1)},
        differing=differing_settings(runs),
        colours=COLOURS,
    )
    return page.lstrip()  # the macros at the template's head leave blank lines


def _named(names: list[str], what: str) -> str:
    if len(names) > 3:
        return f"{len(names)} {what}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _lead(runs: list[Run], recipes: int) -> str:
    if len(runs) > 1:
        kinds = f"{recipes} recipe{'s' if recipes > 1 else ''}"
        judged_on = " and ".join(dict.fromkeys(run.judged_on for run in runs))
        return f"{len(runs)} runs of {kinds}, judged by their frozen encoders on {judged_on} they never saw."
    (run,) = runs
    done, planned = _epochs(run)
    trained = f"{plain(done)} of {plain(planned)}" if done < planned else plain(planned)
    images = "" if run.train_images is None else f" on {run.train_images:,} training images"
    tests = "" if run.test_images is None else f"{run.test_images:,} "
    on = f"{tests}{run.judged_on} it never saw"
    judged = f", then judged by the frozen encoder on {on}" if run.findings else ""
    return f"Trained for {trained} epochs{images}{judged}."


def _chapter(run: Run) -> Chapter:
    there = {"linear" if name == "linear-augmented" else name for name in run.findings}
    return Chapter(
        run=run,
        sections=sections_of_run(run),
        missing=[name for name in KNOWN_FINDINGS if name not in there],
        command_to_evaluate=" && ".join(shlex.join(["varcon", *words]) for words in _to_judge(run)),
    )


def _to_judge(run: Run) -> list[list[str]]:
    """What is left to be done, of a run that has not been trained to its end too."""
    done, planned = _epochs(run)
    left = [["train", str(run.folder / "recipe.json"), "--resume"]] if done < planned else []
    return [*left, ["evaluate", str(run.folder)]]


def _epochs(run: Run) -> tuple[float, float]:
    """Trained, and to be trained."""
    done = float(run.metrics["epoch"][-1]) if "epoch" in run.metrics else 0.0
    return done, number(run.setting("train.epochs")) or 0.0


def _breakable(text: str) -> Markup:
    """Where a path or a name of several words is too long for its column, it goes on after / or _."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_])(?=[^/_])", text))


def _date(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text or "—"
    return f"{moment.day} {moment:%B %Y, %H:%M}"
