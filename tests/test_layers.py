import math

import pytest
import torch
from torch import nn

from varcon.core import InputError, Progress
from varcon.layers import NormedHead, Prototypes, Queue, Teacher, rising_momentum


def test_normed_head_is_linear_norm_relu_linear(generator):
    torch.manual_seed(0)
    head = NormedHead(6, (5,), 3)
    x = torch.randn(8, 6, generator=generator)
    hidden = x @ head[0].weight.T
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), hidden.relu() @ head[3].weight.T + head[3].bias)
    assert head[0].bias is None  # the norm after it would take it away


def test_teacher_follows_as_a_moving_average(generator):
    student = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    teacher = Teacher(student, 0.5)
    before = [p.clone() for p in teacher.network.parameters()]
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    teacher.set_momentum(0.9)
    teacher.follow(student)
    for own, was, theirs in zip(teacher.network.parameters(), before, student.parameters(), strict=True):
        torch.testing.assert_close(own, 0.9 * was + 0.1 * theirs)
        assert not own.requires_grad
    x = torch.randn(8, 4, generator=generator, requires_grad=True)
    assert not teacher(x).requires_grad
    # Its statistics are its own: the forward pass above moved them, the student's did not move.
    assert teacher.network[1].num_batches_tracked == 1
    assert student[1].num_batches_tracked == 0


def test_a_momentum_out_of_range():
    with pytest.raises(InputError, match=r"method.momentum is 1.5; it must lie in \[0, 1\]"):
        Teacher(nn.Linear(2, 2), 1.5)


def test_momentum_rises_from_base_to_one():
    values = [rising_momentum(0.99, Progress(step, 100, 10)) for step in (0, 50, 100)]
    assert values == pytest.approx([0.99, 1 - 0.01 * (math.cos(math.pi / 2) + 1) / 2, 1.0])


def test_queue_is_first_in_first_out_and_filled_once():
    queue = Queue(5, 1)
    shadow = []
    for start in range(0, 24, 3):
        numbers = torch.arange(start, start + 3)
        queue.push(numbers[:, None].float(), numbers)
        shadow = [*shadow, *numbers.tolist()][-5:]
        held = queue.labels[queue.usable].tolist()
        assert sorted(held) == shadow
        assert queue.vectors[queue.usable][:, 0].tolist() == held
        assert int(queue.usable.sum()) == min(5, start + 3)


def test_queue_smaller_than_a_batch():
    with pytest.raises(InputError, match="a queue of 5 is smaller than a batch of 6"):
        Queue(5, 2).push(torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64))
    with pytest.raises(InputError, match="holds nothing"):
        Queue(0, 2)


def test_prototypes_return_to_the_sphere(generator):
    prototypes = Prototypes(7, 4)
    with torch.no_grad():
        prototypes.weight.mul_(3.0)
    prototypes.normalise()
    torch.testing.assert_close(prototypes.weight.norm(dim=1), torch.ones(7))
    x = torch.randn(5, 4, generator=generator)
    expected = torch.stack([torch.cosine_similarity(x, w[None]) for w in prototypes.weight], dim=1)
    torch.testing.assert_close(prototypes(x), expected)
