"""RESULTS.md from the runs that are kept here, and small copies of runs to keep.

    python results/results.py write               # RESULTS.md by its template, and cifar100.svg
    python results/results.py keep RUN NAME       # for example runs/cifar100-varcon cifar100/r50-varcon-seed0

A kept run has its recipe, a row of metrics for every epoch and the scores of its findings; `code` in its
recipe.json is a digest of the package that made it. Its name ends with its seed, and runs that differ in
nothing else share a row of a table.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

import varcon
from varcon.reports.charts import Marks, rows_of_marks
from varcon.reports.collect import Run, read_run
from varcon.reports.groups import spread
from varcon.reports.svg import Drawing
from varcon.reproduce import gather, paper
from varcon.reproduce.paper import MAIN, MAIN_DATA, TAU2_SCORES, Value

HERE = Path(__file__).parent
TEMPLATE, RESULT = HERE / "RESULTS.template.md", HERE.parent / "RESULTS.md"
PICTURE = HERE / "cifar100.svg"
WIDTH = 128  # of the page's lines

# Title of a column, the finding, its score, and decimals.
SCORES = {
    "linear, last": ("linear", "last", 2),
    "linear, best": ("linear", "best", 2),
    "linear on crops, last": ("linear-augmented", "last", 2),
    "kNN": ("knn", "top1", 2),
    "own classifier": ("classifier", "top1", 2),
    "rank": ("rank", "effective_rank", 1),
    "Ward ARI": ("clustering", "ari", 3),
    "Ward NMI": ("clustering", "nmi", 3),
    "superclass of nearest": ("similarity", "nearest_in_superclass", 3),
    "one image a class": ("fewshot", "logistic@1", 2),
    "ten": ("fewshot", "logistic@10", 2),
    "Flowers": ("transfer", "flowers", 2),
    "Pets": ("transfer", "pets", 2),
}
EPSILON = "epsilon at the end"  # a column too, of the metrics

# Rows of the picture: runs, and the paper's name for the method where it trains the same encoder.
PICTURED = {
    "VarCon, ResNet-50": ("cifar100/r50-varcon", "VarCon"),
    "VarCon, auto, ResNet-50": ("cifar100/r50-varcon-auto", "VarCon"),
    "SupCon, ResNet-50": ("cifar100/r50-supcon", "SupCon"),
    "SupCon, auto, ResNet-50": ("cifar100/r50-supcon-auto", "SupCon"),
    "cross-entropy, ResNet-50": ("cifar100/r50-ce-sim", "Cross-entropy"),
    "cross-entropy*, ResNet-50": ("cifar100/r50-ce-dn", "Cross-entropy"),
    "VarCon, ResNet-18": ("cifar100/r18-varcon", ""),
    "SupCon, ResNet-18": ("cifar100/r18-supcon", ""),
    "cross-entropy, ResNet-18": ("cifar100/r18-ce", ""),
    "cross-entropy*, ResNet-18": ("cifar100/r18-ce-dn", ""),
}


def kept(pattern: str) -> list[Run]:
    """Runs by their name without the seed, `cifar100/r18-varcon`."""
    folders = sorted(HERE.glob(f"{pattern}-seed*"), key=lambda path: (len(path.name), path.name))
    if not folders:
        raise SystemExit(f"no run is kept as results/{pattern}-seed*")
    return [read_run(folder, f"{folder.parent.name}/{folder.name}") for folder in folders]


def every_run() -> list[Run]:
    return [read_run(path.parent, path.parent.name) for path in sorted(HERE.glob("*/*/recipe.json"))]


def quoted(pattern: str, title: str) -> str:
    """The mean over the seeds, and its spread where there are several."""
    if title == EPSILON:
        learned = "epsilon" in kept(pattern)[0].metrics
        return f"{last(pattern, 'epsilon'):.4f}" if learned else ""
    finding, score, decimals = SCORES[title]
    found = spread([run.score(finding, score) for run in kept(pattern)])
    if found is None:
        return ""
    deviation = "" if found.deviation is None else f" ± {found.deviation:.{decimals}f}"
    return f"{found.mean:.{decimals}f}{deviation}"


def mean(pattern: str, title: str) -> float:
    finding, score, _ = SCORES[title]
    found = spread([run.score(finding, score) for run in kept(pattern)])
    if found is None:
        raise SystemExit(f"no run of results/{pattern}-seed* has a score {finding} {score}")
    return found.mean


def by_seed(pattern: str, title: str) -> dict[int, float]:
    finding, score, _ = SCORES[title]
    found = {run.seed: run.score(finding, score) for run in kept(pattern)}
    return {seed: value for seed, value in found.items() if value is not None}


def ahead(one: str, other: str, title: str, form: str = ".1f") -> str:
    """By how much the first leads the second, in the mean over the seeds that both have: with the seed goes
    which images are held out."""
    ours, theirs = by_seed(one, title), by_seed(other, title)
    leads = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not leads:
        raise SystemExit(f"no seed of results/{one} and results/{other} has {title} for both")
    return format(sum(leads) / len(leads), form.replace(".", "z."))  # no minus before a zero


def varcon_share(pattern: str) -> str:
    """Of VarCon's two terms in the whole loss, in the mean over epochs and seeds."""
    shares = [
        np.mean((run.metrics["kl"] + run.metrics["nll"]) / run.metrics["loss"]) for run in kept(pattern)
    ]
    return f"{100 * np.mean(shares):.0f} %"


def range_of(title: str, *patterns: str) -> str:
    """From the least to the greatest of their means."""
    means = [mean(pattern, title) for pattern in patterns]
    return f"{max(means) - min(means):.1f}"


def seeds(*patterns: str) -> str:
    """How many there are, of one run or, where several are compared, that all of them have."""
    words = {1: "one", 2: "two", 3: "three", 6: "six"}
    shared = set.intersection(*({run.seed for run in kept(pattern)} for pattern in patterns))
    count = len(shared)
    return f"{words.get(count, str(count))} seed{'s' * (count > 1)}{' each' * (len(patterns) > 1)}"


def last(pattern: str, metric: str) -> float:
    """The mean over the seeds of what the last epoch's row of metrics says."""
    found = spread([float(run.metrics[metric][-1]) for run in kept(pattern)])
    if found is None:
        raise SystemExit(f"no run of results/{pattern}-seed* has a metric {metric}")
    return found.mean


def published(method: str, data: str = "CIFAR-100") -> float:
    """The paper's top-1, from its first table."""
    return MAIN[method][2 * MAIN_DATA.index(data)].value


def has(pattern: str) -> bool:
    """Whether a run, or one of a group, is kept."""
    return any(HERE.glob(f"{pattern}-seed*")) or any(HERE.glob(f"{pattern}/*-seed*"))


def table(
    rows: dict[str, Any], *titles: str, paper: str = "", so_far: bool = False, minutes: bool = True
) -> str:
    """Rows are {label: pattern}, or {label: [pattern, the paper's value]} with a title for these; `so_far`
    leaves out what is not trained yet. `minutes` say nothing of runs that shared a GPU. Empty columns are
    left out."""
    pairs = {label: row if isinstance(row, list) else (row, "") for label, row in rows.items()}
    pairs = {label: pair for label, pair in pairs.items() if has(pair[0]) or not so_far}
    filled = [title for title in titles if any(quoted(pattern, title) for pattern, _ in pairs.values())]
    head = [
        "",
        *([paper] if paper else []),
        *filled,
        "epochs x views",
        *["minutes"] * minutes,
        "seeds",
        "runs",
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 2), "---"]]
    for label, (pattern, theirs) in pairs.items():
        runs = kept(pattern)
        first = runs[0]
        took = f"{sum(run.training_seconds or 0 for run in runs) / len(runs) / 60:.1f}"
        budget = f"{first.setting('train.epochs')} x {first.setting('augment.views')}"
        seeds = ", ".join(str(run.seed) for run in runs)
        links = " ".join(f"[{place}](results/{run.name})" for place, run in enumerate(runs, start=1))
        scores = [quoted(pattern, title) for title in filled]
        lines.append(
            [label, *([str(theirs)] if paper else []), *scores, budget, *[took] * minutes, seeds, links]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tau2_table(pattern: str, theirs: dict[str, list[Value]]) -> str:
    """tau2 of the training images after each fifth of the first seed's epochs, and the paper's."""
    run, *_ = kept(pattern)
    found, epochs = gather.tau2(HERE / run.name), run.setting("train.epochs")
    lines = [["", *TAU2_SCORES], ["---", *["---:"] * len(TAU2_SCORES)]]
    for part in gather.PARTS:
        values = [f"{found[f'{score}@{part}']:.5f}" for score in TAU2_SCORES]
        lines.append([f"epoch {round(epochs * part / 100)} of {epochs}", *values])
    last = [*theirs][-1]
    lines += [[f"the paper, epoch {epoch} of {last}", *map(str, row)] for epoch, row in theirs.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commands(*patterns: str) -> str:
    """Each with a folder of its own; where several have the same recipe, they would share its name."""
    runs = [run for pattern in patterns for run in kept(pattern)]
    return "\n".join(f"    {run.command} --out runs/{run.name}" for run in runs)


def machines(*patterns: str) -> str:
    """What the runs were trained on: device and version of torch."""
    found = dict.fromkeys(
        f"{run.device}, torch {run.versions['torch'].split('+')[0]}" for p in patterns for run in kept(p)
    )
    return "; ".join(found)


def written() -> str:
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    tools = {
        "table": table,
        "score": quoted,
        "mean": mean,
        "ahead": ahead,
        "varcon_share": varcon_share,
        "range_of": range_of,
        "seeds": seeds,
        "last": last,
        "published": published,
        "commands": commands,
        "machines": machines,
        "has": has,
        "tau2_table": tau2_table,
        "the_paper": paper,
    }
    return "\n\n".join(wrapped(block) for block in template.render(**tools).split("\n\n")) + "\n"


def wrapped(block: str) -> str:
    """A paragraph or list in lines of one length, whatever the length of the numbers in it."""
    if block.startswith(("#", "|", "    ")):
        return block
    items = re.split(r"\n(?=- )", block.strip("\n"))
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            WIDTH,
            subsequent_indent="  " * item.startswith("- "),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )


def pictured() -> str:
    """CIFAR-100's test accuracy by the linear probe and by nearest neighbours, beside the paper's."""
    rows = {label: row for label, row in PICTURED.items() if has(row[0])}
    marks = []
    for style, title in enumerate(["linear, last", "kNN"]):
        finding, score, _ = SCORES[title]
        found = [spread([run.score(finding, score) for run in kept(pattern)]) for pattern, _ in rows.values()]
        values = np.array([np.nan if one is None else one.mean for one in found])
        deviations = np.array([np.nan if one is None else one.deviation or 0.0 for one in found])
        label = {"linear, last": "linear probe, last epoch", "kNN": "nearest neighbours"}[title]
        marks.append(Marks(f"here: {label}", style, values, deviations))
    theirs = np.array([published(method) if method else np.nan for _, method in rows.values()])
    marks.append(Marks("the paper", 3, theirs, np.zeros(len(theirs))))
    return Drawing("", "", rows_of_marks([*rows], marks, "top-1 accuracy on CIFAR-100, %")).standalone()


def keep(run: Path, name: str) -> None:
    """In place of a run that is kept under this name already."""
    target = HERE / f"{name}.unfinished"
    shutil.rmtree(target, ignore_errors=True)
    (target / "findings").mkdir(parents=True)
    record = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    record["recipe"]["data"]["path"] = "data" if record["recipe"]["data"]["path"] else ""
    record["recipe"]["data"]["store"] = ""
    record["command"] = without_places(record["command"])
    record["code"] = code_digest()
    (target / "recipe.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for rows in ("metrics.jsonl", "samples.jsonl"):
        lines = (run / rows).read_text(encoding="utf-8").splitlines() if (run / rows).exists() else []
        ends = [line for line in lines if float(json.loads(line)["epoch"]).is_integer()]
        if ends:
            (target / rows).write_text("\n".join(ends) + "\n", encoding="utf-8")
    for finding in (run / "findings").glob("*.json"):
        found = json.loads(finding.read_text(encoding="utf-8"))
        for other in found.get("settings", {}).get("targets", []):
            other["data"]["path"] = ""
        (target / "findings" / finding.name).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(HERE / name, ignore_errors=True)
    target.rename(HERE / name)


def without_places(command: str) -> str:
    """Where the data and the run lay on one machine says nothing on another."""
    words = shlex.split(command)
    for place in [n for n, word in enumerate(words) if word in ("--data.path", "--target", "--out")][::-1]:
        del words[place : place + 2]
    return shlex.join(words)


def code_digest() -> str:
    """Of the package's sources: equal digests are of equal code, whatever its version is called."""
    digest = hashlib.blake2b(digest_size=8)
    package = Path(varcon.__file__).parent
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write"]:
            RESULT.write_text(written(), encoding="utf-8")
            PICTURE.write_text(pictured(), encoding="utf-8")
        case ["keep", run, name]:
            keep(Path(run), name)
        case _:
            sys.exit(__doc__)
