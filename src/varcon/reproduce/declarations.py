"""Every table and figure of the paper that can be made again: what it takes, and what the paper has there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from varcon.evaluations.transfer import MEASURED_BY, plain_name
from varcon.reproduce import paper
from varcon.reproduce.entries import Column, Compared, Content, Entry, Reading, Several, Swept, Within
from varcon.reproduce.figures import Curve, Drawn, Figure, Growth, Losses, Maps, Tau2
from varcon.reproduce.paper import Value
from varcon.reproduce.setup import NEIGHBOURS, Runs, Setup

IMAGENET = "ImageNet, ResNet-50"
RIVALS = {"VarCon": "varcon", "SupCon": "supcon"}
VARCON, SUPCON = Runs("varcon"), Runs("supcon")
FIXED = Runs("varcon", {"method.epsilon": 0.02, "method.learn_epsilon": False})
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
    "SupCon": SUPCON,
    "VarCon": VARCON,
    "PaCo": Runs("paco"),
    "GPaCo": Runs("gpaco"),
    "VarCon + PaCo": Runs("varcon-paco"),
    "VarCon + GPaCo": Runs("varcon-gpaco"),
}
LINEAR = "linear probe"


@dataclass(frozen=True)
class Artifact:
    title: str
    shows: str  # one line
    place: str  # in the paper
    setting: str  # that the paper's values are of
    content: Content
    figure: Figure | None = None
    also: tuple[str, ...] = ()  # evaluations that the figure needs beside the table's
    needs: Literal["", "targets", "acceptable labels"] = ""  # beyond the data
    measured: bool = False  # without runs: reproduce.memory measures it
    notes: tuple[str, ...] = ()


def of_data(table: dict[str, list[Value]], which: int) -> dict[str, Value]:
    return {row: values[which] for row, values in table.items()}


def main_table(setup: Setup) -> list[Entry]:
    """Beside ours stand the paper's values for the same data, or, of other data, all that it has."""
    same = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}.get(setup.base.data.name)
    top1, top5 = {}, {}
    beside: dict[str, dict[str, Value]] = {}
    for place, data in enumerate(paper.MAIN_DATA):
        first, second = of_data(paper.MAIN, 2 * place), of_data(paper.MAIN, 2 * place + 1)
        if data == same:
            top1, top5 = first, second
        elif same is None:
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
    "small": {"ResNet-50": {}, "ResNet-101": {"encoder.name": "resnet34"}},
    "paper": {
        "ResNet-50": {},
        "ResNet-101": {"encoder.name": "resnet101"},
        "ResNet-200": {"encoder.name": "resnet200"},
    },
}
AUGMENTATIONS = {"SimAugment": {}, "crop and flip": {"augment.policy": "crop-flip"}}


def adaptability(setup: Setup) -> list[Entry]:
    """Rows of our own settings, each with the paper's row in whose place it stands."""
    entries = []
    encoders = ENCODERS[setup.scale.name]
    for encoder, chosen in encoders.items():
        for augmentation, policy in AUGMENTATIONS.items():
            for loss, method in reversed(RIVALS.items()):
                runs = Runs(method, {**chosen, **policy})
                recipe = setup.recipe(runs)
                name = recipe.encoder.name + (" with imagenet stem" if "encoder.stem" in chosen else "")
                role = "" if name == encoder.lower().replace("-", "") else f" in place of {encoder}"
                row = f"{loss}, {name}{role}, {augmentation}"
                values = paper.ADAPTABILITY.get(f"{loss}, {encoder}, {augmentation}", [None, None])
                for title, score, value in zip(("top-1", "top-5"), ("last", "top5"), values, strict=True):
                    entries.append(
                        Entry(row, f"{LINEAR} {title}", Reading(runs, "linear", score), paper=value)
                    )
    ours = {f"{encoder}, {augmentation}" for encoder in encoders for augmentation in AUGMENTATIONS}
    for row, values in paper.ADAPTABILITY.items():
        if row.split(", ", 1)[1] not in ours:
            for title, value in zip(("top-1", "top-5"), values, strict=True):
                entries.append(Entry(f"{row} (the paper's)", f"{LINEAR} {title}", paper=value))
    return entries


def transfer(setup: Setup) -> list[Entry]:
    runs = {
        name: Runs(method, half=not setup.targets)
        for name, method in (("SimCLR", "simclr"), ("SupCon", "supcon"), ("VarCon", "varcon"))
    }
    ours = [target.name for target in setup.targets] or ["other classes"]
    known = {plain_name(name): name for name in ours}
    entries = []
    for column, which in runs.items():
        theirs = dict(zip((*MEASURED_BY, "mean"), paper.TRANSFER[column], strict=True))
        for name in ours:
            entries.append(
                Entry(name, column, Reading(which, "transfer", name), paper=theirs.get(plain_name(name)))
            )
        entries += [Entry(name, column, paper=value) for name, value in theirs.items() if name not in known]
        entries[-1] = Entry(
            "mean",
            column,
            Reading(which, "transfer", "mean") if len(ours) > 1 else None,
            paper=theirs["mean"],
        )
    return sorted(entries, key=lambda entry: (entry.row not in ours, entry.row == "mean"))


def corruption(setup: Setup) -> list[Entry]:
    rows = {"clean": (0, "clean"), **{f"severity {s}": (s, f"severity{s}") for s in range(1, 6)}}
    entries = Within({"VarCon": VARCON, "SupCon": SUPCON}, "robustness", rows)(setup)
    for row, (place, score) in rows.items():
        lead = paper.CORRUPTION_LEAD.get(place)
        varcon, supcon = (Reading(runs, "robustness", score) for runs in (VARCON, SUPCON))
        entries.append(
            Entry(row, "VarCon less SupCon", varcon, supcon, paper=None if lead is None else Value(lead))
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
    epochs = setup.base.train.epochs
    entries = []
    for part, theirs in paper.MAPS.items():
        ours = round(epochs * part / 100)
        reading = Reading(VARCON, "maps", f"knn_top1@epoch{ours}")
        row = f"{part} % of training (ours: epoch {ours}, the paper's: {2 * part})"
        entries.append(Entry(row, "kNN top-1", reading, paper=Value(theirs), x=ours))
    return entries


def below_temperature(value: float, method: str) -> dict[str, float]:
    """Epsilon has to stay below the temperature."""
    return {"method.epsilon": value / 2} if method == "varcon" and value <= 0.02 else {}


NEIGHBOUR_ROWS = {f"K = {k}": (k, f"top1@{k}") for k in NEIGHBOURS}

ARTIFACTS: dict[str, Artifact] = {
    "table1": Artifact(
        "Classification by nine methods",
        "top-1 and top-5 of nine methods by a linear probe",
        "Table 1",
        "ResNet-50",
        main_table,
    ),
    "table2": Artifact(
        "Learning from few labels",
        "VarCon and SupCon trained on N images of each class",
        "Table 2",
        IMAGENET,
        Swept(
            "N =",
            "data.per_class",
            {"smoke": (10, 20, 50, 100), "small": (50, 100, 200, 500), "paper": paper.FEW_IMAGES},
            RIVALS,
            {name: dict(zip(paper.FEW_IMAGES, values, strict=True)) for name, values in paper.FEW.items()},
            keep=lambda value, setup: value <= setup.fewest,
        ),
        Curve("images of each class", logarithmic=True),
        notes=("Each seed draws images of its own, and nothing else is seen in training or by the probe.",),
    ),
    "table3": Artifact(
        "Augmentations and encoders",
        "VarCon and SupCon by augmentation and encoder",
        "Table 3",
        "ImageNet, with the encoder and the augmentation that its rows name",
        adaptability,
        notes=(
            "Beside ours stand the paper's values for the encoder in whose place ours is, under the same "
            "augmentation.",
        ),
    ),
    "table4": Artifact(
        "Transfer to other data",
        "frozen encoders on other data sets",
        "Table 4",
        "trained on ImageNet, ResNet-50",
        transfer,
        needs="targets",
    ),
    "temperature": Artifact(
        "Accuracy over the temperature",
        "VarCon and SupCon over the temperature tau1",
        "Figure 2 (a)",
        IMAGENET,
        Swept(
            "temperature",
            "method.temperature",
            {
                "smoke": (0.04, 0.07, 0.1, 0.14),
                "small": (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14),
                "paper": (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14),
            },
            RIVALS,
            paper.TEMPERATURE,
            below_temperature,
        ),
        Curve("temperature"),
        notes=("At a temperature of 0.02 VarCon's epsilon begins at half of it: it has to stay below.",),
    ),
    "epochs": Artifact(
        "Accuracy over the epochs of training",
        "VarCon and SupCon over the epochs of training",
        "Figure 2 (b)",
        IMAGENET,
        Swept(
            "epochs",
            "train.epochs",
            {"smoke": (3, 6, 12, 24), "small": (25, 50, 100, 200), "paper": (50, 100, 200, 350, 700)},
            RIVALS,
            paper.EPOCHS,
        ),
        Curve("epochs", logarithmic=True),
    ),
    "batch-size": Artifact(
        "Accuracy over the batch size",
        "VarCon and SupCon over the batch size",
        "Figure 2 (c)",
        IMAGENET,
        Swept(
            "batch",
            "train.batch_size",
            {
                "smoke": (32, 64, 128, 256),
                "small": (128, 256, 512, 1024, 2048),
                "paper": (256, 512, 1024, 2048, 4096, 6144),
            },
            RIVALS,
            paper.BATCH_SIZE,
            keep=lambda value, setup: value <= sum(setup.counts),
        ),
        Curve("images in a batch", logarithmic=True),
        notes=("The learning rate grows in proportion to the batch.",),
    ),
    "knn": Artifact(
        "kNN accuracy over the number of neighbours",
        "VarCon and SupCon by kNN, over the number of neighbours",
        "Figure 3 (a)",
        IMAGENET,
        Several(
            (
                Within({"VarCon": VARCON, "SupCon": SUPCON}, "knn", NEIGHBOUR_ROWS, paper.NEIGHBOURS),
                Within(
                    {"VarCon top-5": VARCON, "SupCon top-5": SUPCON},
                    "knn",
                    {f"K = {k}": (k, f"top5@{k}") for k in NEIGHBOURS},
                    {"VarCon top-5": {5: 83.88, 80: 83.88}, "SupCon top-5": {5: 83.61, 80: 83.61}},
                ),
            )
        ),
        Curve("neighbours K", logarithmic=True, columns=("VarCon", "SupCon")),
    ),
    "epsilon": Artifact(
        "Accuracy over epsilon",
        "VarCon over epsilon, the reach of tau2, kept fixed",
        "Figure 3 (b)",
        IMAGENET,
        Swept(
            "epsilon",
            "method.epsilon",
            {
                "smoke": (0.0, 0.02, 0.05, 0.08),
                "small": (0.0, 0.01, 0.02, 0.04, 0.06, 0.08),
                "paper": (0.0, 0.01, 0.02, 0.04, 0.06, 0.08),
            },
            {"VarCon": "varcon"},
            paper.EPSILON,
            lambda value, method: {"method.learn_epsilon": False},
        ),
        Curve("epsilon"),
    ),
    "corruption": Artifact(
        "Accuracy on corrupted images",
        "VarCon and SupCon on corrupted images",
        "Figure 3 (c)",
        "ImageNet-C, ResNet-50",
        corruption,
        Curve("severity (0: clean)", columns=("VarCon", "SupCon")),
        notes=(
            "The paper's text has VarCon's lead at the least and the greatest severity, and no accuracy.",
        ),
    ),
    "tau2": Artifact(
        "The adaptive temperature over training, epsilon fixed",
        "how tau2 spreads over training, epsilon fixed",
        "Table 7 and Figure 4",
        "ImageNet, ResNet-50, batches of 4096",
        temperatures(FIXED, paper.TAU2_FIXED),
        Tau2(FIXED, paper.TAU2_FIXED),
    ),
    "tau2-learnable": Artifact(
        "The adaptive temperature over training, epsilon learned",
        "how tau2 spreads over training, epsilon learned",
        "Table 8",
        "ImageNet, ResNet-50, batches of 4096",
        temperatures(VARCON, paper.TAU2_LEARNED),
        Tau2(VARCON, paper.TAU2_LEARNED),
    ),
    "real": Artifact(
        "Accuracy under several acceptable labels",
        "nine methods under several acceptable labels an image",
        "Table 5",
        "ImageNet-ReaL, ResNet-50",
        Compared(
            NINE,
            (
                Column("kNN, acceptable labels", "real", "top1", of_data(paper.REAL, 0)),
                Column("kNN, own labels", "knn", "top1"),
            ),
        ),
        needs="acceptable labels",
    ),
    "tsne": Artifact(
        "Maps over training",
        "t-SNE of VarCon's embedding at four moments of training",
        "Figure 5",
        "ImageNet, ResNet-50, 200 epochs",
        maps,
        Maps(VARCON),
        notes=("Ours is the vote of an image's nearest among the other mapped test images.",),
    ),
    "tsne-compare": Artifact(
        "Maps of SupCon and VarCon",
        "t-SNE of SupCon and VarCon side by side",
        "Figure 6",
        "ImageNet, ResNet-50, SupCon after 350 epochs and VarCon after 200",
        Compared(
            {"SupCon": SUPCON, "VarCon": VARCON},
            (Column("kNN top-1", "knn", "top1", paper.MAPS_COMPARED),),
        ),
        Drawn({"SupCon": SUPCON, "VarCon": VARCON}, "Map of the test embeddings"),
        also=("map2d",),
    ),
    "clustering": Artifact(
        "Hierarchical clustering",
        "how well Ward's clusters match the classes",
        "Table 6",
        IMAGENET,
        Compared(
            {"SupCon": SUPCON, "VarCon, epsilon 0": WITHOUT, "VarCon": VARCON},
            tuple(
                Column(
                    name, "clustering", name.lower().replace("-", "_"), of_data(paper.CLUSTERING, place), 3
                )
                for place, name in enumerate(paper.CLUSTERING_SCORES)
            ),
        ),
        Drawn({"VarCon": VARCON}, "Tree of the classes"),
    ),
    "convergence": Artifact(
        "The loss over training",
        "the losses over training, VarCon's with its terms",
        "Figure 7",
        "ImageNet, ResNet-50, 50 epochs, batches of 4096",
        lambda setup: [
            Entry(
                row,
                part,
                Reading(VARCON if row.startswith("VarCon") else SUPCON, "losses", f"{term}@{part}"),
                paper=Value(theirs[part]) if part in theirs else None,
                decimals=3,
            )
            for (row, theirs), term in zip(
                paper.CONVERGENCE.items(), ("loss", "loss", "kl", "nll"), strict=True
            )
            for part in ("first", "20 %", "last")
        ],
        Losses(),
        notes=("The losses of different methods do not compare in value: SupCon's has a floor above 0.",),
    ),
    "memory": Artifact(
        "Memory and time of the loss",
        "what the losses cost as samples and classes grow",
        "Figure 8",
        "a whole training step of ResNet-50 on ImageNet, 512 images on each GPU",
        lambda setup: [],
        Growth(),
        measured=True,
        notes=(
            f"The paper has {paper.MEMORY['VarCon']} GB of a GPU for VarCon and {paper.MEMORY['SupCon']} GB "
            "for SupCon; all but the difference is the encoder's, which ours leaves out.",
        ),
    ),
    "similarity": Artifact(
        "Similarity of classes",
        "how alike VarCon finds the classes",
        "Figure 9",
        "ImageNet, ResNet-50, twelve classes; the paper prints no values in its text",
        Within(
            {"VarCon": VARCON, "SupCon": SUPCON},
            "similarity",
            {
                "mean cosine of two classes": (0, "mean"),
                "highest": (1, "highest"),
                "nearest class is of the superclass": (2, "nearest_in_superclass"),
                "superclasses, mean average precision": (3, "superclass_map"),
                "superclasses, adjusted Rand index of the tree": (4, "superclass_ari"),
            },
            decimals=3,
        ),
        Drawn({"VarCon": VARCON}, "Similarity of classes"),
    ),
    "paco": Artifact(
        "VarCon together with PaCo and GPaCo",
        "PaCo and GPaCo alone and with VarCon's loss",
        "Tables 12 and 13",
        "ResNet-50",
        Compared(
            SIX,
            (Column(f"{LINEAR} top-1", "linear", "last"), Column("own classifier", "classifier", "top1")),
            {
                "CIFAR-100": of_data(paper.PACO_CIFAR100, 0),
                "ImageNet, SimAugment": of_data(paper.PACO_SIM, 0),
                "ImageNet, RandAugment": of_data(paper.PACO_RAND, 0),
            },
        ),
        notes=("PaCo and GPaCo predict with their own classifier; the paper's values are of that.",),
    ),
}
