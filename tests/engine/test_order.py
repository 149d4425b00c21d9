import torch

from varcon.engine.order import batches, epoch_order
from varcon.recipe import TrainSettings


def test_order_is_a_permutation_of_its_own_for_each_seed_and_epoch():
    orders = [epoch_order(torch.zeros(50), seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_a_balanced_epoch_has_as_many_of_each_class():
    """103 draws of classes with 90, 10, 2 and 1 images; of a class all come up before one comes again."""
    labels = torch.tensor([0] * 90 + [1] * 10 + [2] * 2 + [4])
    orders = [epoch_order(labels, 0, epoch, balanced=True) for epoch in range(4)]
    for order in orders:
        assert len(order) == 103
        assert sorted(labels[order].bincount().tolist()) == [0, 25, 26, 26, 26]
        times = order.bincount(minlength=103)
        for label in (0, 1, 2):
            own = times[labels == label]
            assert own.max() - own.min() <= 1
    assert len({tuple(order.tolist()) for order in orders}) == 4
    seen = torch.cat(orders)[labels[torch.cat(orders)] == 0].unique()
    assert len(seen) > 55  # other ones of the large class in each epoch
    assert torch.equal(epoch_order(labels, 0, 1, balanced=True), orders[1])


def test_batches_go_on_from_any_step_as_they_would_have_come():
    """11 images in batches of 4: two steps an epoch, and the rest of an epoch is left out."""
    labels, settings = torch.zeros(11), TrainSettings(batch_size=4, seed=3)
    expected = [epoch_order(labels, 3, epoch)[begin:][:4] for epoch in range(3) for begin in (0, 4)]
    for first in range(6):
        found = batches(labels, settings, first)
        for indices in expected[first:]:
            assert torch.equal(next(found), indices)
