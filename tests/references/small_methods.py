"""Every method at a size for tests, alone or as one of two gloo processes that tests start."""

import dataclasses

import torch
from torch import nn

from varcon import distributed
from varcon.core import Batch, Encoder, Progress
from varcon.methods import METHODS

CLASSES, SAMPLES = 3, 12
# What a method's own defaults make too large for a test; all else stays as it is.
SMALLER = {"queue": 24, "hidden": 16, "dimensions": 8, "prototypes": 6}
# What two processes train: every method as it is, and the settings that exchange something else.
CASES = [(name, {}) for name in METHODS] + [
    ("supcon", {"form": "in"}),
    ("ce", {"loss": "adafocal"}),  # gathers its confidences
    ("ce", {"mixup": 0.4, "label_smoothing": 0.1}),  # draws alike in both, and pairs the same images
    ("swav", {"queue_from": 0}),  # shares out the queue, full after two of the four steps
    ("varcon", {"references": "ema", "classes": "all"}),
    ("varcon", {"start_temperature": 0.3}),
]


class TinyEncoder(Encoder):
    """Without batch statistics, which are the one thing that a split of the batch changes."""

    features = 10

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 4 * 4, 16), nn.Tanh(), nn.Linear(16, self.features)
        )

    def forward(self, images):
        return self.body(nn.functional.adaptive_avg_pool2d(images, 4))


def build(name, batch_norm=True, **settings):
    kind = METHODS[name].Settings
    fields = {field.name for field in dataclasses.fields(kind)}
    settings = {key: value for key, value in SMALLER.items() if key in fields} | settings
    torch.manual_seed(0)
    method = METHODS[name](TinyEncoder(), kind(**settings), CLASSES)
    if not batch_norm:
        for module in list(method.modules()):
            for child, layer in list(module.named_children()):
                if isinstance(layer, nn.BatchNorm1d):
                    setattr(module, child, nn.Identity())
    return method


def draw_batch(step, views=2):
    generator = torch.Generator().manual_seed(step)
    images = [torch.randn(SAMPLES, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(views)]
    return Batch(images, torch.arange(SAMPLES) % CLASSES, torch.arange(SAMPLES))


def part_of(batch, rank):
    half = slice(0, SAMPLES // 2) if rank == 0 else slice(SAMPLES // 2, None)
    return Batch([view[half] for view in batch.views], batch.labels[half], batch.indices[half])


def train(name, settings, rank, divided, steps=4):
    """The gradients of each step and the state at the end."""
    method = build(name, batch_norm=False, **settings).double()
    model = distributed.synchronised(method, torch.device("cpu"))
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    gradients = []
    for step in range(steps):
        batch = draw_batch(step)
        method.before_step(Progress(step, steps, 2))
        model(part_of(batch, rank) if divided else batch).loss.backward()
        gradients.append({n: p.grad.clone() for n, p in method.named_parameters() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
    return gradients, {n: v.clone() for n, v in method.state_dict().items()}


def worker(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    for number, (name, settings) in enumerate(CASES):
        torch.save(train(name, settings, rank, divided=True), f"{folder}/{number}-{rank}.pt")
    torch.distributed.destroy_process_group()
