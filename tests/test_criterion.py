import io

import pytest
import torch

from varcon import InputError, VarConLoss


def batch():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": "mean"}, "references is 'mean'; choose one of batch, leave-one-out, ema, learned"),
        ({"classes": "every"}, "classes is 'every'; choose one of present, all"),
        ({"classes": "all"}, r"VarConLoss\.references must then be 'ema' or 'learned'"),
        ({"references": "ema"}, "say how many with num_classes"),
        ({"references": "learned", "num_classes": 3}, "give num_classes and dimensions"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"temperature": 0.0}, r"^VarConLoss\.temperature is 0\.0; it must be above 0 and finite$"),
        ({"temperature": float("inf")}, r"^VarConLoss\.temperature is inf; it must be above 0 and finite$"),
        ({"temperature": 0.01}, r"epsilon is 0\.02; it must be below VarConLoss\.temperature 0\.01"),
        ({"epsilon": 0.09}, r"must lie in VarConLoss\.epsilon_range"),
        ({"epsilon": -0.01}, r"must lie in VarConLoss\.epsilon_range"),
        ({"reference_momentum": 1.0}, "must lie in"),
        ({"num_classes": 10.0}, r"num_classes is 10\.0; it must be a whole number"),
        ({"temperature": "warm"}, "temperature is 'warm'; it must be a number"),
        ({"epsilon_range": 0.1}, r"epsilon_range is 0\.1; it must be a list of 2 numbers"),
        ({"dimensions": 0}, "dimensions is 0; it must be at least 1"),
        ({"dimensions": 8.5}, r"dimensions is 8\.5; it must be a whole number"),
        ({"reference_momentum": "x"}, "reference_momentum is 'x'; it must be a number"),
        ({"normalize": "no"}, "normalize is 'no'; it must be true or false"),
        ({"learn_epsilon": 1}, "learn_epsilon is 1; it must be true or false"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        VarConLoss(**options)


def test_inputs_that_cannot_be():
    z, labels = batch()
    loss_fn = VarConLoss(3)
    bad = [
        (z[0], labels, "embeddings must be floats of shape"),
        (z.numpy(), labels, r"embeddings are of type ndarray; give a tensor: torch\.as_tensor"),
        (z, labels.tolist(), "labels are of type list; give a tensor"),
        (z, None, "labels are of type NoneType"),
        (z.view(4, 2, 4), labels[:4], r"of several views of each sample, give embeddings\.flatten\(0, 1\)"),
        (z * 1e30, labels, "embedding of sample 0 is too long for torch.float32; scale it down"),
        (z * 1e-30, labels, "embedding of sample 0 is too short to be told from 0; scale it up"),
        (z * 1e-14, labels, "embedding of sample 0 is too short to be told from 0; scale it up"),
        (z, labels.to("meta"), r"on cpu and the labels on meta; move them there: labels\.to\(embeddings"),
        (z.long(), labels, "embeddings must be floats of shape"),
        (z, labels.float(), "labels must be integers"),
        (z, labels[:4], "8 embeddings came with 4 labels; .* labels.repeat"),
        (z[:0], labels[:0], "the batch is empty"),
        (z, labels + 1, r"label 3 of sample 2 is outside \[0, 3\)"),
        (z, labels - 1, r"label -1 of sample 0 is outside \[0, 3\)"),
        (z.index_fill(0, torch.tensor(5), torch.nan), labels, "sample 5 holds NaN or infinity"),
        (z.index_fill(0, torch.tensor(6), torch.inf), labels, "sample 6 holds NaN or infinity"),
        (z.index_fill(0, torch.tensor(7), 0.0), labels, "sample 7 is zero and has no direction"),
    ]
    for embeddings, classes, message in bad:
        with pytest.raises(InputError, match=message):
            loss_fn(embeddings, classes)
    with pytest.raises(InputError, match="label -1 is negative"):
        VarConLoss()(z, labels - 1)
    with pytest.raises(InputError, match="sample 0 is zero and has no direction"):
        VarConLoss(3, normalize=False)(torch.zeros_like(z), labels)


def test_labels_need_no_order_when_classes_are_found():
    z, labels = batch()
    sparse = torch.tensor([7, 10**12, 3])[labels]
    assert VarConLoss()(z, sparse) == VarConLoss(3)(z, torch.tensor([1, 2, 0])[labels])


@pytest.mark.parametrize("num_classes", [None, 128, 256, 300])
@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_few_bits_and_in_steps_are_the_same_labels(num_classes, kind):
    z, labels = batch()
    wanted = VarConLoss(num_classes)(z, labels)
    assert VarConLoss(num_classes)(z, labels.to(kind)) == wanted
    assert VarConLoss(num_classes)(z, labels.to(kind).repeat_interleave(2)[::2]) == wanted


# torch's own tracer instantiates the function it warns against instantiating.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_where_values_are_not_looked_at_a_bad_label_makes_the_loss_nan(fresh_compiler):
    """As on a GPU: a check would stall the device."""
    z, labels = batch()
    fast = torch.compile(VarConLoss(3), backend="eager", fullgraph=True)
    assert fast(z, labels).isfinite()
    assert fast(z, labels + 1).isnan()
    zero = z.index_fill(0, torch.tensor(2), 0.0).requires_grad_()
    loss = fast(zero, labels)
    loss.backward()
    assert loss.isnan()
    assert zero.grad[2].abs().max() == 0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_one_bad_batch_leaves_the_bank_as_it_was(fresh_compiler):
    """A step of overflow is skipped by a scaler, and the next ones must not suffer from it."""
    z, labels = batch()
    loss_fn = VarConLoss(3, references="ema")
    fast = torch.compile(loss_fn, backend="eager", fullgraph=True)
    fast(z, labels)
    before, second = loss_fn.bank.clone(), torch.tensor(2)
    for bad in (torch.inf, torch.nan, 0.0, 1e30, 1e-30):
        assert fast(z.index_fill(0, second, bad), labels).isnan()
        assert torch.equal(loss_fn.bank, before)
    assert fast(z, labels.index_fill(0, second, 7)).isnan()
    assert torch.equal(loss_fn.bank, before)
    assert fast(z.flip(0), labels).isfinite()
    assert not torch.equal(loss_fn.bank, before)


def test_a_bank_is_loaded_in_the_precision_it_was_saved_in():
    z, labels = batch()
    first, second = (VarConLoss(3, references="ema") for _ in range(2))
    first(z.double(), labels)
    second.load_state_dict(first.state_dict())
    assert second.bank.dtype == torch.float64 and torch.equal(second.bank, first.bank)


def test_the_bank_can_be_moved_after_a_validation():
    z, labels = batch()
    loss_fn = VarConLoss(3, references="ema")
    with torch.inference_mode():
        loss_fn.eval()(z, labels)
        loss_fn.explain(z, labels)
    loss_fn.train()(z, labels)
    assert loss_fn.bank.abs().sum() > 0


def test_a_loss_left_on_another_device_says_where_it_belongs():
    z, labels = batch()
    with pytest.raises(InputError, match=r"on cpu and the loss is on meta; move it there: loss_fn\.to"):
        VarConLoss(3).to("meta")(z, labels)


def test_epsilon_returns_to_its_range():
    z, labels = batch()
    for temperature, upper in ((0.1, 0.08), (0.05, 0.99 * 0.05)):
        loss_fn = VarConLoss(3, temperature=temperature)
        for value, expected in ((0.5, upper), (-0.5, 0.0), (0.03, 0.03)):
            loss_fn.epsilon.data.fill_(value)
            assert loss_fn(z, labels).isfinite()
            assert loss_fn.epsilon.item() == pytest.approx(expected)


def test_fixed_epsilon_has_no_gradient():
    z, labels = batch()
    loss_fn = VarConLoss(3, learn_epsilon=False)
    z.requires_grad_()
    loss_fn(z, labels).backward()
    assert loss_fn.epsilon.grad is None
    assert z.grad.abs().max() > 0


def test_explain_touches_nothing():
    z, labels = batch()
    z.requires_grad_()
    loss_fn = VarConLoss(3, references="ema", classes="all")
    loss_fn(z, labels)
    bank = loss_fn.bank.clone()
    terms = loss_fn.explain(z, labels)
    assert not any(term.requires_grad for term in terms)
    assert torch.equal(loss_fn.bank, bank)
    assert (terms.kl + terms.nll).mean() == pytest.approx(loss_fn(z, labels).item(), rel=1e-6)


@pytest.mark.parametrize("references", ["batch", "leave-one-out", "ema", "learned"])
def test_a_temperature_for_one_call(references, generator):
    """As where it moves during training: value, gradients and terms are those of a loss that has it."""
    z = torch.randn(20, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.arange(20) % 4
    usual, other = (VarConLoss(4, t, references=references, dimensions=6).double() for t in (0.1, 0.25))
    other.load_state_dict(usual.state_dict())
    found = []
    for loss_fn, now in ((usual, torch.tensor(0.25)), (other, None)):
        loss, terms = loss_fn.with_terms(z, labels, now)
        gradients = torch.autograd.grad(loss, [z, *loss_fn.parameters()])
        found.append((loss.detach(), *terms, *gradients))
    torch.testing.assert_close(*found)
    assert usual(z, labels) != other(z, labels)


def test_a_bank_that_was_kept_in_half_precision_goes_on_in_whole(generator):
    """Also where it is read in a validation, in which nothing learns."""
    z, labels = torch.randn(20, 6, generator=generator), torch.arange(20) % 4
    first, second = (VarConLoss(4, references="ema", reference_momentum=0.999) for _ in range(2))
    first(z, labels)
    halves = {
        name: value.half() if value.is_floating_point() else value
        for name, value in first.state_dict().items()
    }
    with torch.inference_mode():
        second.load_state_dict(halves)
    assert second.bank.dtype == torch.float32
    before = second.bank.clone()
    for loss_fn in (first, second):
        loss_fn(-z, labels)
    torch.testing.assert_close(second.bank - before, first.bank - before, rtol=0, atol=2e-3)
    assert not torch.equal(second.bank, before)


@pytest.mark.parametrize("now", [0.2, torch.tensor([0.2])])
def test_a_temperature_for_one_call_is_a_tensor_of_one_number(now):
    with pytest.raises(InputError, match=r"give a tensor of one number: torch\.tensor\(0\.1\)"):
        VarConLoss(3).with_terms(*batch(), now)


def test_a_temperature_for_one_call_lies_where_the_embeddings_do():
    with pytest.raises(InputError, match=r"the embeddings are on cpu and the temperature on meta; move it"):
        VarConLoss(3).with_terms(*batch(), torch.tensor(0.1, device="meta"))


@pytest.mark.parametrize("now", [0.01, 0.02, float("nan"), float("inf")])
def test_a_temperature_for_one_call_lies_above_epsilon(now):
    with pytest.raises(InputError, match=rf"^temperature is {now:g} and epsilon 0\.02; it must be finite"):
        VarConLoss(3, epsilon=0.02).with_terms(*batch(), torch.tensor(now))


def test_unit_embeddings_need_no_normalising():
    z, labels = batch()
    unit = torch.nn.functional.normalize(z, dim=1)
    ours = VarConLoss(3, normalize=False)(unit, labels).item()
    assert ours == pytest.approx(VarConLoss(3)(z, labels).item())


def test_bank_and_epsilon_are_saved_and_restored():
    z, labels = batch()
    before = VarConLoss(3, references="ema")
    before(z, labels)
    before.epsilon.data.fill_(0.05)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    after = VarConLoss(3, references="ema")
    after.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert torch.equal(after.bank, before.bank)
    assert after.known.all()
    assert after(z, labels) == before(z, labels)


def test_what_does_not_fit_leaves_the_loss_as_it_was():
    z, labels = batch()
    other, loss_fn = VarConLoss(7, references="ema"), VarConLoss(3, references="ema")
    other(z, labels)
    with pytest.raises(RuntimeError, match=r"size mismatch for bank"):
        loss_fn.load_state_dict(other.state_dict())
    assert loss_fn.bank.shape == (3, 0)


@pytest.mark.parametrize("learn", [True, False])
def test_an_epsilon_saved_after_a_wide_step_is_loaded_within_its_range(learn):
    before, after = VarConLoss(3), VarConLoss(3, learn_epsilon=learn)
    before.epsilon.data.fill_(0.76)
    after.load_state_dict(before.state_dict())
    assert after.epsilon.item() == pytest.approx(0.08)
    assert after.explain(*batch()).tau2.min() > 0


def test_one_bank_serves_one_space():
    z, labels = batch()
    loss_fn = VarConLoss(3, references="ema")
    loss_fn(z, labels)
    with pytest.raises(InputError, match="bank holds vectors of 4 dimensions and the embeddings have 2"):
        loss_fn(z[:, :2], labels)
    with pytest.raises(InputError, match="learned references have 4 dimensions and the embeddings 2"):
        VarConLoss(3, references="learned", dimensions=4)(z[:, :2], labels)


def test_learned_references_keep_their_rows_where_most_classes_are_absent():
    z, labels = batch()
    loss_fn = VarConLoss(1000, references="learned", dimensions=4)
    loss_fn(z, 300 + labels).backward()
    moved = loss_fn.learned.grad.abs().sum(1).nonzero()[:, 0]
    assert moved.tolist() == [300, 301, 302]


def test_a_state_kept_before_the_first_batch_knows_no_class():
    """It shares the marks of what is known with the loss, but not the bank, which a batch makes anew."""
    embeddings, labels = batch()
    first, second, fresh = (VarConLoss(3, references="ema") for _ in range(3))
    state = first.state_dict()
    first(embeddings, labels)
    second.load_state_dict(state)
    assert torch.equal(second(embeddings, labels), fresh(embeddings, labels))
    assert torch.equal(second.bank, fresh.bank)
