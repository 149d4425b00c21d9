"""One HTML page from run folders: it opens offline, prints well and repeats byte for byte."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from varcon.core import InputError
from varcon.files import write_text
from varcon.reports import collect, plots
from varcon.reports.collect import Group, Run, flat, number

KNOWN_FINDINGS = ("knn", "linear", "pixels", "map2d")
LOSSES = {"loss": "loss", "kl": "KL term", "nll": "NLL term"}  # columns of metrics.jsonl and their names
PAIRS_LISTED = 15  # of classes taken for each other, where the matrix is too large to read
HALF, WIDE = (4.8, 3.4), (9.6, 3.2)  # inches, of one column of the page and of two


@dataclass(frozen=True)
class Drawing:
    title: str
    caption: str  # one line that says what to see
    svg: str
    shape: str = "half"  # of the page's width: half, wide or large


@dataclass(frozen=True)
class Chapter:
    """All that the page says about one run."""

    run: Run
    drawings: list[Drawing]
    pairs: list[tuple[str, str, int, float]]  # true class, taken for, images, percent of the true class
    missing: list[str]  # findings that no evaluation has left yet
    others: dict[str, dict[str, Any]]  # scores of findings that have no figure
    command_to_evaluate: str


def write_report(folders: list[Path], target: Path) -> Path:
    """Writes the page for one run, or for several side by side, and returns where it lies."""
    page = _render(collect.read_runs([Path(folder) for folder in folders]))
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, page)
    except OSError as error:
        raise InputError(f"the report cannot be written ({error}); choose another file") from None
    return target


def drawings(folder: Path) -> list[Drawing]:
    """All that can be drawn of one run, from what lies in its folder."""
    (run,) = collect.read_runs([Path(folder)])
    return _drawings(run)


def _render(runs: list[Run]) -> str:
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": lambda value: "—" if value is None else f"{value:.2f}",
        "count": lambda value: "—" if value is None else f"{value:,}",
        "plain": _plain,
        "duration": _duration,
        "date": _date,
        "flat": flat,
    }
    groups = collect.group_by_recipe(runs)
    names = (dict.fromkeys(run.method for run in runs), dict.fromkeys(run.data for run in runs))
    kinds = ("methods", "data sets")
    page = environment.get_template("page.html").render(
        title=" on ".join(_named(list(several), what) for several, what in zip(names, kinds, strict=True)),
        lead=_lead(runs, len(groups)),
        groups=groups,
        classifiers=any("classifier" in run.findings for run in runs),
        ranks=any("rank" in run.findings for run in runs),
        overlays=_overlays(groups) if len(runs) > 1 else [],
        chapters=[_chapter(run) for run in runs],
        anchors={run.name: f"run-{place}" for place, run in enumerate(runs, start=1)},
        differing=collect.differing_settings(runs),
        colours=plots.COLOURS,
    )
    return page.lstrip()  # the macros at the template's head leave blank lines


def _named(names: list[str], what: str) -> str:
    return " and ".join(names) if len(names) <= 3 else f"{len(names)} {what}"


def _lead(runs: list[Run], recipes: int) -> str:
    if len(runs) > 1:
        kinds = f"{recipes} recipe{'s' if recipes > 1 else ''}"
        return f"{len(runs)} runs of {kinds}, judged by their frozen encoders on test images they never saw."
    (run,) = runs
    planned = number(run.setting("train.epochs")) or 0.0
    done = float(run.metrics["epoch"][-1]) if "epoch" in run.metrics else 0.0
    trained = f"{_plain(done)} of {_plain(planned)}" if done < planned else _plain(planned)
    images = "" if run.train_images is None else f" on {run.train_images:,} training images"
    tests = "" if run.test_images is None else f"{run.test_images:,} "
    judged = f", then judged by the frozen encoder on {tests}test images it never saw" if run.findings else ""
    return f"Trained for {trained} epochs{images}{judged}."


def _drawings(run: Run) -> list[Drawing]:
    found = [_losses(run), _temperature(run), _neighbours(run), _probe(run), _map(run), _confusion(run)]
    return [drawing for drawing in found if drawing]


def _chapter(run: Run) -> Chapter:
    counts = run.array("knn", "confusion")
    listed = PAIRS_LISTED if counts is not None and len(counts) > plots.NUMBERED_CLASSES else 0
    return Chapter(
        run=run,
        drawings=_drawings(run),
        pairs=run.confused_pairs()[:listed],
        missing=[name for name in KNOWN_FINDINGS if name not in run.findings],
        others={name: found.scores for name, found in run.findings.items() if name not in KNOWN_FINDINGS},
        command_to_evaluate=f"varcon evaluate {shlex.quote(str(run.folder))}",
    )


def _line(run: Run, column: str, style: int = 0, label: str = "") -> plots.Line:
    return plots.Line(run.metrics["epoch"], run.metrics[column], style, label)


def _losses(run: Run) -> Drawing | None:
    if not {"epoch", "loss"} <= run.metrics.keys():
        return None
    shown = [name for name in LOSSES if name in run.metrics]
    lines = [_line(run, name, style, LOSSES[name]) for style, name in enumerate(shown)]
    panels = [plots.Panel(lines, "loss", height=2)]
    first, last = run.metrics["loss"][[0, -1]]
    caption = f"The loss went from {first:.3g} to {last:.3g}"
    # Other methods with these terms add more to them.
    caption += "; it is the sum of its two terms." if run.method == "varcon" and len(shown) == 3 else "."
    if "confidence" in run.metrics:
        panels.append(plots.Panel([_line(run, "confidence")], "confidence", height=0.9))
        caption += " Below: the mean probability given to the true class."
    return Drawing("Loss", caption, plots.curves(panels, stacked=True, size=HALF))


def _temperature(run: Run) -> Drawing | None:
    if not {"epoch", "tau2"} <= run.metrics.keys():
        return None
    tau1, epsilon = number(run.setting("method.temperature")), run.metrics.get("epsilon")
    level = band = None
    caption = "The temperature that adapts to each image's confidence, averaged over the batch."
    if tau1 is not None and epsilon is not None:
        epochs = run.metrics["epoch"]
        level = plots.Line(epochs, np.full(len(epochs), tau1), label="τ₁")
        band = (tau1 - epsilon, tau1 + epsilon)
        caption = (
            "τ₂ moves inside the grey band τ₁ ± ε: low where the class is in doubt, high where it is sure."
        )
    lines = [_line(run, "tau2", 0, "mean τ₂")]
    panels = [plots.Panel(lines, "temperature", baseline=level, band=band, height=2)]
    if epsilon is not None:
        panels.append(plots.Panel([_line(run, "epsilon")], "ε", height=0.9))
    return Drawing("Temperature", caption, plots.curves(panels, stacked=True, size=HALF))


def _neighbours(run: Run) -> Drawing | None:
    learned, pixels = run.accuracy_by_k("knn"), run.accuracy_by_k("pixels")
    if not learned:
        return None
    panel = _neighbour_panel([_by_k(learned, 0, "embedding")], pixels)
    caption = "A good embedding stays flat as more neighbours vote"
    caption += "; raw pixels, dotted, needed no training." if pixels else "."
    return Drawing("kNN accuracy over the number of neighbours", caption, plots.curves([panel], size=HALF))


def _neighbour_panel(lines: list[plots.Line], pixels: dict[int, float]) -> plots.Panel:
    baseline = _by_k(pixels, 0, "raw pixels") if pixels else None
    ticks = sorted({int(k) for line in lines for k in line.x} | set(pixels))
    return plots.Panel(lines, "top-1 accuracy, %", "neighbours K", baseline, ticks=ticks, dots=True)


def _by_k(accuracy: dict[int, float], style: int, label: str) -> plots.Line:
    return plots.Line(np.array(list(accuracy)), np.array(list(accuracy.values())), style, label)


def _probe(run: Run) -> Drawing | None:
    accuracy = run.array("linear", "accuracy")
    if accuracy is None:
        return None
    line = plots.Line(np.arange(1, 1 + len(accuracy)), accuracy)
    panel = plots.Panel([line], "top-1 accuracy, %", "epoch of the probe")
    caption = "Test accuracy of a linear classifier on the frozen features; a level end: it has converged."
    return Drawing("Linear probe", caption, plots.curves([panel], size=HALF))


def _map(run: Run) -> Drawing | None:
    points, labels = run.array("map2d", "points"), run.array("map2d", "labels")
    if points is None or labels is None or not len(points):
        return None
    predictions = run.array("map2d", "predictions")
    chosen, judged = run.array("map2d", "chosen"), run.array("knn", "predictions")
    if predictions is None and chosen is not None and judged is not None and chosen.max() < len(judged):
        predictions = judged[chosen]
    highest = max(labels.max(), 0 if predictions is None else predictions.max())
    svg = plots.map_2d(points, labels, predictions, run.class_names(int(highest) + 1))
    caption = f"t-SNE of {len(points):,} test images, coloured by class"
    if len(np.unique(labels)) > plots.CLASSES_TO_NAME:
        caption += " (colours recur far apart, names that would overlap are left out)"
    if predictions is not None:
        wrong = int((predictions != labels).sum())
        caption += f"; rings mark the {wrong:,} misjudged by kNN"
        caption += ", with what they were taken for" if 0 < wrong <= plots.NAMED_ERRORS else ""
    return Drawing("Map of the test embeddings", caption + ".", svg, "large")


def _confusion(run: Run) -> Drawing | None:
    counts = run.array("knn", "confusion")
    if counts is None:
        return None
    wrong = int(counts.sum() - np.trace(counts))
    caption = f"{wrong:,} of {int(counts.sum()):,} test images are misjudged"
    for true, taken, count, _ in run.confused_pairs()[:1]:
        often = f"{count:,} times" if count > 1 else "once"
        caption += f"; most often {true} is taken for {taken} ({often})"
    svg = plots.confusion(counts, run.class_names(len(counts)))
    return Drawing("Confusion of the kNN classifier", caption + ".", svg, "large")


def _overlays(groups: list[Group]) -> list[Drawing]:
    """The curves of all runs over each other; where there are several recipes, runs of one look alike."""
    by_group = 1 < len(groups) < sum(len(group.runs) for group in groups)
    looks: list[tuple[Run, int, str]] = []  # with the style of the run's lines and their label
    for style, group in enumerate(groups):
        shared = f"{group.label} ({len(group.runs)} runs)" if by_group and len(group.runs) > 1 else ""
        for run in group.runs:
            looks.append((run, style if by_group else len(looks), shared or run.name))
    drawings = []
    methods = {run.method for run, *_ in looks}
    unlike = "; the losses of different methods do not compare in value" if len(methods) > 1 else ""
    for title, caption, columns in (
        ("Loss", f"The whole loss and, where a method has them, its terms{unlike}.", LOSSES),
        ("Temperature", "How τ₂ and ε moved in each run.", {"tau2": "mean τ₂", "epsilon": "ε"}),
    ):
        panels = []
        for column, name in columns.items():
            having = [look for look in looks if {"epoch", column} <= look[0].metrics.keys()]
            lines = [_line(run, column, style, label) for run, style, label in having]
            panels += [plots.Panel(lines, name)] if lines else []
        if panels:
            drawings.append(Drawing(title, caption, plots.curves(panels, size=WIDE), "wide"))
    judged = [look for look in looks if look[0].accuracy_by_k("knn")]
    lines = [_by_k(run.accuracy_by_k("knn"), style, label) for run, style, label in judged]
    if lines:
        pixels = [run.accuracy_by_k("pixels") for run, *_ in looks if "pixels" in run.findings]
        baseline = pixels[0] if pixels and len({run.data for run, *_ in looks}) == 1 else {}
        title = "kNN accuracy over the number of neighbours"
        caption = "Higher is better" + ("; curves above the dotted one beat raw pixels." if baseline else ".")
        svg = plots.curves([_neighbour_panel(lines, baseline)], size=WIDE)
        drawings.append(Drawing(title, caption, svg, "wide"))
    return drawings


def _plain(value: Any) -> str:
    """A setting or a score as a person writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "—"
    return "—" if value is None or value == "" else str(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _date(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text or "—"
    return f"{moment.day} {moment:%B %Y, %H:%M}"
