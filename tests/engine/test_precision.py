"""Casting together against autocast, which casts one by one."""

import copy

import pytest
import torch
from torch import nn

from varcon.core import Batch
from varcon.encoders import EncoderSettings
from varcon.engine.precision import CastTogether, cast, computes_in_bf16, working_type
from varcon.methods import METHODS


@pytest.mark.parametrize("name", ["varcon", "moco"], ids=["alone", "with a teacher"])
def test_the_same_as_autocast_to_the_last_bit(name, generator):
    method = METHODS[name](EncoderSettings("small").build(), METHODS[name].Settings(), 3)
    method.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(method)
    views = [torch.randn(6, 3, 8, 8, generator=generator) for _ in range(2)]
    batch = Batch(views, torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(6))
    losses = []
    for model, parameters in ((twin, twin), (CastTogether(method, torch.bfloat16), method)):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(batch)
        output.loss.backward()
        losses.append(output.loss.item())
        assert all(weight.dtype == torch.float32 for weight in parameters.parameters())
    assert losses[0] == losses[1]
    for (place, ours), theirs in zip(method.named_parameters(), twin.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, place
        else:
            assert torch.equal(ours.grad, theirs.grad), place
            assert ours.grad.dtype == torch.float32


def test_what_is_cast():
    """Convolutions that learn, and nothing else."""
    method = METHODS["moco"](EncoderSettings("small").build(), METHODS["moco"].Settings(), 3)
    learning = sum(isinstance(layer, nn.Conv2d) and layer.weight.requires_grad for layer in method.modules())
    names = list(CastTogether(method, torch.bfloat16).weights)
    assert len(names) == learning > 0
    assert all(name.startswith("encoder.") for name in names)


def test_layout_stays():
    weight = torch.randn(4, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    (short,) = cast([weight], torch.bfloat16)
    assert short.stride() == weight.stride()
    assert torch.equal(short, weight.bfloat16())
    assert cast([], torch.bfloat16) == []


def test_a_layer_that_is_not_used_has_no_gradient():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

        def forward(self, images):
            return self.used(images)

    model = TwoHeads()
    with torch.autocast("cpu", torch.bfloat16):
        CastTogether(model, torch.bfloat16)(torch.ones(1, 1, 2, 2)).sum().backward()
    assert model.used.weight.grad.item() == 4
    assert model.idle.weight.grad is None


def test_auto_is_bf16_where_the_processor_has_instructions_for_it(monkeypatch):
    """Those of AVX512 alone convert to and fro, and are slower than float32."""
    device = torch.device("cpu")
    for names, expected in (
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, torch.float32),
        ({"architecture": "aarch64"}, torch.float32),
    ):
        computes_in_bf16.cache_clear()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda names=names: names, raising=False)
        assert working_type("auto", device) == expected
    computes_in_bf16.cache_clear()
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # an older torch
    assert working_type("auto", device) == torch.float32
    computes_in_bf16.cache_clear()


def test_what_is_asked_for_by_name_is_taken():
    found = [working_type(name, torch.device("cpu")) for name in ("fp32", "bf16", "fp16")]
    assert found == [torch.float32, torch.bfloat16, torch.float16]
