import numpy as np
import pytest
import torch

from varcon.engine import samples
from varcon.engine.samples import BINS, SHARES, SampleRecord

CPU = torch.device("cpu")


def test_an_epoch_is_summed_up(generator):
    """Against numpy, over the images that came up: one batch more or less does not matter."""
    record = SampleRecord(100, CPU)
    values = torch.rand(90, generator=generator)
    for part in torch.arange(90).split(30):
        record.note(part, {"confidence": values[part]})
    found = record.end_epoch()["confidence"]
    exact = values.double().numpy()
    assert found["mean"] == pytest.approx(exact.mean(), rel=1e-4)
    assert found["deviation"] == pytest.approx(exact.std(), rel=1e-4)
    assert found["quantiles"] == pytest.approx(np.quantile(exact, SHARES).tolist(), rel=1e-4)
    assert sum(found["density"]) / BINS == pytest.approx(1, rel=1e-3)
    density, _ = np.histogram(exact, BINS, (0, 1), density=True)
    assert found["density"] == pytest.approx(density.tolist(), rel=1e-4)


def test_the_ends_of_the_range_count():
    record = SampleRecord(4, CPU)
    record.note(torch.arange(4), {"confidence": torch.tensor([0.0, 1.0, 1.0, 0.5])})
    density = record.end_epoch()["confidence"]["density"]
    assert density[0] == density[BINS // 2] == BINS / 4
    assert density[-1] == BINS / 2


def test_images_are_averaged_over_the_epochs_they_came_up_in(tmp_path):
    record = SampleRecord(4, CPU)
    record.note(torch.tensor([0, 1]), {"confidence": torch.tensor([0.2, 0.4])})
    record.end_epoch()
    record.note(torch.tensor([2, 1]), {"confidence": torch.tensor([0.5, 0.8])})
    record.end_epoch()
    record.write(tmp_path / "samples.npz")
    with np.load(tmp_path / "samples.npz") as found:
        np.testing.assert_allclose(found["confidence"], [0.2, 0.6, 0.5, np.nan], rtol=1e-6)


def test_an_image_that_two_processes_had_counts_with_its_mean(tmp_path, monkeypatch):
    """As a balanced epoch may draw it twice; the other process had images 1 and 2."""
    of_the_other = iter([torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([0.0, 0.9, 0.3, 0.0])])
    monkeypatch.setattr(samples, "sum_over_processes", lambda own: own + next(of_the_other))
    record = SampleRecord(4, CPU)
    record.note(torch.tensor([0, 1]), {"confidence": torch.tensor([0.2, 0.7])})
    found = record.end_epoch()["confidence"]
    assert found["mean"] == pytest.approx((0.2 + 0.8 + 0.3) / 3, rel=1e-4)
    assert [found["quantiles"][place] for place in (0, 3, 6)] == pytest.approx([0.2, 0.3, 0.8])
    record.write(tmp_path / "samples.npz")
    with np.load(tmp_path / "samples.npz") as kept:
        np.testing.assert_allclose(kept["confidence"], [0.2, 0.8, 0.3, np.nan], rtol=1e-6)


def test_it_goes_on_in_the_middle_of_an_epoch():
    record, other = SampleRecord(4, CPU), SampleRecord(4, CPU)
    record.note(torch.tensor([3]), {"confidence": torch.tensor([0.1])})
    other.restore(record.state())
    for one in (record, other):
        one.note(torch.tensor([0]), {"confidence": torch.tensor([0.3])})
    assert record.end_epoch() == other.end_epoch()
    assert record.state()["counts"]["confidence"].tolist() == [1, 0, 0, 1]


def test_a_method_that_reports_nothing_leaves_nothing(tmp_path):
    record = SampleRecord(4, CPU)
    record.note(torch.tensor([0]), {})
    assert record.end_epoch() == {}
    record.write(tmp_path / "samples.npz")
    assert not (tmp_path / "samples.npz").exists()
