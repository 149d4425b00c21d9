"""How training went: the loss and its terms, the temperature, and how soon the loss came down."""

from __future__ import annotations

import numpy as np

from varcon.reports.charts import HALF, WIDE, Band, Line, Panel, curves
from varcon.reports.collect import Run
from varcon.reports.epochs import convergence, epoch_means
from varcon.reports.groups import Group, looks, spread
from varcon.reports.svg import Drawing
from varcon.reports.tables import Cell, Table, spread_text

LOSSES = {"loss": "loss", "kl": "KL term", "nll": "NLL term"}  # columns of metrics.jsonl and their names
REACHED = {f"epoch_at_{share}": f"{share} % of the decrease" for share in (90, 95, 99)}
AREA = (
    "The area is that under the loss, scaled to fall from 1 to 0 in a time of 1: 0.5 for a straight fall, "
    "0 for one at once."
)


def of_run(run: Run) -> list[Drawing | Table]:
    return [*losses(run), *temperature(run), *decomposition(run)]


def of_groups(groups: list[Group]) -> list[Drawing | Table]:
    drawings: list[Drawing | Table] = []
    all_looks = looks(groups)
    several = len({look.run.method for look in all_looks}) > 1
    unlike = "; the losses of different methods do not compare in value" if several else ""
    for title, caption, columns in (
        ("Loss", f"The whole loss and, where a method has them, its terms{unlike}.", LOSSES),
        ("Temperature", "How τ₂ and ε moved in each run.", {"tau2": "mean τ₂", "epsilon": "ε"}),
    ):
        panels = []
        for column, name in columns.items():
            having = [look for look in all_looks if {"epoch", column} <= look.run.metrics.keys()]
            lines = [_line(look.run, column, look.style, look.label) for look in having]
            panels += [Panel(lines, name)] if lines else []
        if panels:
            drawings.append(Drawing(title, caption, curves(panels, (WIDE, 300)), "wide"))
    return drawings + convergences(groups)


def losses(run: Run) -> list[Drawing]:
    if not {"epoch", "loss"} <= run.metrics.keys():
        return []
    shown = [name for name in LOSSES if name in run.metrics]
    lines = [
        _line(run, name, style, LOSSES[name] if len(shown) > 1 else "") for style, name in enumerate(shown)
    ]
    panels = [Panel(lines, "loss", height=2)]
    known = run.metrics["loss"][np.isfinite(run.metrics["loss"])]
    first, last = known[[0, -1]]
    caption = f"The loss went from {first:.3g} to {last:.3g}"
    # Other methods with these terms add more to them.
    alone = run.method == "varcon" and len(shown) == 3 and "cross_entropy" not in run.metrics
    caption += "; it is the sum of its two terms." if alone else "."
    if "tau1" in run.metrics:
        caption += " Part of that is τ₁, which moved."
    if "confidence" in run.metrics:
        panels.append(Panel([_line(run, "confidence")], "confidence", height=0.9))
        caption += " Below: the mean probability given to the true class."
    return [Drawing("Loss", caption, curves(panels, (HALF, 340), stacked=True))]


def temperature(run: Run) -> list[Drawing]:
    if not {"epoch", "tau2"} <= run.metrics.keys():
        return []
    tau1, epsilon = run.tau1, run.metrics.get("epsilon")
    level, bands = None, []
    caption = "The temperature that adapts to each image's confidence, averaged over the batch."
    if tau1 is not None and epsilon is not None:
        epochs = run.metrics["epoch"]
        level = Line(epochs, np.broadcast_to(tau1, len(epochs)), label="τ₁")
        bands = [Band(epochs, tau1 - epsilon, tau1 + epsilon)]
        caption = (
            "τ₂ moves inside the grey band τ₁ ± ε: low where the class is in doubt, high where it is sure."
        )
    panels = [Panel([_line(run, "tau2", 0, "mean τ₂")], "temperature", baseline=level, bands=bands, height=2)]
    if epsilon is not None:
        panels.append(Panel([_line(run, "epsilon")], "ε", height=0.9))
    return [Drawing("Temperature", caption, curves(panels, (HALF, 340), stacked=True))]


def decomposition(run: Run) -> list[Table]:
    """The loss terms' first and last epoch means, and when the loss had come down."""
    rows = journal(run)
    if not rows:
        return []
    epochs, terms = epoch_means(rows)
    names = {**LOSSES, "confidence": "confidence", "tau1": "τ₁", "tau2": "τ₂", "epsilon": "ε"}
    lines = []
    for name, values in terms.items():
        first, last = values[0], values[-1]
        fall = f"{100 * (1 - last / first):.1f}" if name in LOSSES and first > 0 else "—"
        texts = (f"{first:.4g}", f"{last:.4g}", fall)
        lines.append([Cell(names[name]), *(Cell(text, (run.name,)) for text in texts)])
    head = ["term", "first epoch", "last epoch", "decrease, %"]
    tables = [Table("Terms of the loss", head, lines, "Means over an epoch.")]
    found = convergence(epochs, terms["loss"])
    if found:
        reached = [[Cell(name), Cell(f"{found[score]:g}", (run.name,))] for score, name in REACHED.items()]
        reached.append([Cell("area under the loss"), Cell(f"{found['area']:.3f}", (run.name,))])
        tables.append(Table("Convergence", ["the loss had made", "by epoch"], reached, AREA))
    return tables


def convergences(groups: list[Group]) -> list[Table]:
    found = {run.name: converged(run) for group in groups for run in group.runs}
    rows = []
    for group in groups:
        cells = [Cell(group.label, tuple(run.name for run in group.runs))]
        for score in (*REACHED, "area"):
            having = [run.name for run in group.runs if score in found[run.name]]
            values = spread([found[name][score] for name in having])
            cells.append(Cell(spread_text(values, 3 if score == "area" else 1, len(having)), tuple(having)))
        rows += [cells] if cells[1].runs else []
    head = ["recipe", "to 90 %", "to 95 %", "to 99 %", "area"]
    caption = f"The first epoch by which the loss had made that share of its decrease. {AREA}"
    return [Table("Epochs to convergence", head, rows, caption, shape="wide")] if rows else []


def converged(run: Run) -> dict[str, float]:
    rows = journal(run)
    if not rows:
        return {}
    epochs, terms = epoch_means(rows)
    return convergence(epochs, terms["loss"])


def journal(run: Run) -> list[dict[str, float]]:
    """The rows of metrics.jsonl that can be averaged."""
    if not {"step", "epoch", "loss"} <= run.metrics.keys():
        return []
    rows = [
        dict(zip(run.metrics, map(float, row), strict=True))
        for row in zip(*run.metrics.values(), strict=True)
    ]
    known = [
        row for row in rows if 0 <= row["epoch"] < 2**31 and np.isfinite([row["step"], row["loss"]]).all()
    ]
    steps = np.diff([0, *(row["step"] for row in known)])
    if not len(steps) or not (steps > 0).all():
        return []
    return [{name: value for name, value in row.items() if np.isfinite(value)} for row in known]


def _line(run: Run, column: str, style: int = 0, label: str = "") -> Line:
    return Line(run.metrics["epoch"], run.metrics[column], style, label)
