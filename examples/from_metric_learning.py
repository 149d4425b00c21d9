"""From pytorch-metric-learning to VarConLoss: the lines that change are shown as they were.

Both take embeddings [batch, dimensions] and integer labels. A miner goes: it chooses pairs, and here each
embedding is compared with the class references of its batch instead.

Run: python examples/from_metric_learning.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

# before: from pytorch_metric_learning import losses, miners
from varcon import VarConLoss


def main(epochs=15):
    torch.manual_seed(0)
    digits = load_digits()
    images, all_labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)  # [1797, 64]

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
    # before: loss_func = losses.SupConLoss(temperature=0.1)
    # before: mining_func = miners.MultiSimilarityMiner()
    loss_func = VarConLoss(num_classes=10, temperature=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    # new: epsilon is learned, at a far smaller rate than the weights'
    optimizer.add_param_group({"params": loss_func.parameters(), "lr": 1e-6, "weight_decay": 0.0})

    found = []
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            labels = all_labels[batch]
            embeddings = model(images[batch])
            # before: loss = loss_func(embeddings, labels, mining_func(embeddings, labels))
            loss = loss_func(embeddings, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())

    print(f"loss {found[0]:.2f} in the first step, {found[-1]:.2f} in the last")
    return found[0], found[-1]


if __name__ == "__main__":
    main()
