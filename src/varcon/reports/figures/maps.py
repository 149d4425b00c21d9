"""Embeddings in the plane: of the finished encoder, and over training."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import LARGE, WIDE
from varcon.reports.collect import Run
from varcon.reports.groups import Group
from varcon.reports.svg import SERIES, Canvas, Drawing, number, short, width_of
from varcon.reports.tables import Cell, Table, score_cell

CLASSES_TO_NAME = 20  # a map of more classes has smaller names, and only those that find room
MOST_RINGED = 0.4  # of the points; more rings would hide them
NAMED_ERRORS = 40  # a map with more misjudged images rings them without saying what they were taken for
VOTES = "knn_top1@epoch"
MAPS_SHOWN = 8  # of those over training: the first, the last and between them


def of_run(run: Run) -> list[Drawing | Table]:
    return [*final_map(run), *maps_over_training(run), *neighbours_over_training(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    return []


def final_map(run: Run) -> list[Drawing]:
    points, labels = run.array("map2d", "points"), run.array("map2d", "labels")
    if points is None or labels is None:
        return []
    predictions = run.array("map2d", "predictions")
    chosen, judged = run.array("map2d", "chosen"), run.array("knn", "predictions")
    same = run.by_the_same_labels("map2d", "knn")
    if predictions is None and same and chosen is not None and judged is not None:
        predictions = judged[chosen] if chosen.max() < len(judged) else None
    svg = map_2d(points, labels, predictions, run.names_of(labels, predictions))
    caption = f"{projection(run, 'map2d')} of {len(points):,} {run.judged_on}, coloured by class"
    if len(np.unique(labels)) > CLASSES_TO_NAME:
        caption += " (colours recur far apart, names that would overlap are left out)"
    if predictions is not None:
        wrong = int((predictions != labels).sum())
        crowded = wrong > MOST_RINGED * len(points)
        caption += f"; kNN misjudges {wrong:,}" if crowded else f"; rings mark the {wrong:,} misjudged by kNN"
        caption += ", where there is room with what they were taken for" if 0 < wrong <= NAMED_ERRORS else ""
    return [Drawing("Map of the test embeddings", caption + ".", svg, "large")]


def maps_over_training(run: Run) -> list[Drawing]:
    points, labels, epochs = (run.array("maps", name) for name in ("points", "labels", "epochs"))
    if points is None or labels is None or epochs is None:
        return []
    kept = np.unique(np.linspace(0, len(points) - 1, min(MAPS_SHOWN, len(points))).round().astype(int))
    titles = ["before training" if epochs[place] == 0 else f"epoch {epochs[place]:g}" for place in kept]
    svg = small_maps(points[kept], labels, titles)
    same = f"the same {len(labels):,} {run.judged_on}"
    caption = f"{projection(run, 'maps')} of {same} as training goes on, by class."
    return [Drawing("Maps over training", caption, svg, "wide")]


def projection(run: Run, finding: str) -> str:
    return "UMAP" if run.findings[finding].settings.get("method") == "umap" else "t-SNE"


def neighbours_over_training(run: Run) -> list[Table]:
    """What the neighbours of the mapped images voted, from the scores named knn_top1@epochE."""
    names = run.findings["maps"].scores if "maps" in run.findings else {}
    found = [name.removeprefix(VOTES) for name in names if name.startswith(VOTES)]
    epochs = sorted(int(epoch) for epoch in found if epoch.isdecimal())
    rows = [[Cell(str(epoch)), score_cell(run, "maps", f"{VOTES}{epoch}")] for epoch in epochs]
    caption = "Of the mapped images, each by its nearest among the others."
    return [Table("Neighbours over training", ["epoch", "kNN top-1, %"], rows, caption)] if rows else []


def map_2d(
    points: np.ndarray, labels: np.ndarray, predictions: np.ndarray | None, names: dict[int, str]
) -> str:
    """Points coloured by class, each class named at its middle, the misjudged ones in rings."""
    present = np.unique(labels)
    many = len(present) > CLASSES_TO_NAME
    canvas = Canvas(LARGE, 760 if many else 640)
    x, y = fitted(points, (40, 20, LARGE - 40, canvas.height - 20))
    middles = np.array([middle(np.stack([x, y], axis=1)[labels == label]) for label in present])
    scatter(canvas, x, y, labels, colours_of(middles), 4.2 if many else 6)
    wrong = np.zeros(len(points), dtype=bool) if predictions is None else predictions != labels
    if wrong.mean() <= MOST_RINGED:
        canvas.rings(x[wrong], y[wrong], 8 if many else 12, 0.7 if many else 1.3)
    written: list[tuple[float, float, float, float]] = []
    size = 16.0 if not many else 12.0 if len(present) <= 50 else 9.0
    for place, label in enumerate(present):
        name = short(names[int(label)], 14)
        across, down = middles[place]
        half = width_of(name, size, bold=True) / 2
        box = (across - half - 2, down - size / 2 - 1, across + half + 2, down + size / 2 + 1)
        if not many or free(box, written):
            written.append(box)
            canvas.text(across, down, name, size, "middle", bold=True, halo=True)
    if predictions is not None and wrong.sum() <= NAMED_ERRORS:
        for across, down, taken in zip(x[wrong], y[wrong], predictions[wrong], strict=True):
            words = f"→ {short(names[int(taken)], 12)}"
            # To the right of its ring or, where that is taken or the page ends, to the left; else unsaid.
            for start in (across + 8, across - 8 - width_of(words, 10)):
                box = (start, down - 6, start + width_of(words, 10), down + 6)
                if box[0] > 0 and box[2] < LARGE and free(box, written):
                    written.append(box)
                    canvas.text(start, down, words, 10, halo=True)
                    break
    return canvas.svg()


def small_maps(points: np.ndarray, labels: np.ndarray, titles: list[str]) -> str:
    """Maps [S, N, 2] side by side; a class has one colour and one mark in all of them."""
    rows = -(-len(points) // 4)
    columns = -(-len(points) // rows)
    side = min(WIDE / columns, 330.0)
    canvas = Canvas(WIDE, rows * (side + 4))
    last = np.stack(fitted(points[-1], (0, 0, 1, 1)), axis=1)
    colours = colours_of(np.array([middle(last[labels == label]) for label in np.unique(labels)]))
    for place, title in enumerate(titles):
        left, top = place % columns * side, place // columns * (side + 4)
        x, y = fitted(points[place], (left + 14, top + 30, left + side - 14, top + side - 8))
        corner = f"M{number(left + 4)} {number(top + 22)}h{number(side - 8)}v{number(side - 22)}"
        canvas.path(corner + f"h{number(8 - side)}z", stroke="faint", width=1)
        canvas.text(left + side / 2, top + 10, title, anchor="middle", bold=True)
        scatter(canvas, x, y, labels, colours, 3.2 if len(labels) > 500 else 4)
    return canvas.svg()


def scatter(
    canvas: Canvas, x: np.ndarray, y: np.ndarray, labels: np.ndarray, colours: list[int], size: float
) -> None:
    for place, label in enumerate(np.unique(labels)):
        chosen = labels == label
        canvas.marks(x[chosen], y[chosen], colours[place], size, mark=int(label))


def fitted(points: np.ndarray, box: tuple[float, float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Points brought into a box with one scale for both directions, up staying up."""
    low, high = points.min(axis=0).astype(float), points.max(axis=0).astype(float)
    room = np.array([box[2] - box[0], box[3] - box[1]])
    scale = float(min(room / np.maximum(high - low, 1e-9)))
    across, up = ((points - (low + high) / 2) * scale).T
    return (box[0] + box[2]) / 2 + across, (box[1] + box[3]) / 2 - up


def middle(points: np.ndarray) -> np.ndarray:
    """The point nearest to the median: the median itself may lie between two clusters of a class."""
    return points[np.square(points - np.median(points, axis=0)).sum(1).argmin()]


def free(box: tuple[float, ...], others: list[tuple[float, float, float, float]]) -> bool:
    return all(
        box[2] < other[0] or other[2] < box[0] or box[3] < other[1] or other[3] < box[1] for other in others
    )


def colours_of(middles: np.ndarray) -> list[int]:
    """A colour for each class: its own while they suffice, then the one whose last use is farthest away."""
    colours: list[int] = []
    for place, middle_of_it in enumerate(middles):
        away = np.linalg.norm(middles[:place] - middle_of_it, axis=1)
        nearest = [
            min(away[np.array(colours) == colour]) for colour in range(len(SERIES)) if colour in colours
        ]
        colours.append(place if place < len(SERIES) else int(np.argmax(nearest)))
    return colours
