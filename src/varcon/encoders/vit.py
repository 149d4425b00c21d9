"""Vision transformers with torchvision's parameter names, so that weights load both ways."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.core import Encoder, InputError
from varcon.encoders.resnet import Stem

PATCH = {"small": 4, "imagenet": 16}  # pixels of a side, by stem
GRID = {"small": 8, "imagenet": 14}  # patches of a side that the position embedding is made for


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        projected = F.linear(tokens, self.in_proj_weight, self.in_proj_bias)  # [N, T, 3 width]
        query, key, value = projected.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)  # [N, heads, T, width / heads]
        return self.out_proj(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (wide, narrow):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)
        # Numbered as torchvision's, which has dropout at 2 and 4.
        self.mlp = nn.Sequential(OrderedDict([("0", wide), ("1", nn.GELU()), ("3", narrow)]))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.self_attention(self.ln_1(tokens))
        return tokens + self.mlp(self.ln_2(tokens))


class Trunk(nn.Module):
    """Position embedding, blocks and the last norm: what torchvision calls the encoder of a ViT."""

    def __init__(self, grid: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.grid = grid
        self.pos_embedding = nn.Parameter(torch.empty(1, 1 + grid * grid, width).normal_(std=0.02))
        layers = [(f"encoder_layer_{number}", Block(width, heads)) for number in range(depth)]
        self.layers = nn.Sequential(OrderedDict(layers))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        return self.ln(self.layers(tokens + self.positions(size)))

    def positions(self, size: tuple[int, int]) -> Tensor:
        """As learned, or for images of another size stretched over their patches."""
        if size == (self.grid, self.grid):
            return self.pos_embedding
        first, rest = self.pos_embedding.split([1, self.grid**2], dim=1)
        rest = rest.unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        rest = F.interpolate(rest, size, mode="bicubic", antialias=True)
        return torch.cat([first, rest.flatten(2).mT], dim=1)


class ViT(Encoder):
    """The features are the class token's. The small stem cuts images into patches of 4 pixels, for images of
    about 32; the imagenet stem into patches of 16, for about 224."""

    def __init__(self, depth: int, width: int, heads: int, stem: Stem) -> None:
        super().__init__()
        self.features, self.patch = width, PATCH[stem]
        self.conv_proj = nn.Conv2d(3, width, self.patch, stride=self.patch)
        nn.init.trunc_normal_(self.conv_proj.weight, std=(3 * self.patch**2) ** -0.5)
        assert self.conv_proj.bias is not None
        nn.init.zeros_(self.conv_proj.bias)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = Trunk(GRID[stem], depth, width, heads)

    def forward(self, images: Tensor) -> Tensor:
        if any(side % self.patch for side in images.shape[2:]):
            raise InputError(
                f"images of {images.shape[2]}x{images.shape[3]} pixels cannot be cut into patches of "
                f"{self.patch}; set data.image_size, or augment.small_size of small views, to a multiple of "
                "that, or choose the other encoder.stem"
            )
        patches = self.conv_proj(images)  # [N, width, rows, columns]
        first = self.class_token.expand(images.shape[0], -1, -1)  # len() would be a constant to torch.export
        tokens = torch.cat([first, patches.flatten(2).mT], dim=1)
        return self.encoder(tokens, (patches.shape[2], patches.shape[3]))[:, 0]


def vit_tiny(stem: Stem) -> ViT:
    return ViT(12, 192, 3, stem)


def vit_small(stem: Stem) -> ViT:
    return ViT(12, 384, 6, stem)


def vit_base(stem: Stem) -> ViT:
    return ViT(12, 768, 12, stem)
