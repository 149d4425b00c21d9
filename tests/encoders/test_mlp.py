from pathlib import Path

import pytest
import torch

from varcon.core import InputError
from varcon.encoders import EncoderSettings


def test_it_is_two_normalised_layers(generator):
    encoder = EncoderSettings("mlp").build([5]).eval()
    assert encoder.features == 128
    state = encoder.state_dict()
    x = torch.randn(7, 5, generator=generator)
    expected = x
    for linear, norm in ((0, 1), (3, 4)):
        expected = expected @ state[f"layers.{linear}.weight"].T
        mean, variance = state[f"layers.{norm}.running_mean"], state[f"layers.{norm}.running_var"]
        expected = (expected - mean) / (variance + 1e-5).sqrt()
        expected = (expected * state[f"layers.{norm}.weight"] + state[f"layers.{norm}.bias"]).clamp_min(0)
    torch.testing.assert_close(encoder(x), expected)


def test_it_reads_vectors_in_the_type_of_its_weights(generator):
    encoder = EncoderSettings("mlp").build([5]).eval().double()
    assert encoder(torch.randn(3, 5, generator=generator)).dtype == torch.float64


def test_encoders_and_data_of_different_kinds():
    with pytest.raises(InputError, match="'mlp' reads vectors and the data are images"):
        EncoderSettings("mlp").build([3, 8, 8])
    with pytest.raises(InputError, match="'small' reads images and the data are vectors; choose 'mlp'"):
        EncoderSettings("small").build([8])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "large"}, r"encoder\.name is 'large'; choose one of small"),
        ({"stem": "smal"}, r"encoder\.stem is 'smal'; did you mean 'small'"),
        ({"weights": Path("a.safetensors")}, r"encoder\.weights is .*; it must be text"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        EncoderSettings(**settings)
