import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from varcon.core import InputError
from varcon.data import DataSettings, load
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.map2d import Map2D, Projector


def test_map_keeps_neighbourhoods():
    data = load(DataSettings())
    arrays = Map2D(points=300)(raw_pixels(data, torch.device("cpu")), data).arrays
    assert arrays["points"].shape == (300, 2)
    assert len(np.unique(arrays["chosen"])) == 300
    assert (data.test.labels.numpy()[arrays["chosen"]] == arrays["labels"]).all()
    # Neighbours on the map have the same class far more often than the one time in ten of chance.
    model = KNeighborsClassifier(5).fit(arrays["points"][:200], arrays["labels"][:200])
    assert model.score(arrays["points"][200:], arrays["labels"][200:]) > 0.8


def test_the_map_says_when_it_is_drawn():
    """What came before must not seem to go on meanwhile."""
    data, told = load(DataSettings()), []
    encoder = raw_pixels(data, torch.device("cpu"))
    encoder.progress = lambda *report: told.append(report)
    Map2D(points=10)(encoder, data)
    assert told[-3:] == [(500, 500, "encoding images"), (0, 1, "drawing the map"), (1, 1, "drawing the map")]


PROJECT = Projector("tsne", perplexity=5, seed=0)
ONE_COLUMN = torch.eye(8)[3] * torch.arange(1.0, 31.0)[:, None]


@pytest.mark.parametrize(
    "features",
    [torch.zeros(30, 8), torch.ones(30, 8), ONE_COLUMN, torch.ones(30, 1), torch.full((30, 3), 1e30)],
    ids=["zero", "one", "one column", "one dimension", "huge"],
)
def test_one_direction_has_no_map(features):
    """t-SNE would divide by its spread and end the process."""
    assert (PROJECT(features) == np.zeros((30, 2))).all()


def test_one_dimension_has_two_directions():
    points = PROJECT(torch.arange(30.0)[:, None] - 14.5)
    assert np.isfinite(points).all()
    (left,), (right,) = np.unique(points[:15, 0]), np.unique(points[15:, 0])
    assert left != right


def test_the_features_scale_does_not_matter(generator):
    features = torch.randn(30, 8, generator=generator)
    usual = PROJECT(features)
    assert usual.std() > 0
    np.testing.assert_array_equal(PROJECT(features * 2.0**100), usual)  # squared, beyond float32


def test_a_map_that_begins_where_there_was_none(generator):
    features = torch.randn(30, 8, generator=generator)
    np.testing.assert_array_equal(PROJECT(features, np.zeros((30, 2), np.float32)), PROJECT(features))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_no_numbers_are_refused(value):
    features = torch.ones(30, 8)
    features[3, 4] = value
    with pytest.raises(InputError, match="features hold NaN or infinity"):
        PROJECT(features)
