import pytest
import torch
from torch import nn

from varcon.core import InputError
from varcon.encoders import EncoderSettings
from varcon.encoders.vit import Attention, Block, Trunk

# Trainable numbers of the published networks with patches of 16, less their 1000-way classifier.
PUBLISHED = {
    "vit_tiny": 5_717_416 - 193_000,
    "vit_small": 22_050_664 - 385_000,
    "vit_base": 86_567_656 - 769_000,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_of_the_published_network(name):
    with torch.device("meta"):
        encoder = EncoderSettings(name, "imagenet").build()
    assert sum(p.numel() for p in encoder.parameters()) == PUBLISHED[name]


def test_parameters_have_torchvision_names():
    with torch.device("meta"):
        names = set(EncoderSettings("vit_base", "imagenet").build().state_dict())
    both = ("weight", "bias")
    expected = {"class_token", "encoder.pos_embedding"}
    expected |= {f"{layer}.{part}" for layer in ("conv_proj", "encoder.ln") for part in both}
    for number in range(12):
        layer = f"encoder.layers.encoder_layer_{number}"
        expected |= {f"{layer}.self_attention.in_proj_{part}" for part in both}
        parts = ("ln_1", "self_attention.out_proj", "ln_2", "mlp.0", "mlp.3")
        expected |= {f"{layer}.{name}.{part}" for name in parts for part in both}
    assert names == expected


def test_the_first_weights_are_drawn_as_torchvision_draws_them():
    """Patches: normal, of a variance of one over the numbers in a patch; no bias to begin with."""
    encoder = EncoderSettings("vit_tiny", "imagenet").build()
    assert encoder.conv_proj.bias.count_nonzero() == 0
    assert encoder.conv_proj.weight.std().item() == pytest.approx((3 * 16 * 16) ** -0.5, rel=0.02)
    assert encoder.class_token.count_nonzero() == 0
    assert encoder.encoder.pos_embedding.std().item() == pytest.approx(0.02, rel=0.02)


def test_a_block_is_torchs_own(generator):
    """torch.nn.TransformerEncoderLayer, with the norms first."""
    block = Block(24, 3)
    theirs = nn.TransformerEncoderLayer(
        24, 3, 96, dropout=0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    names = {
        "ln_1": "norm1",
        "self_attention": "self_attn",
        "ln_2": "norm2",
        "mlp.0": "linear1",
        "mlp.3": "linear2",
    }
    state = {}
    for name, value in block.state_dict().items():
        start = next(ours for ours in names if name.startswith(ours))
        state[names[start] + name.removeprefix(start)] = value
    theirs.load_state_dict(state)
    tokens = torch.randn(2, 7, 24, generator=generator)
    torch.testing.assert_close(block(tokens), theirs(tokens), rtol=1e-5, atol=1e-5)


def test_attention_mixes_tokens_and_not_images(generator):
    attention = Attention(12, 2)
    tokens = torch.randn(3, 5, 12, generator=generator)
    changed = tokens.clone()
    changed[1, 0] += 1
    before, after = attention(tokens), attention(changed)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert (before[1] != after[1]).any(1).all()


def test_positions_stretch_over_other_images():
    trunk = Trunk(4, 0, 2, 1)
    row, column = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    with torch.no_grad():
        trunk.pos_embedding[0, 0] = 9
        trunk.pos_embedding[0, 1:] = torch.stack([row.flatten(), column.flatten()], 1)
    assert torch.equal(trunk.positions((4, 4)), trunk.pos_embedding)
    wide = trunk.positions((8, 4))
    assert wide.shape == (1, 33, 2) and (wide[0, 0] == 9).all()
    rows = wide[0, 1:, 0].view(8, 4)[:, 0]
    assert (rows.diff() > 0).all() and rows[0].item() == pytest.approx(-0.1, abs=0.2)


@pytest.mark.parametrize(("stem", "size"), [("small", 32), ("small", 24), ("imagenet", 48)])
def test_images_of_any_size_that_patches_fill(stem, size, generator):
    encoder = EncoderSettings("vit_tiny", stem).build().eval()
    features = encoder(torch.randn(2, 3, size, size, generator=generator))
    assert features.shape == (2, encoder.features) == (2, 192)
    assert not torch.allclose(features[0], features[1])


def test_a_size_that_they_do_not_fill():
    with pytest.raises(
        InputError, match=r"30x30 pixels .* patches of 4; set data\.image_size, or augment\.small_size"
    ):
        EncoderSettings("vit_tiny").build()(torch.zeros(1, 3, 30, 30))
