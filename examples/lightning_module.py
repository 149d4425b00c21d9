"""VarConLoss in a Lightning module, on handwritten digits.

Needs: pip install lightning
Run: python examples/lightning_module.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestCentroid
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from varcon import VarConLoss


class Contrastive(lightning.LightningModule):
    def __init__(self, num_classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
        self.loss_fn = VarConLoss(num_classes)  # part of the module: moved, saved and synchronised with it
        self.losses = []

    def forward(self, images):
        return nn.functional.normalize(self.encoder(images), dim=1)

    def training_step(self, batch, _):
        images, labels = batch
        views = torch.cat([images + 0.2 * torch.randn_like(images) for _ in range(2)])
        loss = self.loss_fn(self.encoder(views), labels.repeat(2))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        # Epsilon wants a far smaller learning rate than the weights, and no weight decay.
        epsilon = {"params": [self.loss_fn.epsilon], "lr": 1e-6, "weight_decay": 0.0}
        weights = {"params": self.encoder.parameters()}
        return torch.optim.SGD([weights, epsilon], lr=0.05, momentum=0.9, weight_decay=1e-4)


def main(epochs=15):
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)  # [1797, 64]
    loader = DataLoader(TensorDataset(images[:1297], labels[:1297]), batch_size=128, shuffle=True)
    module = Contrastive(num_classes=10)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=epochs, enable_progress_bar=False, **quiet)
    trainer.fit(module, loader)

    with torch.no_grad():
        features = module(images).numpy()
    accuracy = NearestCentroid().fit(features[:1297], labels[:1297]).score(features[1297:], labels[1297:])
    print(f"loss {module.losses[0]:.2f} in the first step, {module.losses[-1]:.2f} in the last")
    print(f"the nearest class mean names {accuracy:.1%} of the test digits")
    return module.losses[0], module.losses[-1], accuracy


if __name__ == "__main__":
    main()
