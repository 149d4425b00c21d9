"""Every table and figure of the paper that can be made again: what it takes, and what the paper has there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from varcon.reproduce import paper
from varcon.reproduce.contents import (
    CONVERGING,
    FIXED,
    LINEAR,
    NINE,
    RIVALS,
    SUPCON,
    VARCON,
    WITHOUT,
    adaptability,
    below_temperature,
    convergence,
    corruption,
    main_table,
    maps,
    of_data,
    temperatures,
    transfer,
    with_paco,
)
from varcon.reproduce.entries import Column, Compared, Content, Several, Swept, Within
from varcon.reproduce.figures import Curve, Drawn, Figure, Growth, Losses, Maps, Tau2
from varcon.reproduce.scales import NEIGHBOURS
from varcon.reproduce.setup import VARCON_200

IMAGENET = "ImageNet, ResNet-50"
NAMED_POINTS = "Of the paper's curves these are the points whose values its text has."
NEIGHBOUR_ROWS = {f"K = {k}": (k, f"top1@{k}") for k in NEIGHBOURS}


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
    data: tuple[str, ...] = ("ImageNet",)  # that the paper has values of


ARTIFACTS: dict[str, Artifact] = {
    "table1": Artifact(
        "Classification by nine methods",
        "top-1 and top-5 of nine methods by a linear probe",
        "Table 1",
        "ResNet-50",
        main_table,
        data=paper.MAIN_DATA,
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
            most=lambda setup: setup.fewest,
            limit="the smallest class has {} training images",
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
        notes=(
            NAMED_POINTS,
            "At 0.14 its text has SupCon 2 % lower than at 0.1, and no value.",
            "At a temperature of 0.02 VarCon's epsilon begins at half of it: it has to stay below.",
        ),
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
        notes=(f"{NAMED_POINTS} SupCon's at 350 epochs is Table 1's.",),
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
            most=lambda setup: sum(setup.counts),
            limit="there are {:,} training images",
        ),
        Curve("images in a batch", logarithmic=True),
        notes=(
            f"{NAMED_POINTS} VarCon's at 4096 is Table 1's; at 6144 its text has 0.01 % more, and no value.",
            "The learning rate grows in proportion to the batch.",
        ),
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
                    {f"{name} top-5": values for name, values in paper.NEIGHBOURS_TOP5.items()},
                ),
            )
        ),
        Curve("neighbours K", logarithmic=True, columns=("VarCon", "SupCon")),
        notes=(NAMED_POINTS,),
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
        notes=(NAMED_POINTS,),
    ),
    "corruption": Artifact(
        "Accuracy on corrupted images",
        "VarCon and SupCon on corrupted images",
        "Figure 3 (c)",
        "ImageNet-C, ResNet-50",
        corruption,
        Curve("severity (0: clean)", columns=("VarCon", "SupCon"), difference="VarCon less SupCon"),
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
        temperatures(VARCON_200, paper.TAU2_LEARNED),
        Tau2(VARCON_200, paper.TAU2_LEARNED),
    ),
    "real": Artifact(
        "Accuracy under several acceptable labels",
        "nine methods under several acceptable labels an image",
        "Table 5",
        "ImageNet-ReaL, ResNet-50",
        Compared(
            NINE,
            (
                Column(f"{LINEAR}, acceptable labels", "real", "linear_top1", of_data(paper.REAL, 0)),
                Column(f"{LINEAR}, own labels", "linear", "last"),
                Column("kNN, acceptable labels", "real", "knn_top1"),
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
        Maps(VARCON_200),
        notes=("Ours is the vote of an image's nearest among the other mapped test images.",),
    ),
    "tsne-compare": Artifact(
        "Maps of SupCon and VarCon",
        "t-SNE of SupCon and VarCon side by side",
        "Figure 6",
        "ImageNet, ResNet-50, SupCon after 350 epochs and VarCon after 200",
        Compared(
            {"SupCon": SUPCON, "VarCon": VARCON_200},
            (Column("kNN top-1", "knn", "top1", paper.MAPS_COMPARED),),
        ),
        Drawn({"SupCon": SUPCON, "VarCon": VARCON_200}, "Map of the test embeddings"),
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
        notes=("Ours are of at most 10,000 test images; the scores depend on how many each class has.",),
    ),
    "convergence": Artifact(
        "The loss over training",
        "the losses over training, VarCon's with its terms",
        "Figure 7",
        "ImageNet, ResNet-50, 50 epochs, batches of 4096",
        convergence,
        Losses(CONVERGING),
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
        with_paco,
        notes=(
            "PaCo and GPaCo predict with their own classifier; the paper does not say whether its values are "
            "of that or of a linear probe.",
        ),
        data=("CIFAR-100", "ImageNet"),
    ),
}
