"""VarConLoss in a plain PyTorch loop, on handwritten digits.

Run: python examples/own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestCentroid
from torch import nn

from varcon import VarConLoss


def view(images):
    """A copy with noise of its own; your augmentation goes here."""
    return images + 0.2 * torch.randn_like(images)


def main(epochs=15):
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)  # [1797, 64]
    test_images, test_labels = images[1297:], labels[1297:]
    images, labels = images[:1297], labels[:1297]

    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
    loss_fn = VarConLoss(num_classes=10)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    # Epsilon wants a far smaller learning rate than the weights, and no weight decay.
    optimizer.add_param_group({"params": [loss_fn.epsilon], "lr": 1e-6, "weight_decay": 0.0})

    losses = []
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            embeddings = encoder(torch.cat([view(images[batch]), view(images[batch])]))  # [2N, 32]
            loss = loss_fn(embeddings, labels[batch].repeat(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    with torch.no_grad():
        known, new = (nn.functional.normalize(encoder(x), dim=1).numpy() for x in (images, test_images))
    accuracy = NearestCentroid().fit(known, labels).score(new, test_labels)
    print(f"loss {losses[0]:.2f} in the first step, {losses[-1]:.2f} in the last")
    print(f"the nearest class mean names {accuracy:.1%} of the test digits")
    return losses[0], losses[-1], accuracy


if __name__ == "__main__":
    main()
