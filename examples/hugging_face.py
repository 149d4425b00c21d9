"""VarConLoss with an encoder from Hugging Face: a small vision transformer on handwritten digits.

Needs: pip install transformers
Run: python examples/hugging_face.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestCentroid
from torch import nn
from transformers import ViTConfig, ViTModel

from varcon import VarConLoss


def main(epochs=15):
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images).float()[:, None] / 16  # [1797, 1, 8, 8]
    labels = torch.tensor(digits.target)
    train = 1297

    # Untrained and tiny, so that nothing is downloaded. Yours: AutoModel.from_pretrained("...").
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, **sizes)
    encoder = ViTModel(config, add_pooling_layer=False)
    head = nn.Linear(config.hidden_size, 32)  # the loss sees its output; the encoder is what is kept
    loss_fn = VarConLoss(num_classes=10)
    weights = [*encoder.parameters(), *head.parameters()]
    # Epsilon wants a far smaller learning rate than the weights, and no weight decay.
    epsilon = {"params": [loss_fn.epsilon], "lr": 1e-6, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([{"params": weights}, epsilon], lr=1e-3)

    def features(pixels):
        return encoder(pixel_values=pixels).last_hidden_state.mean(1)  # over the tokens

    losses = []
    for _ in range(epochs):
        for batch in torch.randperm(train).split(64):
            views = torch.cat([images[batch] + 0.2 * torch.randn_like(images[batch]) for _ in range(2)])
            loss = loss_fn(head(features(views)), labels[batch].repeat(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    encoder.eval()
    with torch.no_grad():
        found = nn.functional.normalize(features(images), dim=1).numpy()
    accuracy = NearestCentroid().fit(found[:train], labels[:train]).score(found[train:], labels[train:])
    print(f"loss {losses[0]:.2f} in the first step, {losses[-1]:.2f} in the last")
    print(f"the nearest class mean names {accuracy:.1%} of the test digits")
    return losses[0], losses[-1], accuracy


if __name__ == "__main__":
    main()
