"""The model card: what an export holds, how it was made and how to use it, written from the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from varcon import runs
from varcon.deploy.config import Config
from varcon.encoders.vit import GRID, PATCH, Block, ViT

IN_TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101")
IN_TIMM = {  # parts of the names of a vision transformer's weights, torchvision's and timm's
    "class_token": "cls_token",
    "conv_proj": "patch_embed.proj",
    "encoder.pos_embedding": "pos_embed",
    "encoder.layers.encoder_layer_": "blocks.",
    "encoder.ln": "norm",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "self_attention.in_proj_": "attn.qkv.",
    "self_attention.out_proj": "attn.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
}
SMALL_STEM = """\
encoder.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)  # the stem for small images
encoder.maxpool = torch.nn.Identity()
"""


def card(run: Path, encoder: nn.Module, config: Config, to: str) -> str:
    """The README of an export."""
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    recipe = config.origin["recipe"]
    training = ("epochs", "batch_size", "learning_rate", "seed")
    settings = {
        **{f"method.{name}": value for name, value in recipe["method"].items() if name != "name"},
        **{f"train.{name}": recipe["train"][name] for name in training},
        "augment.policy": recipe["augment"]["policy"],
    }
    template = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        name=run.resolve().name,
        config=config,
        steps=config.to_dict()["preprocessing"]["steps"],
        recipe=recipe,
        settings=settings,
        scores=scores_of(run),
        to=to,
        origin=config.origin,
        code=code_for(encoder, config),
        code_for_timm=code_for_timm(encoder, config),
    )


def code_for(encoder: nn.Module, config: Config) -> str:
    """Python that makes the network without varcon, ready for its weights; empty where none would."""
    name, stem = config.encoder.name, config.encoder.stem
    if name in IN_TORCHVISION:
        lines = f"""\
from torchvision.models import {name}

encoder = {name}()
encoder.fc = torch.nn.Identity()  # as in timm.create_model("{name}", num_classes=0)
"""
        return lines + (SMALL_STEM if stem == "small" else "")
    if name == "resnet200":
        lines = f"""\
from timm import create_model

encoder = create_model("{name}", num_classes=0)
"""
        return lines + (SMALL_STEM if stem == "small" else "")
    # A position embedding that is stretched over the image has another size than torchvision's.
    if isinstance(encoder, ViT) and config.image_size == PATCH[stem] * GRID[stem]:
        depth, block = len(encoder.encoder.layers), encoder.encoder.layers[0]
        assert isinstance(block, Block)
        return f"""\
from torchvision.models import VisionTransformer

encoder = VisionTransformer(
    image_size={config.image_size},
    patch_size={PATCH[stem]},
    num_layers={depth},
    num_heads={block.self_attention.heads},
    hidden_dim={config.features},
    mlp_dim={4 * config.features},
)
encoder.heads = torch.nn.Identity()
"""
    return ""


def code_for_timm(encoder: nn.Module, config: Config) -> str:
    """The same with timm, where that has other names than torchvision: in vision transformers."""
    stem = config.encoder.stem
    if not isinstance(encoder, ViT) or config.image_size != PATCH[stem] * GRID[stem]:
        return ""
    names = "".join(f'    "{ours}": "{theirs}",\n' for ours, theirs in IN_TIMM.items())
    return f"""\
from safetensors.torch import load_file
from timm import create_model

in_timm = {{
{names}}}
weights = load_file("model.safetensors")
for ours, theirs in in_timm.items():
    weights = {{name.replace(ours, theirs): weight for name, weight in weights.items()}}
encoder = create_model(
    "{config.encoder.name}_patch16_224", img_size={config.image_size}, patch_size={PATCH[stem]}, num_classes=0
)
encoder.load_state_dict(weights)
encoder.eval()
"""


# A rank is not in percent; what is fine-tuned is another encoder, and its test images may be of other data;
# the discriminants are what the model predicts by: they and their calibration stand before these.
NOT_AMONG_OTHERS = ("rank", "finetune", "discriminant", "calibration")


def scores_of(run: Path) -> dict[str, float]:
    """Those in percent, of the run's test images, that `varcon evaluate` has left, by title."""
    scores: dict[str, float] = {}
    for title, (name, score) in runs.COLUMNS.items():
        path = run / "findings" / f"{name}.json"
        if title not in runs.FRACTIONS and name not in NOT_AMONG_OTHERS and path.exists():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["scores"]
            scores |= {title: found[score]} if score in found else {}
    return scores
