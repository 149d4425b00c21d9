import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.evaluations import knn
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.knn import KNN, knn_votes, largest, nearest

CPU = torch.device("cpu")


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
    for cells in (1, 40 * 7, 40 * 25):  # one query at a time, at most seven, all
        monkeypatch.setattr(knn, "CELLS_AT_ONCE", cells)
        parts = knn_votes(queries, bank, labels, 4, [2, 7], temperature=0.2)
        for k in (2, 7):
            torch.testing.assert_close(parts[k], whole[k], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bank_size", [2000, 2017, 2047, 2048])  # with and without an unfilled group
@pytest.mark.parametrize("k", [1, 7, 30, 31, 32, 33, 100])  # by groups; from 32 on by a plain search
def test_neighbours_equal_scikit_learns(generator, bank_size, k):
    bank, queries = (torch.randn(n, 12, generator=generator, dtype=torch.float64) for n in (bank_size, 50))
    similarity, neighbours = nearest(queries, bank, k)
    model = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(bank.numpy())
    distances, expected = model.kneighbors(queries.numpy())
    assert (neighbours.numpy() == expected).all()
    np.testing.assert_allclose(similarity.numpy(), 1 - distances, atol=1e-12)


def test_equal_similarities_and_the_lowest(generator):
    """Many equals, and more neighbours than have anything in common with the query."""
    rows = torch.randint(-3, 4, (40, 6400), generator=generator).float()
    rows[0] = -1
    rows[1, 100:] = -1
    rows[2, 5::32] = 5  # one in every group: more groups than are looked through
    for k in (1, 50, 100):
        values, places = largest(rows, k)
        assert torch.equal(values, rows.sort(dim=1, descending=True).values[:, :k])
        assert torch.equal(rows.gather(1, places), values)
        assert all(len(row.unique()) == k for row in places)
    bank = torch.cat([torch.eye(3).repeat(400, 1), -torch.eye(3).repeat(400, 1)])
    similarity, neighbours = nearest(torch.eye(3), bank, 20)
    assert (similarity == 1).all()
    assert (neighbours % 3 == torch.arange(3)[:, None]).all()
    assert (neighbours < 1200).all()
    similarity, neighbours = nearest(torch.eye(3), bank, 2400)  # all of them, and none from beyond
    assert (neighbours.sort(dim=1).values == torch.arange(2400)).all()
    assert similarity.min() == -1


def test_top5_counts_only_classes_that_got_a_vote(generator):
    """And so does not hang on how the classes are numbered."""
    means = torch.randn(10, 16, generator=generator) * 0.6
    labels, test_labels = torch.arange(400) % 10, torch.arange(100) % 5 + 5
    images = means[labels] + torch.randn(400, 16, generator=generator)
    test_images = means[test_labels] + torch.randn(100, 16, generator=generator)
    found = []
    for number in (torch.arange(10), 9 - torch.arange(10)):
        data = Data(
            Split(images, number[labels]),
            Split(test_images, number[test_labels]),
            [*"abcdefghij"],
            (0.0,) * 16,
            (1.0,) * 16,
        )
        found.append(KNN(k=5, also=(1, 20))(FrozenEncoder(nn.Identity(), data, CPU), data).scores)
    assert found[0] == found[1]
    assert found[0]["top5@1"] == found[0]["top1@1"]  # one neighbour names one class
    model = NearestNeighbors(n_neighbors=5, metric="cosine").fit(images.numpy())
    named = labels.numpy()[model.kneighbors(test_images.numpy())[1]]  # of five neighbours, at most five
    assert found[0]["top5"] == pytest.approx(100 * (named == test_labels.numpy()[:, None]).any(1).mean())
    assert found[0]["top1"] < found[0]["top5"] < found[0]["top5@20"] <= 100
    cold = KNN(k=5, also=(), temperature=1e-5)(FrozenEncoder(nn.Identity(), data, CPU), data).scores
    assert cold["top5"] == found[0]["top5"]  # a faint vote is one


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
