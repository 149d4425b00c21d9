from dataclasses import replace

import pytest
import torch
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.evaluations.centroid import NearestCentroid
from varcon.evaluations.discriminant import LinearDiscriminant
from varcon.evaluations.fewshot import FewShot
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.knn import KNN
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.rank import Rank
from varcon.evaluations.robustness import Robustness

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "judge",
    [
        KNN(),
        LinearProbe(epochs=1),
        Rank(),
        NearestCentroid(),
        LogisticProbe(),
        LinearDiscriminant(),
        FewShot((1,)),
    ],
    ids=lambda judge: type(judge).__name__,
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_no_numbers_are_refused(judge, value, generator):
    vectors, labels = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    whole = Split(vectors, labels)
    data = Data(whole, whole, ["a", "b", "c"], (0.0,) * 4, (1.0,) * 4)
    judge(FrozenEncoder(nn.Identity(), data, CPU), data)
    broken = replace(whole, images=vectors.clone())
    broken.images[7, 2] = value
    data = replace(data, test=broken)
    with pytest.raises(InputError, match="features hold NaN or infinity"):
        judge(FrozenEncoder(nn.Identity(), data, CPU), data)


class Bright(nn.Module):
    """Features of every image but a bright one."""

    def forward(self, images):
        means = images.mean((2, 3))
        return torch.where(means.amin(1, keepdim=True) > 0.8, torch.nan, means)


@pytest.mark.parametrize(
    "judge",
    [Robustness(("brightness",), classifier="centroid"), LinearProbe(epochs=1, augment="resized-crop")],
    ids=lambda judge: type(judge).__name__,
)
def test_features_of_changed_images_too(judge, generator):
    """An image, half of it white, is fit to be judged; a crop of it, or a brighter one, is not."""
    images = torch.randint(0, 100, (30, 3, 16, 16), dtype=torch.uint8, generator=generator)
    images[:, :, :, :8] = 255
    whole = Split(images, torch.arange(30) % 3)
    data = Data(whole, whole, ["a", "b", "c"], (0.5,) * 3, (0.2,) * 3)
    encoder = FrozenEncoder(Bright(), data, CPU)
    assert encoder.features(whole).isfinite().all()
    with pytest.raises(InputError, match="features hold NaN or infinity"):
        judge(encoder, data)
