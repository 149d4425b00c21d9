"""Ten steps of training, alone or as one of two gloo processes that tests start."""

import os

import torch
from torch import nn

from varcon import VarConLoss, distributed

SAMPLES, DIMENSIONS, CLASSES = 24, 6, 5
MODES = [
    {"num_classes": CLASSES},
    {"num_classes": None},
    {"num_classes": CLASSES, "references": "leave-one-out"},
    {"num_classes": CLASSES, "references": "ema", "classes": "all"},
    {"num_classes": CLASSES, "references": "learned", "dimensions": DIMENSIONS},
]


class Small(nn.Module):
    """An encoder without batch statistics, which are the only thing that a split of the batch changes."""

    def __init__(self, options):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(DIMENSIONS, 16), nn.Tanh(), nn.Linear(16, DIMENSIONS))
        self.loss = VarConLoss(**options)

    def forward(self, batch):
        return self.loss(self.body(batch[0]), batch[1])


def batches(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, DIMENSIONS, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def ten_steps(options, rank, cut):
    """The first step's gradients and the parameters after ten; `cut` is where the batch is divided."""
    module = Small(options).double()
    model = distributed.synchronised(module, torch.device("cpu"))
    optimizer = torch.optim.SGD(
        [
            {"params": [p for name, p in module.named_parameters() if name != "loss.epsilon"]},
            {"params": [module.loss.epsilon], "lr": 1e-4},
        ],
        lr=0.1,
        momentum=0.9,
    )
    first = {}
    for step in range(10):
        x, labels = batches(step)
        if cut is not None:
            part = slice(0, cut) if rank == 0 else slice(cut, None)
            x, labels = x[part], labels[part]
        model((x, labels)).backward()
        if step == 0:
            first = {name: p.grad.clone() for name, p in module.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return first, {name: p.detach().clone() for name, p in module.named_parameters()}


def worker(rank, folder, cut):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    for number, options in enumerate(MODES):
        torch.save(ten_steps(options, rank, cut), f"{folder}/{number}-{rank}.pt")
    torch.distributed.destroy_process_group()
