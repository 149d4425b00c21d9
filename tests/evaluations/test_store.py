import errno
import os

import pytest
import torch
from torch import nn

from varcon.core import Data, Split
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.store import FeatureStore


class Counting(nn.Module):
    """Encodes an image as its mean colour and counts the images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return images.mean(dim=(2, 3))


def some_data(generator, images=20):
    pixels = torch.randint(0, 256, (images, 3, 4, 4), dtype=torch.uint8, generator=generator)
    split = Split(pixels, torch.arange(images) % 2)
    return Data(split, split, ["a", "b"], (0.5,) * 3, (0.25,) * 3)


def features_of(data, folder, weights):
    encoder = Counting()
    store = FeatureStore(folder / "features", weights, data)
    frozen = FrozenEncoder(encoder, data, torch.device("cpu"), store=store)
    return frozen.features(data.test), encoder.seen


def test_a_second_evaluation_encodes_nothing(tmp_path, generator):
    weights = tmp_path / "weights"
    weights.write_bytes(b"one")
    data = some_data(generator)
    first, seen = features_of(data, tmp_path, weights)
    again, seen_again = features_of(data, tmp_path, weights)
    assert (seen, seen_again) == (20, 0)
    assert torch.equal(first, again)


def test_other_images_weights_and_normalisation_are_told_apart(tmp_path, generator):
    weights = tmp_path / "weights"
    weights.write_bytes(b"one")
    data = some_data(generator)
    features_of(data, tmp_path, weights)
    one_pixel = Split(data.test.images.clone(), data.test.labels)
    one_pixel.images[7, 1, 2, 3] ^= 1
    assert (
        features_of(Data(one_pixel, one_pixel, data.classes, data.mean, data.std), tmp_path, weights)[1] == 20
    )
    assert (
        features_of(Data(data.train, data.test, data.classes, (0.4,) * 3, data.std), tmp_path, weights)[1]
        == 20
    )
    assert len(list((tmp_path / "features").glob("*.npy"))) == 3
    weights.write_bytes(b"two")
    assert features_of(data, tmp_path, weights)[1] == 20
    assert len(list((tmp_path / "features").glob("*.npy"))) == 1  # those of the old weights are gone


def test_a_damaged_file_is_made_again(tmp_path, generator):
    weights = tmp_path / "weights"
    weights.write_bytes(b"one")
    data = some_data(generator)
    first, _ = features_of(data, tmp_path, weights)
    (kept,) = (tmp_path / "features").glob("*.npy")
    kept.write_bytes(kept.read_bytes()[:-5])
    again, seen = features_of(data, tmp_path, weights)
    assert seen == 20
    assert torch.equal(first, again)
    assert features_of(data, tmp_path, weights)[1] == 0


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_costs_no_more_than_time(tmp_path, generator, monkeypatch, number):
    def fails(*arguments):
        raise OSError(number, os.strerror(number))

    weights = tmp_path / "weights"
    weights.write_bytes(b"one")
    data = some_data(generator)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", fails)
        first, seen = features_of(data, tmp_path, weights)
    again, seen_again = features_of(data, tmp_path, weights)
    assert (seen, seen_again) == (20, 20)
    assert torch.equal(first, again)
