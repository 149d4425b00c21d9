"""Where a training step's time goes on a GPU: `python benchmarks/breakdown.py`.

Kernels by kind, with the rate at which the passes over activations move memory. A convolution's time is
cuDNN's; a BatchNorm, its ReLU and its residual sum must read and write activations a fixed number of times,
which at the rate of a plain copy, measured in the same run, takes the time in the last column. Nothing but
fewer passes, or other convolutions, could make such a step faster.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from step import made_up, training_step
from timing import surroundings, time_on_gpu, write_table
from torch import nn

from varcon.encoders.resnet import BasicBlock, Bottleneck
from varcon.engine.step import measured_convolutions
from varcon.kernels.norms import POINTWISE_CHANNELS
from varcon.run import build_method

STEPS = 5
KINDS = {  # words in kernels' names, the first that fits
    "optimizer and casts": ("multi_tensor", "foreach", "FusedSgd"),
    "1x1 convolution or stem, with its norm": (
        "_neighbours_kernel",
        "_products_kernel",
        "_forward_kernel",
        "_backward_kernel",
        "_past_relu_kernel",
        "_weights_kernel",
        "_constant_kernel",
        "_known_statistics_kernel",
        "_spread_kernel",
    ),
    "BatchNorm, ReLU, residual sum": (
        "_moments_kernel",
        "_statistics_kernel",
        "_apply_kernel",
        "_gradient_sums_kernel",
        "_parameter_gradients_kernel",
        "_gradient_kernel",
    ),
    "augmentation": ("_sim_kernel", "distribution"),
    "loss": ("loss_and_gradient", "make_references", "add_to_classes", "sum_sorted_classes"),
    "convolution": ("conv", "xmma", "cutlass", "cudnn", "gemm", "nvjet", "wgrad", "dgrad", "implicit"),
}
# Reads and writes of a norm's activations: two and one forward, four and one back. With a residual sum one
# read more forward; back one write more, and one read where the block's input has two gradients.
PASSES, PASSES_WITH_SUM = 8, 11
# Of a 1x1 convolution with its norm, over its result and over its input; without a residual sum fewer.
WIDE_WITH_SUM, WIDE, NARROW = 7, 3, 5
# Of a stem's convolution: its result is written, its two gradients are read; what surrounds each pixel, half
# as much, is written once and read three times.
STEM = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--encoders", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--batch", type=int, default=512, help="images; each has two views")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here to look at")
    lines = [
        "| encoder | kind | kernels | ms | share | GB moved | ms at a copy's rate |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    rate = copy_rate()
    for name in arguments.encoders:
        with measured_convolutions():
            kinds = kernels_by_kind(name, arguments.batch)
        total = sum(milliseconds for _, milliseconds in kinds.values())
        bytes_of = activation_bytes(name, arguments.batch)
        for kind, (count, milliseconds) in sorted(kinds.items(), key=lambda item: -item[1][1]):
            moved = bytes_of.get(kind)
            cells = f"{moved / 1e9:.1f} | {moved / rate * 1e3:.2f}" if moved else " | "
            share = f"{milliseconds / total:.1%}"
            lines.append(f"| {name} | {kind} | {count:.0f} | {milliseconds:.2f} | {share} | {cells} |")
        lines.append(f"| {name} | all | | {total:.2f} | | | |")
    head = (
        f"{arguments.batch} images of 32x32 in two views, bf16; {surroundings('cuda', 'triton')}; "
        f"a plain copy moves {rate / 1e12:.2f} TB/s; mean of {STEPS} steps"
    )
    write_table("Where a training step's time goes", head, lines, arguments.out)
    return 0


def copy_rate() -> float:
    """Bytes a second, read and written, of a copy much larger than the cache."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / time_on_gpu(lambda: target.copy_(source), 20)


def kernels_by_kind(name: str, batch: int) -> dict[str, tuple[float, float]]:
    """How many a step, and their milliseconds."""
    device = torch.device("cuda")
    data, recipe = made_up(name, "bf16", batch, device)
    step = training_step(recipe, data, device)
    for _ in range(8):  # among them the capture
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in profile.key_averages():
        if event.device_time_total:
            kind = next((k for k, words in KINDS.items() if any(w in event.key for w in words)), "other")
            count, milliseconds = found[kind]
            found[kind] = (count + event.count / STEPS, milliseconds + event.device_time_total / 1e3 / STEPS)
    return dict(found)


def activation_bytes(name: str, batch: int) -> dict[str, int]:
    """What the passes over activations move in one step, in bf16, by kind."""
    data, recipe = made_up(name, "bf16", batch, torch.device("cpu"))
    encoder = build_method(recipe, data).encoder
    _, pointwise, norm, *_ = KINDS
    numbers: dict[str, float] = defaultdict(float)

    def count(kind: str, passes: float) -> Callable[..., None]:
        def hook(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
            numbers[kind] += passes * output[0].numel()

        return hook

    for layer in encoder.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(count(norm, PASSES))
    encoder.get_submodule("bn1").register_forward_hook(count(pointwise, STEM))
    encoder.get_submodule("bn1").register_forward_hook(count(norm, -PASSES))
    for block in encoder.modules():
        if isinstance(block, BasicBlock):
            block.bn2.register_forward_hook(count(norm, PASSES_WITH_SUM - PASSES))
        elif isinstance(block, Bottleneck):
            pairs = [(block.conv3, block.bn3, WIDE_WITH_SUM)]
            if block.downsample is not None:
                pairs.append((*block.downsample, WIDE))
            if any(convolution.in_channels > POINTWISE_CHANNELS for convolution, _, _ in pairs):
                block.bn3.register_forward_hook(count(norm, PASSES_WITH_SUM - PASSES))
                continue
            for convolution, layer, wide in pairs:
                passes = wide + NARROW * convolution.in_channels / convolution.out_channels
                layer.register_forward_hook(count(pointwise, passes))
                layer.register_forward_hook(count(norm, -PASSES))
    with torch.no_grad():
        encoder(torch.zeros(2, 3, 32, 32))
    return {kind: int(2 * 2 * batch * total) for kind, total in numbers.items()}


if __name__ == "__main__":
    sys.exit(main())
