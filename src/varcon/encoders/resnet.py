"""Residual networks with torchvision's parameter names, so that weights load both ways."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from varcon.core import Encoder
from varcon.kernels.norms import convolve_images, convolve_norm, convolve_norm_add_relu, norm_add_relu

Stem = Literal["small", "imagenet"]


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels_in, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels_in, width, stride)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = norm_add_relu(self.conv1(x), self.bn1)
        return norm_add_relu(self.conv2(out), self.bn2, *past(skip, self.downsample))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels_in, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = shortcut(channels_in, width * self.expansion, stride)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = norm_add_relu(self.conv1(x), self.bn1)
        out, _ = norm_add_relu(self.conv2(out), self.bn2)
        skip_norm = None
        if self.downsample is not None:
            skip, skip_norm = convolve_norm(skip, *self.downsample)
        return convolve_norm_add_relu(out, self.conv3, self.bn3, skip, skip_norm)


def shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels_in == channels_out:
        return None
    return nn.Sequential(
        convolution(channels_in, channels_out, 1, stride),
        nn.BatchNorm2d(channels_out),
    )


def past(skip: Tensor, downsample: nn.Sequential | None) -> tuple[Tensor, nn.BatchNorm2d | None]:
    """What the residual sum adds, in the shape of the block's output, and the norm it has yet to pass."""
    if downsample is None:
        return skip, None
    convolve, norm = downsample
    assert isinstance(norm, nn.BatchNorm2d)
    return convolve(skip), norm


class ResNet(Encoder):
    """The small stem is one 3x3 convolution of stride 1, for images of 32 to 64 pixels; the imagenet stem a
    7x7 convolution of stride 2 and a pooling, which is what fits into memory at 224.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        stem: Stem = "small",
        width: int = 64,
    ) -> None:
        super().__init__()
        if stem == "small":
            self.conv1 = convolution(3, width, 3)
            self.maxpool: nn.Module | None = None
        else:
            self.conv1 = convolution(3, width, 7, 2)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for number, depth in enumerate(depths):
            blocks = []
            for position in range(depth):
                stride = 2 if number > 0 and position == 0 else 1
                blocks.append(block(channels, width * 2**number, stride))
                channels = width * 2**number * block.expansion
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x, skip = convolve_images(images, self.conv1, self.bn1)
        if self.maxpool is not None:
            x = skip = self.maxpool(x)
        for number in range(self.stages):
            for block in self.get_submodule(f"layer{number + 1}").children():
                x, skip = block(x, skip)
        return x.mean(dim=(2, 3))


def resnet18(stem: Stem) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), stem)


def resnet34(stem: Stem) -> ResNet:
    return ResNet(BasicBlock, (3, 4, 6, 3), stem)


def resnet50(stem: Stem) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), stem)


def resnet101(stem: Stem) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 23, 3), stem)


def resnet200(stem: Stem) -> ResNet:
    return ResNet(Bottleneck, (3, 24, 36, 3), stem)
