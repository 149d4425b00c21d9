"""RESULTS.md from the runs that are kept here, and small copies of runs to keep.

    python results/results.py write               # RESULTS.md, from results/RESULTS.template.md
    python results/results.py keep RUN NAME       # for example runs/cifar100-varcon cifar100/r50-varcon-seed0

A kept run has its recipe, a row of metrics for every epoch and the scores of its findings. Its name ends with
its seed, and runs that differ in nothing else share a row of a table.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from varcon.reports.collect import Run, read_run
from varcon.reports.groups import spread
from varcon.reproduce.paper import MAIN, MAIN_DATA

HERE = Path(__file__).parent
TEMPLATE, RESULT = HERE / "RESULTS.template.md", HERE.parent / "RESULTS.md"

# Title of a column, the finding, its score, and decimals.
SCORES = {
    "linear, last": ("linear", "last", 2),
    "linear, best": ("linear", "best", 2),
    "kNN": ("knn", "top1", 2),
    "own classifier": ("classifier", "top1", 2),
    "rank": ("rank", "effective_rank", 1),
    "Ward ARI": ("clustering", "ari", 3),
    "Ward NMI": ("clustering", "nmi", 3),
    "superclass of nearest": ("similarity", "nearest_in_superclass", 3),
}


def kept(pattern: str) -> list[Run]:
    """Runs by their name without the seed, `cifar100/r18-varcon`."""
    folders = sorted(HERE.glob(f"{pattern}-seed*"), key=lambda path: (len(path.name), path.name))
    if not folders:
        raise SystemExit(f"no run is kept as results/{pattern}-seed*")
    return [read_run(folder, f"{folder.parent.name}/{folder.name}") for folder in folders]


def quoted(pattern: str, title: str) -> str:
    """The mean over the seeds, and its spread where there are several."""
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


def last(pattern: str, metric: str) -> float:
    """The mean over the seeds of what the last epoch's row of metrics says."""
    found = spread([float(run.metrics[metric][-1]) for run in kept(pattern)])
    if found is None:
        raise SystemExit(f"no run of results/{pattern}-seed* has a metric {metric}")
    return found.mean


def published(method: str, data: str = "CIFAR-100") -> float:
    """The paper's top-1, from its first table."""
    return MAIN[method][2 * MAIN_DATA.index(data)].value


def table(rows: dict[str, Any], *titles: str, paper: bool = False) -> str:
    """Rows are {label: pattern}, or {label: [pattern, the paper's value]}."""
    head = ["", *(["the paper"] if paper else []), *titles, "epochs x views", "minutes", "seeds", "runs"]
    lines = [head, ["---", *["---:"] * (len(head) - 2), "---"]]
    for label, row in rows.items():
        pattern, theirs = row if isinstance(row, list) else (row, "")
        runs = kept(pattern)
        first = runs[0]
        minutes = sum(run.training_seconds or 0 for run in runs) / len(runs) / 60
        budget = f"{first.setting('train.epochs')} x {first.setting('augment.views')}"
        seeds = ", ".join(str(run.seed) for run in runs)
        links = " ".join(f"[{place}](results/{run.name})" for place, run in enumerate(runs, start=1))
        scores = [quoted(pattern, title) for title in titles]
        lines.append(
            [label, *([str(theirs)] if paper else []), *scores, budget, f"{minutes:.1f}", seeds, links]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commands(*patterns: str) -> str:
    return "\n".join(f"    {run.command}" for pattern in patterns for run in kept(pattern))


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
        "last": last,
        "published": published,
        "commands": commands,
        "machines": machines,
    }
    return template.render(**tools) + "\n"


def keep(run: Path, name: str) -> None:
    target = HERE / name
    (target / "findings").mkdir(parents=True)
    record = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    record["recipe"]["data"]["path"] = "data" if record["recipe"]["data"]["path"] else ""
    # Where the data and the run lay on one machine says nothing on another.
    record["command"] = re.sub(r" --(data\.path|out) \S+", "", record["command"])
    (target / "recipe.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for rows in ("metrics.jsonl", "samples.jsonl"):
        lines = (run / rows).read_text(encoding="utf-8").splitlines() if (run / rows).exists() else []
        ends = [line for line in lines if float(json.loads(line)["epoch"]).is_integer()]
        if ends:
            (target / rows).write_text("\n".join(ends) + "\n", encoding="utf-8")
    for finding in (run / "findings").glob("*.json"):
        (target / "findings" / finding.name).write_bytes(finding.read_bytes())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write"]:
            RESULT.write_text(written(), encoding="utf-8")
        case ["keep", run, name]:
            keep(Path(run), name)
        case _:
            sys.exit(__doc__)
