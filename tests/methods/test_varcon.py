import pytest
import torch

from varcon import VarConLoss
from varcon.core import Batch
from varcon.encoders import EncoderSettings
from varcon.methods.varcon import VarCon, VarConSettings


def test_it_is_the_loss_of_the_projections_of_all_views(generator):
    method = VarCon(EncoderSettings().build(), VarConSettings(), num_classes=3).eval()
    views = [torch.randn(6, 3, 8, 8, generator=generator) for _ in range(2)]
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    output = method(Batch(views, labels, torch.arange(6)))
    embeddings = torch.cat([method.head(method.encoder(view)) for view in views])
    assert embeddings.shape == (12, 128)
    terms = VarConLoss(3).explain(embeddings, torch.cat([labels, labels]))
    assert output.loss.item() == pytest.approx((terms.kl + terms.nll).mean().item(), rel=1e-5)
    for name in ("kl", "nll", "confidence", "tau2"):
        assert output.metrics[name].item() == pytest.approx(getattr(terms, name).mean().item(), rel=1e-5)
        assert not output.metrics[name].requires_grad
    assert output.metrics["epsilon"].item() == pytest.approx(0.02)


def test_without_a_head_the_features_themselves_are_compared(generator):
    settings = VarConSettings(head="none", references="learned", classes="all")
    method = VarCon(EncoderSettings().build(), settings, num_classes=5)
    views, labels = [torch.randn(4, 3, 8, 8, generator=generator)], torch.tensor([0, 1, 2, 0])
    method(Batch(views, labels, torch.arange(4))).loss.backward()
    assert method.loss.learned.shape == (5, method.encoder.features)
    assert method.loss.learned.grad.abs().sum(1).min() > 0  # of the absent classes too
    assert method.eval().head(views[0]) is views[0]


def test_epsilon_is_clamped_after_the_step():
    method = VarCon(EncoderSettings().build(), VarConSettings(), num_classes=3)
    method.loss.epsilon.data.fill_(0.3)
    method.after_step()
    assert method.loss.epsilon.item() == pytest.approx(0.08)
