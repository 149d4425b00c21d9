import pytest
import torch

from varcon.kernels import class_attention


@pytest.mark.parametrize(("classes", "present"), [(7, 7), (7, 3), (40, 25), (5, 1)])
def test_equals_the_masked_softmax(classes, present, generator, monkeypatch):
    monkeypatch.setattr(class_attention, "CLASSES_IN_FLIGHT", 6)
    monkeypatch.setattr(class_attention, "SCORES_IN_FLIGHT", 50)
    queries = torch.randn(33, 5, dtype=torch.float64, generator=generator)
    references = torch.randn(classes, 5, dtype=torch.float64, generator=generator)
    there = torch.zeros(classes, dtype=torch.bool)
    there[torch.randperm(classes, generator=generator)[:present]] = True
    labels = there.nonzero()[:, 0][torch.randint(0, present, (33,), generator=generator)]
    mean, log_sum = class_attention.attend_other_classes(queries, references, there, labels, 0.1)
    for i in range(33):
        others = [k for k in range(classes) if there[k] and k != labels[i]]
        if not others:
            assert log_sum[i] == -torch.inf
            assert mean[i].abs().max() == 0
            continue
        scores = references[others] @ queries[i] / 0.1
        torch.testing.assert_close(log_sum[i], scores.logsumexp(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mean[i], scores.softmax(0) @ references[others], rtol=1e-12, atol=1e-12)
    of_a_tensor = torch.tensor(0.1, dtype=torch.float64)  # as one that moves during training
    again = class_attention.attend_other_classes(queries, references, there, labels, of_a_tensor)
    torch.testing.assert_close(again, (mean, log_sum), rtol=1e-12, atol=1e-12)
