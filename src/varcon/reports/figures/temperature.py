"""The adaptive temperature of every training image: at the end, over training, and where it is lowest."""

from __future__ import annotations

import numpy as np

from varcon.reports.axes import Axes, Axis, axis_of, bottom_margin, left_margin
from varcon.reports.charts import HALF, WIDE, Band, Line, Panel, curves
from varcon.reports.collect import Run, Samples
from varcon.reports.epochs import epoch_means
from varcon.reports.figures.training import journal
from varcon.reports.groups import Group
from varcon.reports.svg import Canvas, Drawing, fitting, series
from varcon.reports.tables import Cell, Column, Table, compared, score_cell

SCORES = {
    "tau2_mean": ("mean τ₂", 4),
    "tau2_std": ("standard deviation", 4),
    "tau2_min": ("least", 4),
    "tau2_q25": ("lower quartile", 4),
    "tau2_median": ("median", 4),
    "tau2_q75": ("upper quartile", 4),
    "tau2_max": ("greatest", 4),
    "confidence_mean": ("mean confidence", 4),
    "disagreement": ("% that look like another class", 2),
}
RIDGES = 6  # densities over training that are shown
PICTURES_A_ROW = 8
FILES_LISTED = 40


def of_run(run: Run) -> list[Drawing | Table]:
    return [*density(run), *over_training(run), *ridges(run), *scores(run), *hardest(run), *files(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    columns = [Column(name, "temperature", score, digits) for score, (name, digits) in SCORES.items()]
    shown = [one for one in columns if one.score not in ("tau2_q25", "tau2_q75")]
    judged = [
        run.findings["temperature"] for group in groups for run in group.runs if "temperature" in run.findings
    ]
    left_out = all(one.settings.get("leave_one_out", True) for one in judged)
    caption = "τ₂ of the training images under the finished encoder" + (
        ", with each image left out of its class's mean." if left_out else "."
    )
    return [*compared("Adaptive temperature", groups, shown, caption)]


def density(run: Run) -> list[Drawing]:
    values, edges = run.array("temperature", "density"), run.array("temperature", "edges")
    if values is None or edges is None:
        return []
    panel = Panel(
        [Line(edges, values, steps=True)], "density", "τ₂", y_limits=(0, None), x_limits=(edges[0], edges[-1])
    )
    caption = (
        "Over the training images, by the finished encoder: right where it is sure, left where in doubt. By "
        "its features and their means over all images: not to be compared with the embeddings' in training."
    )
    return [Drawing("Density of τ₂ at the end", caption, curves([panel], (HALF, 300)))]


def scores(run: Run) -> list[Table]:
    cells = [
        (name, score_cell(run, "temperature", score, digits)) for score, (name, digits) in SCORES.items()
    ]
    rows = [[Cell(name), cell] for name, cell in cells if cell.runs]
    return [Table("τ₂ of the training images", ["of the finished encoder", "value"], rows)] if rows else []


def tau2_samples(run: Run) -> tuple[Samples, np.ndarray, np.ndarray] | None:
    """The confidences over training, and the least and greatest τ₂ of each epoch, which it moves between."""
    samples, tau1 = run.samples.get("confidence"), run.tau1
    if samples is None or tau1 is None or not {"epoch", "epsilon"} <= run.metrics.keys():
        return None
    rows = [row for row in journal(run) if "epsilon" in row]
    if not rows:
        return None
    # Means over each epoch, as the confidences are.
    epochs, terms = epoch_means(rows)
    tau1, epsilon = (
        np.interp(samples.epoch, epochs, values)
        for values in (np.broadcast_to(terms.get("tau1", tau1), len(epochs)), terms["epsilon"])
    )
    return samples, tau1 - epsilon, tau1 + epsilon


def over_training(run: Run) -> list[Drawing]:
    found = tau2_samples(run)
    if found is None:
        return []
    samples, low, high = found
    quantiles = low[:, None] + (high - low)[:, None] * samples.quantiles
    bands = [
        Band(samples.epoch, quantiles[:, 1], quantiles[:, 5], "series-0", 0.2),
        Band(samples.epoch, quantiles[:, 2], quantiles[:, 4], "series-0", 0.35),
    ]
    mean = Line(samples.epoch, low + (high - low) * samples.mean, 0, "mean")
    median = Line(samples.epoch, quantiles[:, 3], 1, "median")
    panel = Panel([mean, median], "τ₂", bands=bands)
    caption = (
        "Of all training images as they came up: dark, the middle half; light, all but 5 % at either end."
    )
    return [Drawing("τ₂ over training", caption, curves([panel], (HALF, 300)))]


def ridges(run: Run) -> list[Drawing]:
    found = tau2_samples(run)
    if found is None or len(found[0].epoch) < 2:
        return []
    samples, low, high = found
    places = np.unique(np.linspace(0, len(samples.epoch) - 1, RIDGES).round().astype(int))
    heights = samples.density[places] / np.maximum(samples.density[places].max(axis=1, keepdims=True), 1e-12)
    svg = ridge_plot(
        heights, low[places], high[places], [f"epoch {samples.epoch[place]:g}" for place in places]
    )
    caption = "The same images' densities at a few epochs, each scaled to its own peak."
    return [Drawing("Density of τ₂ over training", caption, svg)]


def ridge_plot(heights: np.ndarray, low: np.ndarray, high: np.ndarray, names: list[str]) -> str:
    canvas = Canvas(HALF, 300)
    x = axis_of([low, high], "τ₂", (float(low.min()), float(high.max())))
    count = len(names)
    y = Axis(0, count + 0.4, ticks=[(count - 1 - place, name) for place, name in enumerate(names)])
    axes = Axes(canvas, (left_margin(y), 6, HALF - 12, 300 - bottom_margin(x)), x, y)
    for place, values in enumerate(heights):  # from the top down, so that a later one covers an earlier
        edges = np.linspace(low[place], high[place], len(values) + 1)
        across, floor = np.repeat(edges, 2), np.full(2 * len(edges), float(count - 1 - place))
        up = floor + 1.25 * np.concatenate([[0], np.repeat(values, 2), [0]])
        canvas.area(axes.x(across), axes.y(floor), axes.y(up), "paper", 0.75)
        canvas.area(axes.x(across), axes.y(floor), axes.y(up), series(0), 0.3)
        canvas.line(axes.x(across), axes.y(up), series(0), 1.3)
    return canvas.svg()


def hardest(run: Run) -> list[Drawing]:
    names = ("pictures", "labels", "rivals", "confidence")
    pictures, labels, rivals, confidence = (run.array("temperature", f"hardest_{name}") for name in names)
    if pictures is None or labels is None or rivals is None or confidence is None:
        return []
    shown = min(len(pictures), len(labels))
    classes = run.names_of(labels, rivals)
    cell, side = WIDE / PICTURES_A_ROW, 84.0
    rows = -(-shown // PICTURES_A_ROW)
    canvas = Canvas(WIDE, rows * (side + 58))
    for place in range(shown):
        middle, top = (place % PICTURES_A_ROW + 0.5) * cell, place // PICTURES_A_ROW * (side + 58) + 2
        height, width = pictures[place].shape[:2]
        scale = side / max(height, width)
        canvas.image(middle - width * scale / 2, top, width * scale, height * scale, pictures[place])
        below = (
            classes[int(labels[place])],
            f"→ {classes[int(rivals[place])]}",
            f"p = {confidence[place]:.2g}",
        )
        for line, words in enumerate(below):
            cut, colour = fitting(words, cell - 4, 11, bold=not line), "muted" if line else "ink"
            canvas.text(middle, top + side + 11 + 14 * line, cut, 11, "middle", colour, bold=not line)
    caption = (
        f"The {shown} training images of the lowest confidence p in their own class, the hardest first; "
        "below each its label, → the class that it looks like instead, and p. Wrong labels are "
        "among the first."
    )
    return [Drawing("The hardest training images", caption, canvas.svg(), "wide")]


def files(run: Run) -> list[Table]:
    """Where the hardest images lie, so that their labels can be looked after."""
    arrays = (f"hardest_{name}" for name in ("files", "labels", "rivals", "confidence"))
    paths, labels, rivals, confidence = (run.array("temperature", name) for name in arrays)
    if paths is None or labels is None or rivals is None or confidence is None:
        return []
    classes = run.names_of(labels, rivals)
    names = [str(path).encode(errors="backslashreplace").decode() for path in paths]  # any bytes are a name
    rows = [
        [Cell(name), Cell(classes[int(label)]), Cell(classes[int(rival)]), Cell(f"{p:.3f}")]
        for name, label, rival, p in zip(names, labels, rivals, confidence, strict=True)
    ]
    head = ["file", "class", "looks like", "p"]
    return [Table("The hardest training images, by file", head, rows[:FILES_LISTED], words=3, shape="wide")]
