from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from varcon import Recipe, VarConLoss, run
from varcon.core import Batch, Progress
from varcon.encoders import EncoderSettings
from varcon.methods.varcon import VarCon, VarConSettings
from varcon.recipe import TrainSettings


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


def test_learned_references_of_features_are_its_classifier(generator):
    """By p itself: the posterior that the loss goes by."""
    settings = VarConSettings(head="none", references="learned", classes="all", temperature=0.2)
    method = VarCon(EncoderSettings().build(), settings, num_classes=5)
    assert method.classifier.weight is method.loss.learned
    assert [name for name, _ in method.named_parameters() if "learned" in name or "classifier" in name] == [
        "loss.learned"  # once for the optimizer
    ]
    features, labels = torch.randn(7, method.encoder.features, generator=generator), torch.arange(7) % 5
    posterior = method.classifier(features).softmax(1)[torch.arange(7), labels]
    torch.testing.assert_close(posterior, method.loss.explain(features, labels).confidence)
    for other in (
        {"classifier_weight": 1.0},
        {"head": "plain"},
        {"references": "ema"},
    ):
        method = VarCon(EncoderSettings().build(), replace(settings, **other), num_classes=5)
        assert isinstance(method.classifier, nn.Linear) == ("classifier_weight" in other)
        assert (method.classifier is None) == ("classifier_weight" not in other)


def test_its_references_are_judged_as_its_own_classifier(tmp_path):
    method = VarConSettings(head="none", references="learned", classes="all")
    train = TrainSettings(epochs=8, batch_size=128, device="cpu", warmup_epochs=0, learning_rate=0.1)
    for average in (0.0, 0.9):
        folder = tmp_path / str(average)
        run.train(Recipe(method=method, train=replace(train, average=average)), folder)
        found = run.evaluate(folder, only=("knn", "classifier", "calibration"))
        assert found["classifier"].scores["top1"] > 85
        assert abs(found["classifier"].scores["top1"] - found["knn"].scores["top1"]) < 8
        assert 0 < found["classifier-calibration"].scores["ece"] < 20
    last, mean = (load_file(tmp_path / name / "classifier.safetensors") for name in ("0.0", "0.9"))
    assert last["temperature"] == mean["temperature"] == torch.tensor(0.1)
    assert not torch.equal(last["weight"], mean["weight"])


@pytest.mark.parametrize("references", ["batch", "learned"])
def test_a_temperature_that_moves_evenly_from_the_first_step_to_the_last(references, generator):
    settings = VarConSettings(0.05, start_temperature=0.2, head="none", references=references)
    method = VarCon(EncoderSettings().build(), settings, num_classes=3).eval()
    views, labels = [torch.randn(6, 3, 8, 8, generator=generator)], torch.arange(6) % 3
    batch = Batch(views, labels, torch.arange(6))
    for step, tau1 in ((0, 0.2), (2, 0.15), (6, 0.05)):
        method.before_step(Progress(step, total_steps=7, steps_per_epoch=7))
        output = method(batch)
        features = method.encoder(views[0])
        own = VarConLoss(3, tau1, references=references, dimensions=features.shape[1])
        if references == "learned":
            own.learned = method.loss.learned
        assert output.loss.item() == pytest.approx(own(features, labels).item(), rel=1e-5)
        assert output.metrics["tau1"].item() == pytest.approx(tau1)
    assert "tau1" not in VarCon(EncoderSettings().build(), VarConSettings(), 3)(batch).metrics


@pytest.mark.parametrize(("first", "last"), [(0.06, 0.1), (0.1, 0.06)])
def test_a_learned_epsilon_stays_below_a_temperature_that_moves(first, last):
    settings = VarConSettings(last, start_temperature=first)
    method = VarCon(EncoderSettings().build(), settings, num_classes=3)
    method.loss.epsilon.data.fill_(1.0)
    method.after_step()
    assert method.loss.epsilon.item() == pytest.approx(0.99 * 0.06)


def test_one_step_is_the_first_and_the_last():
    method = VarCon(EncoderSettings().build(), VarConSettings(start_temperature=0.3), num_classes=3)
    method.before_step(Progress(0, total_steps=1, steps_per_epoch=1))
    assert method.tau1.item() == pytest.approx(0.3)


def test_epsilon_is_clamped_after_the_step():
    method = VarCon(EncoderSettings().build(), VarConSettings(), num_classes=3)
    method.loss.epsilon.data.fill_(0.3)
    method.after_step()
    assert method.loss.epsilon.item() == pytest.approx(0.08)
