import os
import pickle
import zipfile

import pytest
import torch

from varcon.core import InputError, RunError
from varcon.encoders import EncoderSettings
from varcon.engine.checkpoint import load_checkpoint, load_weights, save_checkpoint, save_weights


def test_round_trip(tmp_path):
    path = tmp_path / "last.ckpt"
    state = {"step": 3, "weights": torch.arange(5.0), "names": ["a", "b"], "nested": {"rate": 0.1}}
    save_checkpoint(path, state)
    loaded = load_checkpoint(path)
    assert torch.equal(loaded.pop("weights"), state.pop("weights"))
    assert loaded == state
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_truncated(tmp_path, keep):
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, {"weights": torch.zeros(1000)})
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(InputError, match=r"last\.ckpt is truncated or not a checkpoint; restore"):
        load_checkpoint(path)


class Attack:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_not_run(tmp_path, zipped):
    marker, path = tmp_path / "ran", tmp_path / "last.ckpt"
    if zipped:
        torch.save({"step": 1, "weights": Attack(marker)}, path)
        assert zipfile.is_zipfile(path)
    else:
        path.write_bytes(pickle.dumps(Attack(marker), protocol=2))
    with pytest.raises(InputError, match=r"asks to run posix\.system, .* was not loaded"):
        load_checkpoint(path)
    assert not marker.exists()


def test_a_full_disk_is_told_in_plain_words(tmp_path, monkeypatch):
    def save(*_):
        raise RuntimeError(
            "[enforce fail at inline_container.cc:672] . unexpected pos 97088 vs 96984\nframe #0"
        )

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(RunError) as caught:
        save_checkpoint(tmp_path / "last.ckpt", {})
    assert str(caught.value) == (
        f"{tmp_path / 'last.ckpt'} cannot be written (the disk seems to be full); free some space and start "
        "again, training with --resume"
    )
    assert not list(tmp_path.iterdir())


def test_missing(tmp_path):
    with pytest.raises(InputError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "last.ckpt")


def test_encoder_round_trip_and_misfit(tmp_path):
    path = tmp_path / "encoder.safetensors"
    encoder, other = EncoderSettings().build(), EncoderSettings().build()
    save_weights(path, encoder.to(memory_format=torch.channels_last))
    load_weights(path, other)
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    with pytest.raises(InputError, match="do not fit its recipe"):
        load_weights(path, EncoderSettings("resnet18").build())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="cannot be read as weights"):
        load_weights(path, other)
