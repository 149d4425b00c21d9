"""Many runs: each trained and judged, or read where it is done, and all of them put into one table."""

from __future__ import annotations

import errno
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from varcon import run, run_folder
from varcon.core import Data, Findings, InputError, OnProgress, RunError
from varcon.engine.interrupt import Interrupted
from varcon.engine.journal import read_rows
from varcon.engine.loop import Watcher
from varcon.engine.state import check_recipe
from varcon.evaluations import FURTHER, STANDARD, FurtherSettings
from varcon.evaluations.rank import Rank
from varcon.evaluations.transfer import Target
from varcon.files import FULL, write_json, write_text
from varcon.recipe import Recipe, differences, recipe_to_dict
from varcon.reports.figures.transfer import heading


@dataclass(frozen=True)
class Planned:
    label: str  # of the runs that differ in nothing but the seed
    seed: int
    recipe: Recipe[Any]
    folder: Path
    only: tuple[str, ...] = STANDARD  # the evaluations that judge it
    further: FurtherSettings | None = None  # settings of those that a recipe does not set

    @property
    def title(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        return (self.folder / "encoder.safetensors").exists()


@dataclass(frozen=True)
class Result:
    label: str
    seed: int
    scores: dict[str, float] = field(default_factory=dict)  # by the titles below, and minutes
    failed: str = ""  # why a run did not come to its end or, where it has scores, was not judged in full


COLUMNS = {
    "kNN top-1": ("knn", "top1"),
    "linear probe, last": ("linear", "last"),
    "linear-augmented probe, last": ("linear-augmented", "last"),
    "own classifier": ("classifier", "top1"),
    "effective rank": ("rank", "effective_rank"),
    "linear discriminants": ("discriminant", "top1"),
    "nearest centroid": ("centroid", "top1"),
    "logistic regression": ("logistic", "top1"),
    "Ward ARI": ("clustering", "ari"),
    "Ward NMI": ("clustering", "nmi"),
    "superclass of nearest class": ("similarity", "nearest_in_superclass"),
    "mean tau2": ("temperature", "tau2_mean"),
    "ECE, temperature fitted to test halves": ("calibration", "crossed_ece"),
    "ECE of varcon predict": ("calibration", "predict_ece"),
    "outliers, AUROC": ("outliers", "likelihood_auroc"),
    "corrupted images": ("robustness", "mean"),
    "fine-tuned, last": ("finetune", "last"),
}
FRACTIONS = ("Ward ARI", "Ward NMI", "superclass of nearest class", "mean tau2")  # shown with three decimals
SERIES = {"fewshot": "few-shot {}", "transfer": "transfer, {}"}  # whose scores are not known beforehand
MOST_COLUMNS = 12  # of a table that a page is still wide enough for
SPEED = "data set images/s"  # not views: a method with more of them is slower by its nature


def check_run(one: Planned, data: Data) -> None:
    """What lies in the run's folder is the planned run, or nothing."""
    if not one.finished:
        run_folder.check_folder(one.folder, one.recipe, resume=True)
        if not (one.folder / "recipe.json").exists():
            return
    check_recipe(recipe_to_dict(run_folder.stored_recipe(one.folder)), one.recipe, one.folder)
    if not run_folder.is_trained_on(one.folder, data, by_labels=True):
        raise InputError(
            f"{one.folder} was trained on other data than lie at {one.recipe.data.path!r} now; "
            "restore those, or put the runs elsewhere with --out FOLDER"
        )


def train_and_judge(planned: Planned, watch: Watcher, progress: OnProgress, command: str) -> Result:
    """Trains and judges one run, or goes on where it was left, or only reads what is there."""
    folder, recipe = planned.folder, planned.recipe
    findings: dict[str, Findings] = {}
    failed = ""
    try:
        if not planned.finished:
            run.train(recipe, folder, True, watch, progress, command)
        judge(planned, progress, findings)
    except Interrupted:
        raise
    except (RunError, InputError, OSError) as error:  # the other runs can do without this one
        if isinstance(error, OSError) and error.errno in (*FULL, errno.EPIPE):  # but not without a disk
            raise  # nor when nobody reads any more
        failed = str(error)
    if failed and not findings:
        return Result(planned.label, planned.seed, failed=failed)
    rows = read_rows(folder / "metrics.jsonl")
    if not rows:
        why = f"{folder / 'metrics.jsonl'} has no row; restore it, or delete {folder} to train the run again"
        return Result(planned.label, planned.seed, failed=why)
    scores = headlines(findings, further_of(planned).transfer.targets)
    scores["minutes"] = rows[-1]["seconds"] / 60
    scores[SPEED] = statistics.median(row["images_per_second"] for row in rows)
    return Result(planned.label, planned.seed, scores, failed)


def headlines(findings: dict[str, Findings], targets: tuple[Target, ...]) -> dict[str, float]:
    """Of all that was found, the scores that a table has room for, by the titles of their columns."""
    named = {target.name: heading(target.name, target.measure) for target in targets}
    found = {
        title: findings[name].scores[score]
        for title, (name, score) in COLUMNS.items()
        if name in findings and score in findings[name].scores
    }
    for name, title in SERIES.items():
        if name in findings:
            series = findings[name].scores.items()
            found |= {
                title.format(named.get(what, what)): value for what, value in series if "_error@" not in what
            }
    for name in (name for name in findings if name.startswith("finetune-")):
        scores = findings[name].scores
        measure = "top-1" if "last_mean_per_class" in scores else "mAP"
        found[f"fine-tuned on {name.removeprefix('finetune-')}, last {measure}"] = scores["last"]
    return found


def judge(planned: Planned, progress: OnProgress, findings: dict[str, Findings]) -> None:
    """Adds what the evaluations find, one by one: if one fails, those before it are there. What they have
    found with the same settings is read, asked for or not."""
    findings |= read_findings(planned)
    missing = missing_findings(planned, findings)
    if missing:
        recipe = planned.recipe
        run.evaluate(
            planned.folder,
            recipe.evaluate,
            recipe.data.path or None,
            recipe.train.device,
            progress,
            found=findings.__setitem__,
            only=missing,
            further=further_of(planned),
            data_store=recipe.data.store or None,
        )


def missing_findings(planned: Planned, found: dict[str, Findings]) -> tuple[str, ...]:
    has_classifier = (planned.folder / "classifier.safetensors").exists()
    wanted = (name for name in planned.only if name != "classifier" or has_classifier)
    several = {
        "linear": [planned.recipe.evaluate.linear.name],
        "finetune": list(further_of(planned).fine_tunings()),
    }
    return tuple(name for name in wanted if not found.keys() >= {*several.get(name, [name])})


def further_of(planned: Planned) -> FurtherSettings:
    """As planned, with the epsilon that training has left since."""
    further = planned.further or FurtherSettings()
    return further.at_temperature(planned.recipe.method, run_folder.learned_epsilon(planned.folder))


def read_findings(planned: Planned) -> dict[str, Findings]:
    """The scores that evaluations with the planned settings, by the labels of training, have left."""
    settings, further = planned.recipe.evaluate, further_of(planned)
    evaluations: dict[str, Any] = {
        "pixels": settings.knn,
        "knn": settings.knn,
        settings.linear.name: settings.linear,
        "rank": Rank(),
        "map2d": settings.map2d,
        "classifier": None,  # which has no settings
        **{name: getattr(further, name) for name in FURTHER if name != "finetune"},
        **further.fine_tunings(),
    }
    labels = run_folder.recorded_facts(planned.folder).get("labels")
    found = {}
    for name, own in evaluations.items():
        path = planned.folder / "findings" / f"{name}.json"
        if not path.exists():
            continue
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            relabelled = labels is not None and stored.get("labels", labels) != labels
            if not relabelled and not differences(stored["settings"], run_folder.settings_of(own)):
                found[path.stem] = Findings(stored["scores"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path} cannot be read; delete it and evaluate the run again") from None
    return found


def table(results: list[Result], what: str) -> list[list[str]]:
    """A head and one row a label, which is a method or `what` else: mean, spread over the seeds, and cost. Of
    many scores, one column a label."""
    found = dict.fromkeys(title for result in results for title in result.scores)
    titles = [title for title in COLUMNS if title in found]
    titles += [title for title in found if title not in (*COLUMNS, "minutes", SPEED)]
    rows = []
    for label in dict.fromkeys(result.label for result in results):
        several = [result for result in results if result.label == label]
        own = [result.scores for result in several if result.scores]
        in_part = sum(bool(result.failed and result.scores) for result in several)
        cells = [label]
        for title in titles:
            values = [scores[title] for scores in own if title in scores]
            digits = 3 if title in FRACTIONS else 2
            spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            spread += f" (n = {len(values)})" if len(values) < len(own) else ""
            cells.append(f"{statistics.fmean(values):.{digits}f}{spread}" if values else "")
        cells.append(f"{statistics.fmean(scores['minutes'] for scores in own):.2f}" if own else "")
        cells.append(f"{statistics.fmean(scores[SPEED] for scores in own):,.0f}" if own else "")
        counts = {"failed": len(several) - len(own), "judged in part": in_part}
        seeds = [str(len(own)), *(f"{count} {how}" for how, count in counts.items() if count)]
        rows.append([*cells, ", ".join(seeds)])
    result = [[what, *titles, "minutes a run", SPEED, "seeds"], *rows]
    if len(rows) < MOST_COLUMNS < len(result[0]):  # lying on its side it can be read
        return [list(line) for line in zip(*result, strict=True)]
    return result


def write(
    out: Path, results: list[Result], name: str, what: str, note: str, pending: Sequence[Planned] = ()
) -> None:
    """The table as NAME.md, with what a reader must know of it, and the scores as NAME.json, in the folder of
    the runs; there also what is trained and still to be read or judged, which a stop must not lose."""
    head, *rows = ([cell.replace("|", "\\|") for cell in line] for line in table(results, what))
    lines = [f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows)]
    lines += [f"\n{note}\n"] if note else []
    failures = [f"\n{r.label}, seed {r.seed} failed: {r.failed}\n" for r in results if r.failed]
    out.mkdir(parents=True, exist_ok=True)  # a run that fails may leave none
    write_text(out / f"{name}.md", "".join(lines + failures))
    entries = [
        {what: r.label, "seed": r.seed, **r.scores, **({"failed": r.failed} if r.failed else {})}
        for r in results
    ]
    entries += [{what: one.label, "seed": one.seed} for one in pending]
    write_json(out / f"{name}.json", entries)
