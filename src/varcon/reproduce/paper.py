"""The paper's own numbers (Wang et al., NeurIPS 2025), as its tables and its text have them.

Figures are given as the points whose values the text has, for the paper prints no others; what they lack at
the settings of Table 1 is that table's. Accuracies are in percent, errors are the paper's standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Value:
    value: float
    error: float | None = None
    text: str = field(default="", compare=False)  # as the paper prints it, where a table has it

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.text or self.value}{error}"


def values(text: str) -> list[Value]:
    """Numbers as a table has them: `78.29±0.08 93.59`."""
    parts = (entry.split("±") for entry in text.split())
    return [Value(float(value), float(error[0]) if error else None, value) for value, *error in parts]


def rows(text: str) -> dict[str, list[Value]]:
    """Lines of `NAME: numbers`."""
    named = (line.split(":") for line in text.strip().splitlines())
    return {name.strip(): values(numbers) for name, numbers in named}


# Table 1: top-1 and top-5 of each data set in turn; ResNet-50.
MAIN_DATA = ("CIFAR-10", "CIFAR-100", "ImageNet-100", "ImageNet")
MAIN = rows("""
SimCLR: 91.52±0.07 99.78±0.01 70.67±0.12 92.01±0.06 71.54±0.10 91.56±0.05 70.31±0.08 90.37±0.05
MoCo v2: 92.93±0.09 99.79±0.02 70.01±0.09 91.68±0.07 78.98±0.11 95.20±0.03 71.06±0.06 90.40±0.03
BYOL: 92.57±0.06 99.71±0.03 70.50±0.11 91.95±0.04 80.18±0.07 94.86±0.05 74.28±0.09 91.56±0.04
SwAV: 89.14±0.08 99.69±0.02 64.87±0.10 88.81±0.05 74.07±0.12 92.77±0.04 75.29±0.07 91.83±0.06
VICReg: 92.09±0.10 99.73±0.01 68.51±0.08 90.91±0.07 79.26±0.09 95.06±0.04 73.25±0.08 91.06±0.03
Barlow Twins: 92.70±0.07 99.80±0.03 71.02±0.11 91.95±0.04 80.83±0.06 95.24±0.05 73.26±0.06 91.10±0.05
Cross-entropy: 95.07±0.08 99.82±0.02 74.01±0.09 91.89±0.06 83.17±0.08 95.78±0.03 78.20±0.07 93.71±0.04
SupCon: 95.51±0.06 99.85±0.02 76.57±0.10 93.50±0.05 85.06±0.07 96.84±0.04 78.72±0.06 94.31±0.03
VarCon: 95.94±0.07 99.87±0.02 78.29±0.08 93.59±0.05 86.34±0.09 96.96±0.03 79.36±0.05 94.37±0.04
""")

# Table 2: by images of each class.
FEW_IMAGES = (50, 100, 200, 500, 700, 1000)
FEW = rows("""
SupCon: 2.47±0.24 36.57±0.22 50.25±0.19 64.91±0.17 70.12±0.16 73.04±0.15
VarCon: 2.53±0.25 37.81±0.20 51.10±0.17 65.83±0.18 70.61±0.14 73.21±0.16
""")

# Table 3: top-1 and top-5, by loss, encoder and augmentation.
ADAPTABILITY = rows("""
SupCon, ResNet-50, SimAugment: 77.82 93.61
SupCon, ResNet-50, AutoAugment: 78.72 94.27
VarCon, ResNet-50, SimAugment: 78.23 93.67
VarCon, ResNet-50, AutoAugment: 79.36 94.33
SupCon, ResNet-101, SimAugment: 79.64 94.85
SupCon, ResNet-101, StackedRandAugment: 80.24 94.82
VarCon, ResNet-101, SimAugment: 79.98 94.89
VarCon, ResNet-101, StackedRandAugment: 80.58 94.87
SupCon, ResNet-200, StackedRandAugment: 81.43 95.93
VarCon, ResNet-200, StackedRandAugment: 81.87 95.95
SupCon, ViT-Base, SimAugment: 78.21 94.13
VarCon, ViT-Base, SimAugment: 78.56 94.17
""")

# Table 4, ResNet-50: by data set, in the order of evaluations.transfer.MEASURED_BY, and their mean.
TRANSFER = rows("""
SimCLR: 88.21 97.62 85.86 75.91 63.52 91.33 87.40 83.98 73.23 89.22 92.11 97.02 85.45
SupCon: 87.28 97.43 84.26 75.20 58.03 91.71 84.08 85.18 74.82 93.45 91.07 96.08 84.88
VarCon: 87.31 97.65 84.39 75.27 57.96 91.79 84.25 85.07 74.79 93.52 91.19 96.14 84.94
""")

# Figure 2, from the text of "Ablation Studies": the value at a place on the axis.
TEMPERATURE = {"VarCon": {0.1: 79.38}, "SupCon": {0.1: 78.8}}
EPOCHS = {
    "VarCon": {50: 75.3, 100: 77.85, 200: 79.15, 350: 79.36, 700: 78.80},
    "SupCon": {50: 74.5, 350: MAIN["SupCon"][-2].value, 700: 78.23},
}
BATCH_SIZE = {"VarCon": {2048: 79.26, 4096: MAIN["VarCon"][-2].value}, "SupCon": {4096: 78.7}}

# Figure 3: (a) by neighbours, (b) by epsilon, (c) VarCon's lead by severity.
NEIGHBOURS = {"VarCon": {5: 77.4, 80: 78.07}, "SupCon": {5: 77.32, 80: 77.86}}
NEIGHBOURS_TOP5 = {"VarCon": {5: 83.88, 80: 83.88}, "SupCon": {5: 83.61, 80: 83.61}}
EPSILON = {"VarCon": {0.0: 78.87, 0.02: 79.36, 0.08: 78.42}}
CORRUPTION_LEAD = {1: 0.3, 5: 1.2}

# Table 5.
REAL = rows("""
SimCLR: 75.30±0.05
MoCo v2: 78.22±0.04
BYOL: 81.10±0.07
SwAV: 81.56±0.04
VICReg: 79.45±0.07
Barlow Twins: 80.09±0.03
Cross-entropy: 83.47±0.06
SupCon: 83.87±0.04
VarCon: 84.12±0.04
""")

# Figures 5 and 6: kNN accuracy of the maps, by the part of the 200 epochs that is over.
MAPS = {25: 52.74, 50: 59.57, 75: 71.12, 100: 79.11}
MAPS_COMPARED = {"SupCon": Value(78.53), "VarCon": Value(79.11)}  # after 350 and 200 epochs

# Table 6.
CLUSTERING_SCORES = ("ARI", "NMI", "homogeneity", "completeness", "V-measure", "purity")
CLUSTERING = rows("""
SupCon: 0.613 0.888 0.886 0.890 0.888 0.755
VarCon, epsilon 0: 0.627 0.892 0.890 0.892 0.891 0.766
VarCon: 0.634 0.895 0.893 0.896 0.895 0.774
""")

# Figure 7: the loss and its terms after the first epoch, the 10th of 50 and the last.
CONVERGENCE = {
    "SupCon, loss": {"first": 11.142, "20 %": 7.311, "last": 4.578},
    "VarCon, loss": {"first": 9.997, "20 %": 2.836, "last": 1.138},
    "VarCon, KL term": {"first": 4.978, "last": 0.538},
    "VarCon, NLL term": {"first": 5.019, "last": 0.599},
}

# Tables 7 and 8: tau2 over the training images after each fifth of 50 epochs (epsilon fixed at 0.02) and of
# 200 epochs (epsilon learned).
TAU2_SCORES = ("mean", "deviation", "least", "25 %", "median", "75 %", "greatest", "epsilon")
TAU2_FIXED = rows("""
10: 0.09378 0.00961 0.08001 0.08550 0.09213 0.10110 0.11878 0.02
20: 0.09714 0.01037 0.08000 0.08806 0.09685 0.10610 0.11873 0.02
30: 0.09979 0.01078 0.08000 0.09063 0.10076 0.10935 0.11889 0.02
40: 0.10326 0.01092 0.08001 0.09505 0.10589 0.11278 0.11916 0.02
50: 0.10656 0.01059 0.08001 0.10040 0.11042 0.11520 0.11910 0.02
""")
TAU2_LEARNED = rows("""
40: 0.09365 0.00958 0.08151 0.08542 0.09205 0.10098 0.11845 0.0185
80: 0.09728 0.01042 0.07950 0.08815 0.09698 0.10625 0.11885 0.0205
120: 0.09995 0.01085 0.07850 0.09075 0.10090 0.10950 0.11902 0.0215
160: 0.10310 0.01088 0.07921 0.09492 0.10575 0.11265 0.11895 0.0208
200: 0.10642 0.01056 0.07981 0.10028 0.11030 0.11508 0.11887 0.0202
""")

MEMORY = {"VarCon": 43.09, "SupCon": 43.25}  # Figure 8: GB of a GPU in training, 512 images on each

# Tables on PaCo: top-1 on CIFAR-100; on ImageNet with SimAugment and with RandAugment.
PACO_CIFAR100 = rows("""
SupCon: 76.57
VarCon: 78.29
PaCo: 79.10
GPaCo: 80.30
VarCon + PaCo: 80.57
VarCon + GPaCo: 81.29
""")
PACO_SIM = rows("""
SupCon: 77.82
VarCon: 78.23
PaCo: 78.70
VarCon + PaCo: 79.19
""")
PACO_RAND = rows("""
PaCo: 79.30
GPaCo: 79.50
VarCon + PaCo: 79.86
VarCon + GPaCo: 79.94
""")
