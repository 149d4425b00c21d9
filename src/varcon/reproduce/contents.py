"""What stands in the tables that are more than a comparison or a sweep, and the kinds of runs they share."""

from __future__ import annotations

from typing import Any

from varcon.evaluations.transfer import MEASURED_BY, plain_name
from varcon.reproduce import paper
from varcon.reproduce.entries import Column, Compared, Content, Entry, Reading, Within
from varcon.reproduce.paper import Value
from varcon.reproduce.scales import AUTO_ON_IMAGENET, SIM_ON_IMAGENET
from varcon.reproduce.setup import VARCON_200, Runs, Setup

RIVALS = {"VarCon": "varcon", "SupCon": "supcon"}
VARCON, SUPCON = Runs("varcon"), Runs("supcon")
FIXED = Runs("varcon", {"method.epsilon": 0.02, "method.learn_epsilon": False}, epochs=50)
CONVERGING = {"VarCon": Runs("varcon", epochs=50), "SupCon": Runs("supcon", epochs=50)}
WITHOUT = Runs("varcon", {"method.epsilon": 0.0, "method.learn_epsilon": False})
NINE = {
    "SimCLR": Runs("simclr"),
    "MoCo v2": Runs("moco"),
    "BYOL": Runs("byol"),
    "SwAV": Runs("swav"),
    "VICReg": Runs("vicreg"),
    "Barlow Twins": Runs("barlow"),
    "Cross-entropy": Runs("ce"),
    "SupCon": SUPCON,
    "VarCon": VARCON,
}
SIX = {
    "SupCon": "supcon",
    "VarCon": "varcon",
    "PaCo": "paco",
    "GPaCo": "gpaco",
    "VarCon + PaCo": "varcon-paco",
    "VarCon + GPaCo": "varcon-gpaco",
}
LINEAR = "linear probe"


def of_data(table: dict[str, list[Value]], which: int) -> dict[str, Value]:
    return {row: values[which] for row, values in table.items()}


def main_table(setup: Setup) -> list[Entry]:
    """Beside ours stand the paper's values for the same data, or, of other data, all that it has."""
    top1, top5 = {}, {}
    beside: dict[str, dict[str, Value]] = {}
    for place, data in enumerate(paper.MAIN_DATA):
        first, second = of_data(paper.MAIN, 2 * place), of_data(paper.MAIN, 2 * place + 1)
        if data == setup.published:
            top1, top5 = first, second
        elif not setup.published:
            beside |= {f"{data} top-1": first, f"{data} top-5": second}
    columns = (
        Column(f"{LINEAR} top-1", "linear", "last", top1),
        Column(f"{LINEAR} top-5", "linear", "top5", top5),
        Column("kNN top-1", "knn", "top1"),
        Column("own classifier", "classifier", "top1"),
    )
    return Compared(NINE, columns, beside)(setup)


# Our encoders and augmentations in the places of the paper's, by scale; "": the recipe's own.
ENCODERS = {
    "smoke": {"ResNet-50": {}, "ResNet-101": {"encoder.stem": "imagenet"}},
    "small": {
        "ResNet-50": {},
        "ResNet-101": {"encoder.name": "resnet34"},
        "ViT-Base": {"encoder.name": "vit_tiny"},
    },
    "paper": {
        "ResNet-50": {},
        "ResNet-101": {"encoder.name": "resnet101"},
        "ResNet-200": {"encoder.name": "resnet200"},
        "ViT-Base": {"encoder.name": "vit_base"},
    },
}


def augmentations(setup: Setup) -> dict[str, dict[str, Any]]:
    photographs = setup.base.data.name == "folder"  # other data are CIFAR's size
    sim = SIM_ON_IMAGENET if setup.as_imagenet else {}
    return {
        "SimAugment": sim,
        "AutoAugment": AUTO_ON_IMAGENET if photographs else {"augment.policy": "auto"},
        "StackedRandAugment": {**sim, "augment.policy": "stacked-rand"},
    }


def adaptability(setup: Setup) -> list[Entry]:
    """Rows of our own settings, each with the paper's row in whose place it stands."""
    entries = []
    encoders = ENCODERS[setup.scale.name]
    for published, values in paper.ADAPTABILITY.items():
        loss, encoder, augmentation = published.split(", ")
        row, runs = f"{published} (the paper's)", None
        if encoder in encoders:
            runs = Runs(RIVALS[loss], {**encoders[encoder], **augmentations(setup)[augmentation]})
            name: str = setup.recipe(runs).encoder.name
            name += " with imagenet stem" if "encoder.stem" in encoders[encoder] else ""
            same = name.replace("_", "") == encoder.lower().replace("-", "")
            row = f"{loss}, {name}{'' if same else f' in place of {encoder}'}, {augmentation}"
        for title, score, value in zip(("top-1", "top-5"), ("last", "top5"), values, strict=True):
            reading = Reading(runs, "linear", score) if runs else None
            entries.append(Entry(row, f"{LINEAR} {title}", reading, paper=value))
    return entries


def transfer(setup: Setup) -> list[Entry]:
    runs = {
        name: Runs(method, half=not setup.targets)
        for name, method in (("SimCLR", "simclr"), ("SupCon", "supcon"), ("VarCon", "varcon"))
    }
    ours = [target.name for target in setup.targets] or ["other classes"]
    entries = []
    for column, which in runs.items():
        *each, mean = paper.TRANSFER[column]
        theirs = dict(zip(MEASURED_BY, each, strict=True))
        for name in ours:
            value = theirs.pop(plain_name(name), None)
            entries.append(Entry(name, column, Reading(which, "transfer", name), paper=value))
        if len(ours) > 1:
            entries.append(Entry("mean of these", column, Reading(which, "transfer", "mean")))
        entries += [Entry(name, column, paper=value) for name, value in theirs.items()]
        entries.append(Entry("mean of the paper's twelve", column, paper=mean))
    return entries


def corruption(setup: Setup) -> list[Entry]:
    rows = {"clean": (0, "clean"), **{f"severity {s}": (s, f"severity{s}") for s in range(1, 6)}}
    entries = Within({"VarCon": VARCON, "SupCon": SUPCON}, "robustness", rows)(setup)
    for row, (place, score) in rows.items():
        lead = paper.CORRUPTION_LEAD.get(place)
        varcon, supcon = (Reading(runs, "robustness", score) for runs in (VARCON, SUPCON))
        entries.append(
            Entry(
                row,
                "VarCon less SupCon",
                varcon,
                supcon,
                paper=None if lead is None else Value(lead),
                x=float(place),
            )
        )
    return entries


def temperatures(runs: Runs, table: dict[str, list[Value]]) -> Content:
    def content(setup: Setup) -> list[Entry]:
        entries = []
        epochs = setup.recipe(runs).train.epochs
        for part, (theirs, values) in zip((20, 40, 60, 80, 100), table.items(), strict=True):
            ours = max(1, round(epochs * part / 100))
            for column, value in zip(paper.TAU2_SCORES, values, strict=True):
                reading = Reading(runs, "tau2", f"{column}@{part}")
                entries.append(Entry(f"epoch {ours} of {epochs}", column, reading, decimals=5, x=part))
                row = f"epoch {theirs} of {list(table)[-1]}, paper"
                entries.append(Entry(row, column, paper=value, decimals=5, x=part))
        return sorted(entries, key=lambda entry: entry.row.endswith("paper"))

    return content


def maps(setup: Setup) -> list[Entry]:
    epochs = setup.recipe(VARCON_200).train.epochs
    entries = []
    for part, theirs in paper.MAPS.items():
        ours = round(epochs * part / 100)
        reading = Reading(VARCON_200, "maps", f"knn_top1@epoch{ours}")
        row = f"{part} % of training (ours: epoch {ours}, the paper's: {2 * part})"
        entries.append(Entry(row, "kNN top-1", reading, paper=Value(theirs), x=ours))
    return entries


def with_paco(setup: Setup) -> list[Entry]:
    """All six by SimAugment, as the paper compares them where it says."""
    columns = (
        Column(f"{LINEAR} top-1", "linear", "last"),
        Column("own classifier", "classifier", "top1"),
    )
    beside = {
        "CIFAR-100": of_data(paper.PACO_CIFAR100, 0),
        "ImageNet, SimAugment": of_data(paper.PACO_SIM, 0),
        "ImageNet, RandAugment": of_data(paper.PACO_RAND, 0),
    }
    sim = augmentations(setup)["SimAugment"]
    return Compared({name: Runs(method, sim) for name, method in SIX.items()}, columns, beside)(setup)


def below_temperature(value: float, method: str) -> dict[str, float]:
    """Epsilon has to stay below the temperature."""
    return {"method.epsilon": value / 2} if method == "varcon" and value <= 0.02 else {}


def convergence(setup: Setup) -> list[Entry]:
    terms = ("loss", "loss", "kl", "nll")
    entries = []
    for (row, theirs), term in zip(paper.CONVERGENCE.items(), terms, strict=True):
        runs = CONVERGING[row.split(",")[0]]
        for part in ("first", "20 %", "last"):
            value = Value(theirs[part]) if part in theirs else None
            entries.append(
                Entry(row, part, Reading(runs, "losses", f"{term}@{part}"), paper=value, decimals=3)
            )
    return entries
