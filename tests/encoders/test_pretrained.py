"""First weights from files as others write them; torch's own state_dict is the oracle."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from varcon import run
from varcon.core import InputError
from varcon.data import load
from varcon.encoders import EncoderSettings
from varcon.encoders.pretrained import start_from
from varcon.methods.byol import BYOLSettings
from varcon.recipe import DIGITS


@pytest.fixture
def trained():
    """Of torchvision's kind: with a last layer, and statistics that are not the first ones."""
    encoder = EncoderSettings("resnet18", "imagenet").build()
    encoder.bn1.running_mean.normal_()
    encoder.fc = nn.Linear(512, 1000)
    return encoder


def assert_same(encoder, state):
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("form", ["torch", "safetensors", "data parallel", "checkpoint", "old"])
def test_weights_arrive(form, trained, tmp_path):
    state, path = trained.state_dict(), tmp_path / "weights.pth"
    if form == "safetensors":
        path = path.with_suffix(".safetensors")
        save_file(state, path)
    elif form == "data parallel":
        torch.save({f"module.encoder.{name}": value for name, value in state.items()}, path)
    elif form == "checkpoint":
        torch.save({"epoch": 3, "state_dict": state}, path)
    else:
        torch.save({name: v for name, v in state.items() if form == "torch" or "tracked" not in name}, path)
    encoder = EncoderSettings("resnet18", "imagenet").build()
    start_from(encoder, path)
    assert_same(encoder, state)


def test_a_run_starts_from_them_and_goes_on_without(tmp_path):
    """The teacher too; and a run that is begun has weights of its own."""
    source = EncoderSettings("small").build()
    torch.save(source.state_dict(), tmp_path / "first.pth")
    settings = EncoderSettings("small", weights=str(tmp_path / "first.pth"))
    train = replace(DIGITS.train, epochs=1, device="cpu")
    recipe = replace(DIGITS, encoder=settings, train=train)
    data = load(recipe.data)
    method = run.build_method(replace(recipe, method=BYOLSettings()), data)
    assert_same(method.encoder, source.state_dict())
    assert_same(method.teacher.network[0], source.state_dict())

    folder = run.train(recipe, tmp_path / "run")
    (folder / "encoder.safetensors").unlink()
    (tmp_path / "first.pth").unlink()
    assert run.train(recipe, folder, resume=True) == folder
    with pytest.raises(InputError, match=r"no file of weights .*first\.pth; correct encoder\.weights"):
        run.train(recipe, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "stem", "sentence"),
    [
        ("resnet18", "small", r"'conv1\.weight' has the shape \[64, 3, 7, 7\] in .*stem imagenet"),
        (
            "resnet34",
            "imagenet",
            r"has no weights 'layer1\.2\.conv1\.weight', so they are of another encoder",
        ),
        ("vit_tiny", "imagenet", r"has no weights 'class_token'"),
    ],
)
def test_weights_of_another_encoder_are_refused(name, stem, sentence, trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError, match=sentence):
        start_from(EncoderSettings(name, stem).build(), tmp_path / "weights.pth")


def test_files_that_are_no_weights_are_refused(tmp_path):
    encoder = EncoderSettings("small").build()
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save(encoder, tmp_path / "module.pth")
    # An index, a key, a type, a struct, a character and an end that are not there, as torch's reader goes on.
    odd = [b".", b"h.", b"}}]sjRub", b"X}h)", b"]cece\x80", b"0u(", b""]
    for place, raw in enumerate(odd):
        (tmp_path / f"{place}.pth").write_bytes(raw)
    for name in (
        "text.pth",
        "text.safetensors",
        "module.pth",
        *(f"{place}.pth" for place in range(len(odd))),
    ):
        with pytest.raises(InputError, match="cannot be read as weights; it takes"):
            start_from(encoder, tmp_path / name)
    with pytest.raises(InputError, match="holds a list and not weights by name"):
        start_from(encoder, tmp_path / "list.pth")
