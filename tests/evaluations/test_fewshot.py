import dataclasses

import numpy as np
import pytest
import torch

from varcon.core import Data, InputError, Split
from varcon.data.subset import few_per_class
from varcon.evaluations.centroid import NearestCentroid
from varcon.evaluations.fewshot import FewShot
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.logistic import LogisticProbe

CPU = torch.device("cpu")
QUICK = LogisticProbe(steps=5, least=1e-3, greatest=10)


def test_each_number_is_a_probe_of_a_drawn_part(digits):
    """Against the whole evaluations, run on data that hold nothing but the drawn images."""
    findings = FewShot(per_class=(20, 3), subsets=2, seed=5, probe=QUICK)(raw_pixels(digits, CPU), digits)
    assert findings.arrays["per_class"].tolist() == [3, 20]
    for row, number in enumerate((3, 20)):
        for subset in range(2):
            few = dataclasses.replace(digits, train=few_per_class(digits.train, number, 5 + subset))
            pixels = raw_pixels(few, CPU)
            for name, evaluation in (("logistic", QUICK), ("centroid", NearestCentroid())):
                expected = evaluation(pixels, few).scores["top1"]
                assert findings.arrays[name][row, subset] == pytest.approx(expected, abs=1e-9)
        for name in ("logistic", "centroid"):
            first, second = findings.arrays[name][row]
            assert findings.scores[f"{name}@{number}"] == pytest.approx((first + second) / 2)
            # Of two values the deviation is |a - b| / sqrt 2, and the mean's error |a - b| / 2.
            assert findings.scores[f"{name}_error@{number}"] == pytest.approx(abs(first - second) / 2)


def test_more_labels_are_better_and_the_seed_decides(digits):
    fixed = LogisticProbe(steps=1, least=0.1)
    pixels = raw_pixels(digits, CPU)
    first, again, other = (
        FewShot((1, 30), subsets=2, seed=seed, probe=fixed)(pixels, digits) for seed in (0, 0, 9)
    )
    assert first.scores == again.scores != other.scores
    assert first.scores["logistic@30"] > first.scores["logistic@1"] + 15
    assert first.scores["centroid@30"] > first.scores["centroid@1"] + 15


def small(counts):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.randint(0, 256, (len(labels), 3, 2, 2), generator=torch.Generator().manual_seed(0))
    split = Split(pixels.to(torch.uint8), labels)
    return Data(split, split, [f"c{c}" for c in range(len(counts))], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))


def test_the_usual_numbers_as_far_as_they_go():
    data = small([6, 12])
    findings = FewShot(subsets=1, probe=QUICK)(raw_pixels(data, CPU), data)
    assert findings.arrays["per_class"].tolist() == [1, 2, 5]
    assert not any("error" in name for name in findings.scores)  # one value has no spread
    assert np.isfinite(findings.arrays["penalties"]).all()


def test_all_images_have_no_spread_over_subsets():
    data = small([5, 5])
    findings = FewShot(per_class=(2, 5), subsets=3, probe=QUICK)(raw_pixels(data, CPU), data)
    assert [name for name in findings.scores if "_error" in name] == ["logistic_error@2", "centroid_error@2"]
    assert len(np.unique(findings.arrays["logistic"][1])) == 1
    assert findings.scores["logistic@5"] == findings.arrays["logistic"][1, 0]


def test_what_cannot_be():
    data = small([6, 12])
    with pytest.raises(InputError, match=r"asks for 7 images of each class and 'c0' has 6"):
        FewShot(per_class=(2, 7))(raw_pixels(data, CPU), data)
    single = small([6])
    with pytest.raises(InputError, match="there is only one"):
        FewShot()(raw_pixels(single, CPU), single)
    for settings in ({"per_class": (0,)}, {"per_class": (2, 2)}, {"subsets": 0}, {"seed": -1}):
        with pytest.raises(InputError, match=rf"fewshot\.{next(iter(settings))} "):
            FewShot(**settings)
