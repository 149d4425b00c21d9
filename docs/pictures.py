"""The pictures of the page on the method, from runs of this project: python docs/pictures.py

It trains on the digits (40 seconds on one core) and reads the CIFAR-100 run that is kept in results/.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from varcon import run
from varcon.augment.policies import prepare
from varcon.data import load
from varcon.engine.checkpoint import load_checkpoint
from varcon.losses.varcon import Terms, class_sums
from varcon.recipe import DIGITS
from varcon.reports.axes import Axes, Axis, bottom_margin, left_margin
from varcon.reports.charts import HALF, Line, Panel, curves
from varcon.reports.collect import Samples, read_runs
from varcon.reports.figures import maps, similarity, temperature, training
from varcon.reports.svg import COLOURS, FONTS, Canvas, series

HERE = Path(__file__).parent
CIFAR = HERE.parent / "results/cifar100/r18-varcon-seed0"
SNAPSHOTS = (0, 2)  # epochs whose embedding is mapped beside the last
EARLY = 3  # epochs of the run of which single images are shown
LARGEST = 150_000  # bytes of a picture
POSTERIOR, TARGET = 0, 1  # colours


class Sample(NamedTuple):
    """One training image as the loss sees it."""

    title: str
    pixels: np.ndarray  # [h, w, 3]
    label: int
    posterior: np.ndarray  # [C] p
    target: np.ndarray  # [C] q
    tau2: float


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "digits"
        recipe = replace(DIGITS, train=replace(DIGITS.train, snapshots=SNAPSHOTS, device="cpu"))
        run.train(recipe, folder)
        run.evaluate(folder, only=("maps", "similarity"))
        # In the end the digits are all easy; after a few epochs there are hard ones left to show.
        early = replace(DIGITS, train=replace(DIGITS.train, epochs=EARLY, device="cpu"))
        run.train(early, Path(place) / "early")
        digits, cifar = read_runs([folder, CIFAR])
        tau1 = recipe.method.temperature
        pictures = {
            "tau2": tau2_by_confidence(digits.samples["confidence"], tau1),
            "target": hard_and_easy(*hardest_and_easiest(Path(place) / "early", early)),
            "target-share": target_share(tau1),
            "tau2-digits": temperature.over_training(digits)[0].svg,
            "tau2-cifar100": training.temperature(cifar)[0].svg,
            "loss-cifar100": training.losses(cifar)[0].svg,
            "maps": maps.maps_over_training(digits)[0].svg,
            "similarity": similarity.cosines(digits)[0].svg,
        }
    for name, svg in pictures.items():
        text = following_the_reader(svg)
        assert len(text.encode()) < LARGEST, f"{name}.svg is too large for the page"
        (HERE / "pictures" / f"{name}.svg").write_text(text, encoding="utf-8")


def following_the_reader(svg: str) -> str:
    """A file of its own whose colours are light or dark as the reader's system is."""
    light, dark = (";".join(f"--{name}:{pair[at]}" for name, pair in COLOURS.items()) for at in (0, 1))
    style = f"svg{{{light};background:var(--paper)}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    box = re.match(r'<svg xmlns="[^"]*" viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box
    plain = re.sub(r"var\((--[\w-]+),#\w+\)", r"var(\1)", svg)
    size = f'<svg width="{box[1]}" height="{box[2]}" font-family="{FONTS}"'
    return plain.replace("<svg", size, 1).replace("\n", f"\n<style>{style}</style>\n", 1) + "\n"


def tau2_by_confidence(samples: Samples, tau1: float) -> str:
    p = np.array([0.0, 1.0])
    lines = [
        Line(p, tau1 - half + 2 * half * p, style, f"ε = {half:.3g}")
        for style, half in enumerate((0.02, 0.05))
    ]
    edges = np.linspace(0, 1, samples.density.shape[1] + 1)
    share = 100 * samples.density / samples.density.sum(axis=1, keepdims=True)
    when = {0: "first epoch", len(share) - 1: "last epoch"}
    bars = [
        Line(edges, share[place], style, name, steps=True)
        for style, (place, name) in enumerate(when.items(), start=2)
    ]
    across = {"x_label": "confidence p of the true class", "x_limits": (0.0, 1.0)}
    level = Line(p, np.full(2, tau1), label="τ₁")
    panels = [
        Panel(lines, "τ₂", baseline=level, **across),
        Panel(bars, "% of the images", y_limits=(0, None), **across),
    ]
    return curves(panels, (HALF, 430), stacked=True)


def target_share(tau1: float) -> str:
    """q of the true class, by tau2, for several numbers of classes."""
    tau2 = np.linspace(tau1 - 0.02, tau1 + 0.05, 60)
    lines = [
        Line(tau2, 1 / (1 + (classes - 1) * np.exp(-1 / tau2)), style, f"{classes:,} classes")
        for style, classes in enumerate((10, 100, 1000))
    ]
    panel = Panel(lines, "q of the true class", "τ₂", x_limits=(tau2[0], tau2[-1]), y_limits=(0, 1.02))
    return curves([panel], (HALF, 300))


@torch.no_grad()
def hardest_and_easiest(folder: Path, recipe: Any) -> tuple[Sample, Sample]:
    """Of all training digits without augmentation, against references that are means over all of them."""
    data = load(recipe.data)
    method = run.build_method(recipe, data)
    method.load_state_dict(load_checkpoint(folder / "last.ckpt")["method"])
    method.eval()
    labels = data.train.labels
    z = F.normalize(method.head(method.encoder(prepare(data.train.images, data.mean, data.std))), dim=1)
    terms: Terms = method.loss.explain(z, labels)
    references = F.normalize(class_sums(z, labels, len(data.classes))[0], dim=1)
    posterior = (z @ references.T / recipe.method.temperature).softmax(1)
    assert torch.allclose(posterior.gather(1, labels[:, None])[:, 0], terms.confidence, atol=1e-4)

    def sample(place: int, title: str) -> Sample:
        own, share = int(labels[place]), float(terms.target[place])
        target = np.full(len(data.classes), (1 - share) / (len(data.classes) - 1))
        target[own] = share
        pixels = data.train.images[place].permute(1, 2, 0).contiguous().numpy()
        return Sample(title, pixels, own, posterior[place].numpy(), target, float(terms.tau2[place]))

    order = terms.confidence.argsort()
    return sample(int(order[0]), "the hardest"), sample(int(order[-1]), "an easy one")


def hard_and_easy(*samples: Sample) -> str:
    """Each image with p and q over the classes, on a scale that shows a thousandth."""
    row, picture = 225.0, 96.0
    canvas = Canvas(HALF, row * len(samples))
    for place, one in enumerate(samples):
        top = row * place
        x = Axis(-0.6, 9.6, "class", [(digit, str(digit)) for digit in range(10)])
        y = Axis(-5.5, 0.1, "probability", [(power, f"{10.0**power:g}") for power in range(-5, 1)])
        box = (picture + 30 + left_margin(y), top + 30, HALF - 12, top + row - bottom_margin(x) - 6)
        axes = Axes(canvas, box, x, y)
        canvas.image(6, top + 36, picture, picture, one.pixels)
        words = (f"{one.title}: a {one.label}", f"p = {one.posterior[one.label]:.4f}", f"τ₂ = {one.tau2:.4f}")
        for line, text in enumerate(words):
            canvas.text(6, top + 148 + 18 * line, text, bold=not line)
        for shift, name, values, style in (
            (-0.2, "posterior p", one.posterior, POSTERIOR),
            (0.2, "target q", one.target, TARGET),
        ):
            canvas.rectangle(axes.left + 10 + 100 * style, top + 8, 12, 12, series(style))
            canvas.text(axes.left + 28 + 100 * style, top + 14, name)
            for digit, value in enumerate(values):
                height = float(axes.bottom - axes.y(max(np.log10(max(value, 1e-12)), y.low)))
                across = float(axes.x(digit + shift - 0.18))
                width = float(axes.x(0.36) - axes.x(0))
                canvas.rectangle(across, axes.bottom - height, width, height, series(style))
    return canvas.svg()


if __name__ == "__main__":
    main()
