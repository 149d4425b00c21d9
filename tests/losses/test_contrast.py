import math

import pytest
import torch
import torch.nn.functional as F
from references.selfsupervised import assert_half_is_near, assert_same, slow_info_nce, slow_nt_xent
from torch._subclasses.fake_tensor import FakeTensorMode

from varcon.losses.contrast import info_nce, nt_xent


def draw(samples, dimensions, generator):
    vectors = torch.randn(samples, dimensions, dtype=torch.float64, generator=generator)
    return F.normalize(vectors, dim=1).requires_grad_()


def two_views(samples):
    """Where each embedding and its other view lie when the second views follow the first."""
    itself = torch.arange(2 * samples)
    return itself, itself.roll(samples)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize(("samples", "dimensions"), [(1, 3), (2, 4), (5, 3), (8, 6)])
def test_nt_xent_equals_the_definition(samples, dimensions, temperature, generator):
    contrast = draw(2 * samples, dimensions, generator)
    itself, positive = two_views(samples)
    ours = nt_xent(contrast, contrast, itself, positive, temperature)
    theirs = slow_nt_xent(contrast, contrast, itself, positive, temperature)
    assert_same(ours, theirs, contrast)


def test_nt_xent_of_some_anchors_is_their_part_of_the_whole(generator):
    contrast = draw(12, 5, generator)
    itself, positive = two_views(6)
    whole = nt_xent(contrast, contrast, itself, positive, 0.2)
    some = torch.tensor([7, 0, 11])
    anchors = contrast[some].detach().requires_grad_()
    part = nt_xent(anchors, contrast, itself[some], positive[some], 0.2)
    torch.testing.assert_close(part, whole[some], rtol=0, atol=1e-13)
    assert_same(part, slow_nt_xent(anchors, contrast, itself[some], positive[some], 0.2), anchors, contrast)


def test_nt_xent_by_hand():
    """Two samples of two equal views each: one positive at cosine 1, two negatives at cosine 0."""
    views = torch.eye(2).repeat(2, 1).double()
    expected = math.log(math.e**2 + 2) - 2
    torch.testing.assert_close(nt_xent(views, views, *two_views(2), 0.5).tolist(), [expected] * 4)


def test_nt_xent_of_a_single_sample_costs_nothing(generator):
    contrast = draw(2, 4, generator)
    loss = nt_xent(contrast, contrast, *two_views(1), 0.1)
    assert loss.tolist() == [0, 0]
    assert torch.autograd.grad(loss.sum(), contrast)[0].abs().max() == 0


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize(("samples", "dimensions", "entries"), [(2, 4, 3), (6, 5, 16), (1, 2, 9), (3, 4, 0)])
def test_info_nce_equals_the_definition(samples, dimensions, entries, share, generator):
    queries, keys, queue = (draw(n, dimensions, generator) for n in (samples, samples, entries))
    usable = torch.rand(entries, generator=generator) < share
    arguments = (queries, keys, queue, usable, 0.2)
    assert_same(info_nce(*arguments), slow_info_nce(*arguments), queries)


def test_info_nce_without_usable_entries_costs_nothing(generator):
    queries, keys, queue = (draw(n, 4, generator) for n in (5, 5, 8))
    loss = info_nce(queries, keys, queue, torch.zeros(8, dtype=torch.bool), 0.2)
    assert loss.abs().max() == 0
    assert torch.autograd.grad(loss.sum(), queries)[0].abs().max() == 0


def test_unusable_entries_may_hold_anything(generator):
    queries, keys, queue = (draw(n, 4, generator) for n in (5, 5, 8))
    usable = torch.arange(8) < 5
    spoilt = queue.detach().index_fill(0, torch.tensor([5]), torch.nan)
    spoilt[6] = torch.inf
    assert_same(
        info_nce(queries, keys, spoilt, usable, 0.2),
        slow_info_nce(queries, keys, queue, usable, 0.2),
        queries,
    )


def test_keys_and_queue_are_constants(generator):
    queries, keys, queue = (draw(n, 4, generator) for n in (5, 5, 8))
    info_nce(queries, keys, queue, torch.ones(8, dtype=torch.bool), 0.2).sum().backward()
    assert queries.grad.abs().max() > 0
    assert keys.grad is None
    assert queue.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float64(dtype, generator):
    contrast, queue = draw(128, 64, generator), draw(256, 64, generator)
    itself, positive = two_views(64)
    assert_half_is_near(lambda z: nt_xent(z, z, itself, positive, 0.1), dtype, contrast)
    usable = torch.arange(256) < 200
    assert_half_is_near(
        lambda q, k, rest: info_nce(q, k, rest, usable, 0.2), dtype, contrast[:64], contrast[64:], queue
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sharp_temperatures_are_finite(dtype):
    views = torch.cat([torch.eye(4), -torch.eye(4)]).to(dtype).requires_grad_()
    usable = torch.tensor([True, False, True, False])
    with torch.autocast("cpu", torch.bfloat16):
        losses = (
            nt_xent(views, views, *two_views(4), 0.001),
            info_nce(views[:4], views[4:], views[:4], usable, 0.001),
        )
    for loss in losses:
        assert loss.isfinite().all()
        assert torch.autograd.grad(loss.sum(), views, retain_graph=True)[0].isfinite().all()


def test_no_value_is_looked_at():
    with FakeTensorMode():
        z, usable = torch.randn(8, 4, requires_grad=True), torch.ones(8, dtype=torch.bool)
        loss = nt_xent(z, z, *two_views(4), 0.1) + info_nce(z, z, z, usable, 0.1)
        loss.sum().backward()
        assert loss.shape == (8,)
        assert z.grad.shape == (8, 4)
