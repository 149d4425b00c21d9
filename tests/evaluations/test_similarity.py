import json

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score, average_precision_score
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.data.similarity import SUPERCLASSES
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.similarity import ClassSimilarity, recovery, superclass_of_each

CPU = torch.device("cpu")
LINES = [line.split() for line in SUPERCLASSES.strip().split("\n")]


class Red(nn.Module):
    """The mean colour of an image, so that a test paints the features that it wants."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


def painted(colours, names):
    """Two images of each class in its colour, a little lighter and darker."""
    images = torch.tensor(colours, dtype=torch.uint8).repeat_interleave(2, dim=0)[:, :, None, None]
    images = images.expand(-1, 3, 4, 4).clone()
    images[::2] += 5
    split = Split(images, torch.arange(len(names)).repeat_interleave(2))
    data = Data(split, split, names, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return FrozenEncoder(Red(), data, CPU), data


def test_matrix_and_pairs_equal_a_loop(digits):
    findings = ClassSimilarity(pairs=4)(raw_pixels(digits, CPU), digits)
    pixels = raw_pixels(digits, CPU).features(digits.test).double()
    pixels = torch.nn.functional.normalize(pixels, dim=1)
    centroids = [pixels[digits.test.labels == digit].mean(dim=0) for digit in range(10)]
    cosines = {
        (i, j): torch.cosine_similarity(centroids[i], centroids[j], dim=0).item()
        for i in range(10)
        for j in range(10)
    }
    for (i, j), cosine in cosines.items():
        assert findings.arrays["similarity"][i, j] == pytest.approx(cosine, abs=1e-5)
    pairs = sorted((p for p in cosines if p[0] < p[1]), key=lambda p: -cosines[p])
    assert findings.arrays["pairs"].tolist() == [list(p) for p in pairs[:4]]
    assert findings.arrays["pair_similarity"] == pytest.approx([cosines[p] for p in pairs[:4]], abs=1e-5)
    assert findings.scores["highest"] == pytest.approx(cosines[pairs[0]], abs=1e-5)
    assert findings.scores["mean"] == pytest.approx(np.mean([cosines[p] for p in pairs]), abs=1e-5)
    assert sorted(findings.arrays["order"]) == list(range(10))
    assert len(ClassSimilarity(pairs=99)(raw_pixels(digits, CPU), digits).arrays["pairs"]) == 45


def test_no_hierarchy_no_scores_of_one(digits):
    assert superclass_of_each("auto", digits.classes) is None
    findings = ClassSimilarity()(raw_pixels(digits, CPU), digits)
    assert set(findings.scores) == {"mean", "highest"}
    assert "superclasses" not in findings.arrays


def test_display_order_puts_like_beside_like():
    colours = [[200, 10, 10], [10, 200, 10], [190, 30, 10], [10, 190, 30], [10, 10, 200]]
    frozen, data = painted(colours, list("abcde"))
    order = ClassSimilarity()(frozen, data).arrays["order"].tolist()
    assert abs(order.index(0) - order.index(2)) == 1
    assert abs(order.index(1) - order.index(3)) == 1


def test_cifar_superclasses_are_known_by_the_names():
    names = [name for line in LINES for name in line]
    groups = superclass_of_each("auto", sorted(names))
    table = dict(zip(sorted(names), groups, strict=True))
    assert all(len({table[name] for name in line}) == 1 for line in LINES)
    assert len(set(groups)) == 20
    assert superclass_of_each("none", names) is None
    frozen, data = painted(
        [[200, 10, 10], [10, 200, 10], [190, 30, 10], [10, 180, 10]], ["boy", "sea", "man", "plain"]
    )
    scores = ClassSimilarity()(frozen, data).scores
    for name in ("nearest_in_superclass", "superclass_map", "superclass_ari", "superclass_rank_correlation"):
        assert scores[name] == 1
    assert scores["nearest_in_superclass_chance"] == pytest.approx(1 / 3)


def test_recovery_equals_its_definitions():
    draw = np.random.default_rng(1)
    groups = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 1, 0])  # 3 is alone
    points = np.eye(4)[groups] + 0.7 * draw.normal(size=(12, 4))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    cosines, tree = points @ points.T, linkage(points, "ward")
    found = recovery(cosines, tree, groups)
    nearest, precisions, shares = [], [], []
    for i in range(12):
        others = [j for j in range(12) if j != i]
        same = [groups[j] == groups[i] for j in others]
        if any(same):
            nearest.append(same[int(np.argmax(cosines[i, others]))])
            precisions.append(average_precision_score(same, cosines[i, others]))
            shares.append(np.mean(same))
    assert found["nearest_in_superclass"] == pytest.approx(np.mean(nearest))
    assert found["nearest_in_superclass_chance"] == pytest.approx(np.mean(shares))
    assert found["superclass_map"] == pytest.approx(np.mean(precisions))
    pairs = [(i, j) for i in range(12) for j in range(i)]
    within = [cosines[p] for p in pairs if groups[p[0]] == groups[p[1]]]
    across = [cosines[p] for p in pairs if groups[p[0]] != groups[p[1]]]
    expected = np.mean([np.sign(a - b) for a in within for b in across])
    assert found["superclass_rank_correlation"] == pytest.approx(expected)
    clusters = fcluster(tree, 4, "maxclust")
    assert found["superclass_ari"] == pytest.approx(adjusted_rand_score(groups, clusters))


def test_chance_is_what_noise_gives():
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(5), [2, 3, 4, 5, 6])
    totals: dict[str, float] = {}
    for _ in range(300):
        points = draw.normal(size=(20, 10))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        for name, value in recovery(points @ points.T, linkage(points, "ward"), groups).items():
            totals[name] = totals.get(name, 0) + value / 300
    for name in ("nearest_in_superclass", "superclass_map", "superclass_ari", "superclass_rank_correlation"):
        assert totals[name] == pytest.approx(totals[f"{name}_chance"], abs=0.012), name


def test_a_hierarchy_from_a_file(digits, tmp_path):
    table = {str(digit): "odd" if digit % 2 else "even" for digit in range(10)}
    file = tmp_path / "parity.json"
    file.write_text(json.dumps(table))
    findings = ClassSimilarity(superclasses=str(file))(raw_pixels(digits, CPU), digits)
    assert (findings.arrays["superclasses"] == np.arange(10) % 2).all()
    assert 0 <= findings.scores["superclass_map"] <= 1
    for nothing_to_find in ("x", None):  # one superclass for all, or one for each
        file.write_text(json.dumps({digit: nothing_to_find or digit for digit in table}))
        assert (
            "superclass_map"
            not in ClassSimilarity(superclasses=str(file))(raw_pixels(digits, CPU), digits).scores
        )


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"0": "a"}', "no superclass for '1'"),
        ("[1, 2]", "not a table of superclasses"),
        ('{"0": 1}', "not a table of superclasses"),
        ("{", "not a table of superclasses"),
        (None, "cannot be opened"),
    ],
)
def test_files_that_cannot_be_used(digits, tmp_path, content, message):
    file = tmp_path / "table.json"
    if content:
        file.write_text(content)
    with pytest.raises(InputError, match=message):
        ClassSimilarity(superclasses=str(file))(raw_pixels(digits, CPU), digits)


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match=r"similarity\.pairs is 0"):
        ClassSimilarity(pairs=0)
    with pytest.raises(InputError, match=r"similarity\.superclasses is empty"):
        ClassSimilarity(superclasses="")
    frozen, data = painted([[200, 10, 10]], ["one"])
    with pytest.raises(InputError, match="of one class"):
        ClassSimilarity()(frozen, data)
