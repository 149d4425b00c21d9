from dataclasses import replace

import pytest

from varcon.evaluations.transfer import parse_target
from varcon.reproduce import paper
from varcon.reproduce.contents import adaptability, main_table, transfer, with_paco
from varcon.reproduce.declarations import ARTIFACTS
from varcon.reproduce.scales import SCALES
from varcon.reproduce.setup import set_up


def ignore(done, total, what): ...


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return set_up("smoke", "", tmp_path_factory.mktemp("out"), ignore)[0]


def test_the_paper_s_values_stand_beside_those_of_the_same_data(smoke):
    on_cifar = replace(
        smoke, base=replace(smoke.base, data=replace(smoke.base.data, name="cifar100", path="x"))
    )
    found = {(entry.row, entry.column): entry for entry in main_table(on_cifar)}
    assert found["VarCon", "linear probe top-1"].paper == paper.Value(78.29, 0.08)
    assert found["VarCon", "linear probe top-5"].paper == paper.Value(93.59, 0.05)
    assert not any("ImageNet" in column for _, column in found)
    found = {(entry.row, entry.column): entry for entry in main_table(smoke)}
    assert found["VarCon", "linear probe top-1"].paper is None
    assert found["SimCLR", "ImageNet top-5"].paper == paper.Value(90.37, 0.05)


def test_a_target_that_the_paper_has_gets_its_value(smoke):
    targets = (parse_target("Flowers-102=somewhere"), parse_target("mine=elsewhere"))
    found = {(entry.row, entry.column): entry for entry in transfer(replace(smoke, targets=targets))}
    assert found["Flowers-102", "SupCon"].paper.value == 96.08
    assert found["Flowers-102", "SupCon"].ours.score == "Flowers-102"
    assert not found["Flowers-102", "SupCon"].ours.runs.half
    assert found["mine", "VarCon"].paper is None
    assert ("flowers", "VarCon") not in found
    assert found["mean of these", "VarCon"].ours.score == "mean"
    assert found["mean of the paper's twelve", "VarCon"].paper.value == 84.94


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_the_data_decide_whose_autoaugment_it_is(smoke, scale):
    for name, policy in (("cifar100", "cifar10"), ("folder", "imagenet")):
        data = replace(smoke.base.data, name=name, path="x")
        setup = replace(smoke, scale=SCALES[scale], base=replace(smoke.base, data=data))
        found = [
            setup.recipe(entry.ours.runs).augment
            for entry in adaptability(setup)
            if entry.ours and entry.row.endswith("AutoAugment")
        ]
        assert {(augment.policy, augment.auto) for augment in found} == {("auto", policy)}


def test_of_imagenet_s_augmentations_autoaugment_alone_is_not_blurred(imagenet):
    found = [
        (entry.row.split(", ")[2], imagenet.recipe(entry.ours.runs).augment)
        for entry in adaptability(imagenet)
        if entry.ours
    ]
    assert {(name, augment.policy, augment.blur) for name, augment in found} == {
        ("SimAugment", "sim", 0.5),
        ("AutoAugment", "auto", 0.0),
        ("StackedRandAugment", "stacked-rand", 0.5),
    }


def test_on_imagenet_equal_values_of_the_paper_s_are_beside_equal_runs(imagenet):
    """Of Tables 1 and 12, VarCon's and SupCon's are those of Table 3 with a ResNet-50."""
    by_value = {
        entry.paper.value: imagenet.label(entry.ours.runs)
        for entry in adaptability(imagenet)
        if entry.column.endswith("top-1") and "resnet50" in entry.row
    }
    main = [entry for entry in main_table(imagenet) if entry.column == "linear probe top-1"]
    assert {
        entry.row: imagenet.label(entry.ours.runs) for entry in main if entry.paper.value in by_value
    } == {"SupCon": by_value[78.72], "VarCon": by_value[79.36]}
    combined = [entry for entry in with_paco(imagenet) if entry.column == "linear probe top-1"]
    labels = {entry.row: imagenet.label(entry.ours.runs) for entry in combined}
    assert (labels["SupCon"], labels["VarCon"]) == (by_value[77.82], by_value[78.23])
    policies = {imagenet.recipe(entry.ours.runs).augment.policy for entry in combined}
    assert policies == {"sim"}


@pytest.mark.parametrize("name", ["tau2", "tau2-learnable"])
def test_each_fifth_of_the_training_has_a_row(smoke, name):
    entries = ARTIFACTS[name].content(smoke)
    ours = [entry.row for entry in entries if entry.ours and entry.column == "mean"]
    assert ours == [f"epoch {epoch} of 12" for epoch in (2, 5, 7, 10, 12)]
    last = [entry for entry in entries if entry.paper][-1]
    assert (last.row.endswith(", paper"), last.column) == (True, "epsilon")


def test_a_sweep_has_a_row_for_each_value_of_ours_and_of_the_paper_s(smoke):
    entries = [entry for entry in ARTIFACTS["epochs"].content(smoke) if entry.column == "VarCon"]
    assert [entry.x for entry in entries] == [3, 6, 12, 24, *paper.EPOCHS["VarCon"]]
    assert [entry.ours is None for entry in entries] == [False] * 4 + [True] * 5


def test_a_low_temperature_takes_epsilon_with_it(smoke):
    entries = ARTIFACTS["temperature"].content(replace(smoke, scale=replace(smoke.scale, name="small")))
    chosen = {entry.column: entry.ours.runs.settings for entry in entries if entry.x == 0.02}
    assert chosen["VarCon"] == {"method.temperature": 0.02, "method.epsilon": 0.01}
    assert chosen["SupCon"] == {"method.temperature": 0.02}
