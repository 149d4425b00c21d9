"""From a script in the manner of SupContrast to VarConLoss: three lines change; each is shown as it was.

There the loss takes features [batch, views, dimensions] of unit length and one label an image. Here every
view is a row with a label of its own. Epsilon stays fixed: such scripts set one learning rate for all
groups of parameters, and epsilon's must be far smaller.

Run: python examples/from_supcontrast.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

# before: from losses import SupConLoss
from varcon import VarConLoss


def main(epochs=15):
    torch.manual_seed(0)
    digits = load_digits()
    all_images, all_labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)  # [1797, 64]

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
    # before: criterion = SupConLoss(temperature=0.1)
    criterion = VarConLoss(num_classes=10, temperature=0.1, learn_epsilon=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    losses = []
    for _ in range(epochs):
        for batch in torch.randperm(len(all_images)).split(128):
            labels = all_labels[batch]
            views = [all_images[batch] + 0.2 * torch.randn(len(batch), 64) for _ in range(2)]
            features = torch.stack([nn.functional.normalize(model(x), dim=1) for x in views], dim=1)
            # before: loss = criterion(features, labels)
            loss = criterion(features.flatten(0, 1), labels.repeat_interleave(features.shape[1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    print(f"loss {losses[0]:.2f} in the first step, {losses[-1]:.2f} in the last")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
