import torch

from varcon.evaluations.accuracy import top_accuracy


def test_accuracy_of_distinct_scores_is_counted():
    scores = torch.tensor([[0.1, 0.9, 0.2], [0.5, 0.4, 0.3], [0.2, 0.1, 0.3]])
    top1, top5 = top_accuracy(scores, torch.tensor([1, 1, 2]))
    assert abs(top1 - 200 / 3) < 1e-9
    assert top5 == 100


def test_equal_scores_count_as_the_prediction_that_is_kept():
    """Which is argmax's, from which confusion matrices and means per class are made."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 2, (500, 40), generator=generator).float()
    labels = torch.randint(0, 40, (500,), generator=generator)
    top1, top5 = top_accuracy(scores, labels)
    assert top1 == 100 * (scores.argmax(dim=1) == labels).double().mean().item()
    assert top5 >= top1


def test_a_class_that_is_ruled_out_is_no_hit():
    assert top_accuracy(torch.full((4, 3), -torch.inf), torch.zeros(4, dtype=torch.int64)) == (0, 0)
