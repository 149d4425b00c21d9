import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from varcon.data import DataSettings, load
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.map2d import Map2D


def test_map_keeps_neighbourhoods():
    data = load(DataSettings())
    arrays = Map2D(points=300)(raw_pixels(data, torch.device("cpu")), data).arrays
    assert arrays["points"].shape == (300, 2)
    assert len(np.unique(arrays["chosen"])) == 300
    assert (data.test.labels.numpy()[arrays["chosen"]] == arrays["labels"]).all()
    # Neighbours on the map have the same class far more often than the one time in ten of chance.
    model = KNeighborsClassifier(5).fit(arrays["points"][:200], arrays["labels"][:200])
    assert model.score(arrays["points"][200:], arrays["labels"][200:]) > 0.8
