from typing import get_args, get_type_hints

import pytest
import torch

from varcon.encoders import ENCODERS, EncoderSettings

# Trainable numbers of the published networks with the imagenet stem, less their 1000-way classifier.
PUBLISHED = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
    "resnet101": 44_549_160 - 2_049_000,
    "resnet200": 64_673_832 - 2_049_000,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_of_the_published_network(name):
    with torch.device("meta"):
        encoder = EncoderSettings(name, "imagenet").build()
    assert sum(p.numel() for p in encoder.parameters()) == PUBLISHED[name]


def test_parameters_have_torchvision_names():
    with torch.device("meta"):
        names = set(EncoderSettings("resnet50", "imagenet").build().state_dict())
    batch_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", *(f"bn1.{part}" for part in batch_norm)}
    for stage, depth in enumerate((3, 4, 6, 3), start=1):
        for block in range(depth):
            for number in (1, 2, 3):
                expected |= {f"layer{stage}.{block}.conv{number}.weight"}
                expected |= {f"layer{stage}.{block}.bn{number}.{part}" for part in batch_norm}
        expected |= {f"layer{stage}.0.downsample.0.weight"}
        expected |= {f"layer{stage}.0.downsample.1.{part}" for part in batch_norm}
    assert names == expected


@pytest.mark.parametrize(("stem", "size", "last"), [("small", 32, 4), ("imagenet", 64, 2)])
def test_stem_decides_the_last_resolution(stem, size, last):
    encoder = EncoderSettings("resnet18", stem).build().eval()
    shapes = []
    encoder.layer4[-1].register_forward_hook(lambda module, inputs, pair: shapes.append(pair[0].shape))
    features = encoder(torch.zeros(1, 3, size, size))
    assert shapes == [(1, 512, last, last)]
    assert features.shape == (1, encoder.features)


@pytest.mark.parametrize("size", [8, 16, 32])
def test_small_encoder_takes_small_images(size):
    encoder = EncoderSettings("small").build().eval()
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    features = encoder(images)
    assert features.shape == (2, encoder.features)
    assert not torch.allclose(features[0], features[1])


def test_block_equals_its_formula():
    """relu(bn2(conv2(relu(bn1(conv1 x)))) + shortcut), in training mode."""
    block = EncoderSettings("resnet18").build().layer2[0]
    x = torch.randn(4, 64, 6, 6, generator=torch.Generator().manual_seed(1))

    def norm(values):
        centred = values - values.mean((0, 2, 3), keepdim=True)
        return centred / (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()

    conv = torch.nn.functional.conv2d
    inner = norm(conv(x, block.conv1.weight, stride=2, padding=1)).relu()
    inner = norm(conv(inner, block.conv2.weight, padding=1))
    expected = (inner + norm(conv(x, block.downsample[0].weight, stride=2))).relu()
    torch.testing.assert_close(block(x, x)[0], expected, rtol=1e-4, atol=1e-5)


def test_every_encoder_can_be_chosen():
    assert list(get_args(get_type_hints(EncoderSettings)["name"])) == list(ENCODERS)
