import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.data import DataSettings, load
from varcon.evaluations import knn
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.knn import KNN, knn_votes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return load(DataSettings())


@pytest.mark.parametrize("k", [1, 5, 20])
def test_equals_scikit_learn_on_digits(digits, k):
    findings = KNN(k=k)(raw_pixels(digits, CPU), digits)
    mean = np.array(digits.mean)[:, None, None]
    std = np.array(digits.std)[:, None, None]

    def flat(split):
        return ((split.images.double().numpy() / 255 - mean) / std).reshape(len(split), -1)

    def weights(distances):
        return np.exp(-distances / 0.07)  # cosine distance is 1 - similarity

    model = KNeighborsClassifier(k, metric="cosine", weights=weights)
    model.fit(flat(digits.train), digits.train.labels.numpy())
    probability = model.predict_proba(flat(digits.test))
    truth = digits.test.labels.numpy()
    predictions = probability.argmax(1)
    assert (findings.arrays["predictions"] == predictions).mean() >= 0.998  # ties of equal distance
    assert findings.scores["top1"] == pytest.approx(100 * (predictions == truth).mean(), abs=0.21)
    assert findings.scores["top1"] == findings.scores[f"top1@{k}"]
    confusion = findings.arrays["confusion"]
    assert confusion.sum() == len(truth)
    assert 100 * np.trace(confusion) / len(truth) == pytest.approx(findings.scores["top1"])


def test_votes_equal_a_loop(generator):
    bank = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    queries = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (40,), generator=generator)
    votes = knn_votes(queries, bank, labels, 4, [1, 3, 10, 40], temperature=0.2)
    for i, query in enumerate(queries):
        cosine = [
            (torch.cosine_similarity(query, b, dim=0).item(), int(c))
            for b, c in zip(bank, labels, strict=True)
        ]
        cosine.sort(reverse=True)
        for k in (1, 3, 10, 40):
            expected = torch.zeros(4, dtype=torch.float64)
            for similarity, label in cosine[:k]:
                expected[label] += np.exp((similarity - cosine[0][0]) / 0.2)
            torch.testing.assert_close(votes[k][i], expected, rtol=1e-9, atol=1e-12)


def test_parts_of_any_size_give_the_same_votes(generator, monkeypatch):
    bank, queries = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (40, 25))
    labels = torch.randint(0, 4, (40,), generator=generator)
    whole = knn_votes(queries, bank, labels, 4, [2, 7], temperature=0.2)
    for cells in (1, 40 * 7, 40 * 25):  # one query at a time, seven with a rest of four, all
        monkeypatch.setattr(knn, "CELLS_AT_ONCE", cells)
        parts = knn_votes(queries, bank, labels, 4, [2, 7], temperature=0.2)
        for k in (2, 7):
            torch.testing.assert_close(parts[k], whole[k], rtol=1e-12, atol=1e-12)


def tiny(images=6):
    split = Split(torch.zeros(images, 3, 2, 2, dtype=torch.uint8), torch.arange(images) % 2)
    return Data(split, split, ["a", "b"], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))


def test_neighbours_beyond_the_data():
    data = tiny()
    assert {k for k in KNN(k=5)(raw_pixels(data, CPU), data).scores if k.startswith("top1@")} == {
        "top1@1",
        "top1@5",
    }
    with pytest.raises(InputError, match=r"knn\.k is 7 but there are only 6 training images"):
        KNN(k=7)(raw_pixels(data, CPU), data)
    with pytest.raises(InputError, match="neighbours count from 1"):
        KNN(k=0)


def test_a_frozen_encoder_encodes_each_split_once(digits):
    class Counting(nn.Module):
        seen = 0

        def forward(self, images):
            self.seen += len(images)
            return images.flatten(1)

    counting = Counting()
    frozen = FrozenEncoder(counting, digits, CPU)
    assert torch.equal(frozen.features(digits.test), frozen.features(digits.test))
    assert counting.seen == len(digits.test)
