"""Whether class posteriors are as often right as they are sure."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, WIDE, Line, Panel, curves
from varcon.reports.collect import Run
from varcon.reports.groups import Group, looks
from varcon.reports.svg import Drawing
from varcon.reports.tables import NONE, Cell, Column, Table, compared, score_cell

# Of each posterior: the finding, the beginning of its scores' and arrays' names, and how it is called.
POSTERIORS = (
    ("calibration", "", "τ as set"),
    ("calibration", "fitted_", "τ by training"),
    ("calibration", "crossed_", "τ by test halves"),
    ("calibration", "predict_", "varcon predict"),
    ("classifier-calibration", "", "its own classifier"),
)
SCORES = {
    "temperature": ("τ", 4),
    "top1": ("top-1, %", 2),
    "confidence": ("confidence, %", 2),
    "ece": ("ECE, %", 2),
    "ece_adaptive": ("adaptive ECE, %", 2),
    "mce": ("MCE, %", 2),
    "nll": ("NLL, nats", 4),
    "brier": ("Brier", 4),
}
LEVEL = Line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), label="as sure as right")
WHOLE = (-0.02, 1.02)


def of_run(run: Run) -> list[Drawing | Table]:
    return [*reliability(run), *scores(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    columns = [
        Column(f"{name}, {short}", finding, prefix + score, digits)
        for (finding, prefix, _), short in zip(
            POSTERIORS, ("as set", "fitted", "crossed", "predict", "classifier"), strict=True
        )
        for score, name, digits in (("ece", "ECE, %", 2), ("nll", "NLL", 3))
    ]
    caption = (
        "ECE and NLL of the posterior by class centroids: at the temperature set, fitted to training "
        "images, and fitted to half the test images (crossed); of varcon predict, by linear discriminants "
        "of which two numbers are fitted to half the test images; and of a method's own classifier. "
        "Lower is better."
    )
    return [*overlaid(groups), *compared("Calibration errors", groups, columns, caption)]


def bins(run: Run, finding: str, prefix: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Confidence, accuracy and number of images, of the bins that have any."""
    found = [run.array(finding, f"{prefix}bin_{name}") for name in ("confidence", "accuracy", "images")]
    if any(values is None for values in found):
        return None
    confidence, accuracy, images = (np.asarray(values, float) for values in found)
    some = (images > 0) & np.isfinite(confidence) & np.isfinite(accuracy)
    return (confidence[some], accuracy[some], images[some]) if some.any() else None


def reliability_line(run: Run, finding: str, prefix: str, style: int = 0, label: str = "") -> Line | None:
    found = bins(run, finding, prefix)
    if found is None:
        return None
    confidence, accuracy, images = found
    return Line(confidence, accuracy, style, label, np.sqrt(accuracy * (1 - accuracy) / images))


def reliability(run: Run) -> list[Drawing]:
    above, below = [], []
    for finding, prefix, name in POSTERIORS:
        line, found = reliability_line(run, finding, prefix), bins(run, finding, prefix)
        if line is None or found is None:
            continue
        panel = Panel(
            [line], "accuracy", "confidence", name, LEVEL, x_limits=WHOLE, y_limits=WHOLE, height=2, dots=True
        )
        edges = run.array(finding, f"{prefix}bin_edges")
        counts = np.asarray(run.array(finding, f"{prefix}bin_images"), float)
        if edges is None or len(edges) != len(counts) + 1:
            edges = np.linspace(0, 1, len(counts) + 1)
        share = Line(edges, 100 * counts / counts.sum(), 0, steps=True)
        above.append(panel)
        below.append(Panel([share], "% of images", "confidence", x_limits=WHOLE, y_limits=(0, 100), height=1))
    if not above:
        return []
    width = WIDE if len(above) > 1 else HALF
    svg = curves([*above, *below], (width, 400), columns=len(above))
    caption = (
        "Points above the dotted line are right more often than they are sure; bars are standard errors. "
    )
    caption += "Below: how many images are how sure."
    return [Drawing("Reliability", caption, svg, "wide" if width == WIDE else "half")]


def scores(run: Run) -> list[Table]:
    rows = []
    for finding, prefix, name in POSTERIORS:
        cells = [score_cell(run, finding, prefix + score, digits) for score, (_, digits) in SCORES.items()]
        rows += [[Cell(name), *cells]] if any(cell.text != NONE for cell in cells) else []
    head = ["posterior", *(name for name, _ in SCORES.values())]
    caption = (
        "The posterior by class centroids: at the temperature set, fitted to training images held out, and "
        "fitted to one half of the test images and judged on the other; that of varcon predict, by linear "
        "discriminants, with a temperature of another scale; and a method's own classifier. "
        "ECE and MCE: the mean and the largest distance of accuracy and confidence over the bins."
    )
    return [Table("Calibration errors", head, rows, caption, shape="wide")] if rows else []


def overlaid(groups: list[Group]) -> list[Drawing]:
    panels = []
    for finding, prefix, name in POSTERIORS:
        lines = [
            reliability_line(look.run, finding, prefix, look.style, look.label) for look in looks(groups)
        ]
        shown = [line for line in lines if line is not None]
        if shown:
            panels.append(
                Panel(shown, "accuracy", "confidence", name, LEVEL, x_limits=WHOLE, y_limits=WHOLE, dots=True)
            )
    if not panels:
        return []
    caption = (
        "Points above the dotted line are right more often than they are sure; bars are standard errors."
    )
    return [Drawing("Reliability", caption, curves(panels, (WIDE, 320)), "wide")]
