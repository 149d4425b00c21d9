"""The paper's numbers were copied by hand; what holds among them would break with a slip."""

import statistics

import pytest

from varcon.evaluations.transfer import MEASURED_BY
from varcon.reproduce import paper
from varcon.reproduce.declarations import ARTIFACTS


@pytest.mark.parametrize("method", list(paper.TRANSFER))
def test_the_mean_over_twelve_data_sets(method):
    *each, mean = (value.value for value in paper.TRANSFER[method])
    assert len(each) == len(MEASURED_BY)
    assert statistics.fmean(each) == pytest.approx(mean, abs=0.011)


@pytest.mark.parametrize("row", list(paper.CLUSTERING))
def test_the_v_measure_is_the_harmonic_mean(row):
    found = dict(zip(paper.CLUSTERING_SCORES, (value.value for value in paper.CLUSTERING[row]), strict=True))
    harmonic = statistics.harmonic_mean([found["homogeneity"], found["completeness"]])
    assert found["V-measure"] == pytest.approx(harmonic, abs=0.0011)


@pytest.mark.parametrize("table", [paper.TAU2_FIXED, paper.TAU2_LEARNED])
def test_tau2_lies_within_its_range(table):
    for values in table.values():
        found = dict(zip(paper.TAU2_SCORES, (value.value for value in values), strict=True))
        ordered = [found[name] for name in ("least", "25 %", "median", "75 %", "greatest")]
        assert ordered == sorted(ordered)
        assert 0.1 - found["epsilon"] - 1e-3 <= ordered[0]
        assert ordered[-1] <= 0.1 + found["epsilon"]


def test_what_several_tables_have_is_the_same():
    assert paper.MAIN["VarCon"][-2].value == paper.ADAPTABILITY["VarCon, ResNet-50, AutoAugment"][0].value
    assert paper.MAIN["SupCon"][2].value == paper.PACO_CIFAR100["SupCon"][0].value
    assert paper.PACO_SIM["VarCon"] == paper.ADAPTABILITY["VarCon, ResNet-50, SimAugment"][:1]
    assert paper.EPSILON["VarCon"][0.02] == paper.MAIN["VarCon"][-2].value
    assert all(len(row) == 2 * len(paper.MAIN_DATA) for row in paper.MAIN.values())
    assert all(
        top1.value < top5.value
        for row in paper.MAIN.values()
        for top1, top5 in zip(row[::2], row[1::2], strict=True)
    )
    assert list(paper.REAL) == list(paper.MAIN)


def test_a_curve_s_points_are_printed_somewhere_and_the_note_says_where():
    """Those that the text lacks are Table 1's; none is computed from a difference that the text has."""
    place = 2 * paper.MAIN_DATA.index("ImageNet")
    supcon, varcon = (paper.MAIN[name][place].value for name in ("SupCon", "VarCon"))
    assert paper.EPOCHS["SupCon"][350] == supcon == 78.72
    assert paper.BATCH_SIZE["VarCon"][4096] == varcon == 79.36
    assert 6144 not in paper.BATCH_SIZE["VarCon"]
    assert 0.14 not in paper.TEMPERATURE["SupCon"]
    assert "SupCon's at 350 epochs is Table 1's." in " ".join(ARTIFACTS["epochs"].notes)
    assert "VarCon's at 4096 is Table 1's" in " ".join(ARTIFACTS["batch-size"].notes)


def test_the_terms_of_the_loss_add_up():
    for part in ("first", "last"):
        terms = sum(paper.CONVERGENCE[f"VarCon, {name} term"][part] for name in ("KL", "NLL"))
        assert terms == pytest.approx(paper.CONVERGENCE["VarCon, loss"][part], abs=0.0011)


def test_numbers_are_read_with_their_errors():
    found = paper.rows("a: 1.5±0.25 2.10\nb c: 3")
    assert found == {"a": [paper.Value(1.5, 0.25), paper.Value(2.1)], "b c": [paper.Value(3.0)]}
    assert [*map(str, found["a"]), *map(str, found["b c"])] == ["1.5 ± 0.25", "2.10", "3"]
