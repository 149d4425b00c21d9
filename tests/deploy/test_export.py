"""Exports give the same predictions, with this package and where it and torch are absent."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import varcon
from varcon.core import InputError, RunError
from varcon.deploy import export as exporting
from varcon.deploy import learned, use_model
from varcon.deploy.card import card, code_for, code_for_timm
from varcon.deploy.config import Config
from varcon.deploy.export import FORMATS, export
from varcon.deploy.images import find_images
from varcon.encoders import EncoderSettings
from varcon.encoders.resnet import Bottleneck, ResNet
from varcon.encoders.vit import ViT

NAMES = Path(__file__).with_name("torchvision_resnet18.txt")


@pytest.fixture(scope="module")
def exported(trained, model, tmp_path_factory):
    """Every format, once."""
    folder = tmp_path_factory.mktemp("exported")
    return {to: export(trained, to, folder / to) for to in FORMATS}


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_predicts_as_the_run_does(exported, model, zoo, to):
    again = varcon.load(exported[to], "cpu")
    assert again.classes == model.classes
    files = find_images([zoo])
    for count in (1, 2, len(files)):  # any batch
        assert again.embed(files[:count]) == pytest.approx(model.embed(files[:count]), abs=1e-4)
    for found, wanted in zip(again.predict(files, top=3), model.predict(files, top=3), strict=True):
        assert found.label == wanted.label
        assert found.unlike_anything_seen == wanted.unlike_anything_seen
        assert found.likelihood == pytest.approx(wanted.likelihood, abs=1e-4)
        assert dict(found.top) == pytest.approx(dict(wanted.top), abs=1e-4)
        assert found.neighbours == []
    single = next(file for file in exported[to].iterdir() if file.stem == "model")
    assert varcon.load(single, "cpu").embed(files[:1]) == pytest.approx(model.embed(files[:1]), abs=1e-4)


ALONE = """
import runpy, sys
for name in ("varcon", "torch", "scipy"):
    sys.modules[name] = None  # importing it fails
sys.argv = {arguments}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def same(found, wanted):
    assert found["label"] == wanted.label
    assert found["probability"] == pytest.approx(wanted.probability, abs=1e-5)
    assert found["likelihood"] == pytest.approx(wanted.likelihood, abs=1e-4)
    assert found["unlike_anything_seen"] == wanted.unlike_anything_seen


def test_the_example_predicts_the_same_where_this_package_and_torch_are_absent(
    exported, model, zoo, tmp_path
):
    moved = shutil.copytree(exported["onnx"], tmp_path / "elsewhere")
    files = [str(file) for file in find_images([zoo])]
    code = ALONE.format(arguments=[str(moved / "use_model.py"), *files])
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["path"] for one in found] == files
    for one, wanted in zip(found, model.predict(files), strict=True):
        same(one, wanted)


@pytest.mark.parametrize("name", ["nowhere.jpg", "broken.png"])
def test_the_example_says_in_one_sentence_what_it_cannot_read(exported, zoo, name):
    (zoo / "broken.png").write_text("no image")
    code = ALONE.format(arguments=[str(exported["onnx"] / "use_model.py"), name, "plain.png"])
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=zoo, capture_output=True, text=True)
    assert done.returncode == 1
    assert json.loads(done.stdout)["path"] == "plain.png"
    assert done.stderr.startswith(f"there is no prediction of {name}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("to", "needed"), [("onnx", "onnxruntime"), ("pt2", "torch")])
def test_the_example_says_what_to_install(exported, zoo, to, needed):
    code = ALONE.format(arguments=[str(exported[to] / "use_model.py"), "plain.png"])
    code = code.replace('"scipy"', '"scipy", "onnxruntime"')
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=zoo, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"this model needs {needed}: pip install {needed}\n")


def test_the_example_takes_a_program_of_torch_too(exported, model, zoo):
    files = [str(file) for file in find_images([zoo])]
    found = use_model.Model(exported["pt2"]).predict(files, top=2)
    for one, wanted in zip(found, model.predict(files, top=2), strict=True):
        same(one, wanted)
        assert [top["label"] for top in one["top"]] == [label for label, _ in wanted.top]


def test_the_example_reads_images_bit_for_bit_as_training_does(zoo):
    from varcon.data.decoding import decode

    files = find_images([zoo])
    for file, wanted in zip(files, decode(files, 16).numpy(), strict=True):
        assert np.array_equal(use_model.read_pixels(file, 16).transpose(2, 0, 1), wanted), file.name


def torchvision_resnet18():
    lines = [line.split() for line in NAMES.read_text().splitlines()]
    return {name: () if shape == "scalar" else tuple(map(int, shape.split("x"))) for name, shape in lines}


def test_a_resnet_has_the_names_and_shapes_of_torchvision():
    published = torchvision_resnet18()
    assert len(published) == 122
    with torch.device("meta"):
        ours = EncoderSettings("resnet18", "imagenet").build().state_dict()
    last = {"fc.weight", "fc.bias"}  # which the card takes away
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == {
        name: shape for name, shape in published.items() if name not in last
    }


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (inner + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class ResNet18(nn.Module):
    """As published, with the attributes that torchvision's has."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        for stage in range(1, 5):
            first = Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2)
            self.add_module(f"layer{stage}", nn.Sequential(first, Block(widths[stage], widths[stage], 1)))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def config_of(encoder, size):
    return Config(
        encoder=encoder,
        features=4,
        image_size=size,
        mean=(0, 0, 0),
        std=(1, 1, 1),
        classes=["a", "b"],
        centroids=np.zeros((2, 4)),
        classifier=np.zeros((2, 5)),
        likelihood_temperature=1,
        threshold=1,
    )


@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_the_cards_code_rebuilds_a_resnet(monkeypatch, stem):
    assert {
        name: tuple(tensor.shape) for name, tensor in ResNet18().state_dict().items()
    } == torchvision_resnet18()
    models = types.ModuleType("torchvision.models")
    models.resnet18 = ResNet18
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    ours = EncoderSettings("resnet18", stem).build()
    ours(torch.randn(4, 3, 32, 32))  # moves the statistics of its norms
    names = {"torch": torch}
    exec(code_for(ours, config_of(EncoderSettings("resnet18", stem), 32)), names)
    theirs = names["encoder"]
    theirs.load_state_dict(ours.state_dict())  # strict: every name and shape
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(theirs.eval()(images), ours.eval()(images), atol=1e-5)


def test_code_is_given_for_what_torchvision_and_timm_have():
    def code(name, stem, size):
        settings = EncoderSettings(name, stem)
        with torch.device("meta"):
            return code_for(settings.build(), config_of(settings, size))

    assert "create_model" in code("resnet200", "imagenet", 224)
    assert "VisionTransformer" in code("vit_tiny", "small", 32)
    assert "num_heads=3" in code("vit_tiny", "small", 32)
    assert code("vit_tiny", "small", 48) == ""  # its position embedding is stretched
    assert code("small", "small", 32) == ""


def test_the_cards_code_renames_a_vision_transformer_for_timm(monkeypatch, tmp_path):
    """To timm's published names, with no weight lost or changed."""
    settings = EncoderSettings("vit_tiny", "small")
    encoder = settings.build()
    save_file(encoder.state_dict(), tmp_path / "model.safetensors")
    timm = types.ModuleType("timm")
    timm.create_model = Mock()
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.chdir(tmp_path)
    exec(code_for_timm(encoder, config_of(settings, 32)), {})
    timm.create_model.assert_called_once_with(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=0
    )
    (given,) = timm.create_model().load_state_dict.call_args.args
    parts = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    layers = ["patch_embed.proj", "norm", *(f"blocks.{n}.{part}" for n in range(12) for part in parts)]
    names = {
        "cls_token",
        "pos_embed",
        *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")),
    }
    assert set(given) == names
    assert torch.equal(
        given["blocks.7.attn.qkv.weight"],
        encoder.encoder.layers.encoder_layer_7.self_attention.in_proj_weight,
    )
    assert code_for_timm(encoder, config_of(settings, 48)) == ""
    assert (
        code_for_timm(EncoderSettings("resnet18").build(), config_of(EncoderSettings("resnet18"), 32)) == ""
    )


@pytest.mark.parametrize(
    "build",
    [lambda: ResNet(Bottleneck, (1, 1), "imagenet", width=8), lambda: ViT(2, 24, 3, "small")],
    ids=["bottlenecks", "vit"],
)
def test_programs_of_other_encoders_take_any_batch(tmp_path, build):
    encoder = build().eval().requires_grad_(False)
    config = config_of(EncoderSettings(), 24)  # of the ViT, the position embedding is stretched
    for to in ("onnx", "pt2"):
        FORMATS[to](encoder, config, tmp_path)
        exporting.check(encoder, tmp_path / f"model.{to}", config)  # on three images, and it is made from two


def test_a_program_that_differs_is_not_handed_out(trained, model, tmp_path, monkeypatch):
    def misunderstood(encoder, config, folder):
        exporting.to_pt2(nn.Sequential(encoder, nn.Tanh()), config, folder)

    monkeypatch.setitem(FORMATS, "pt2", misunderstood)
    with pytest.raises(RunError, match="differs from the encoder"):
        export(trained, "pt2", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_card_tells_what_and_how(own, tmp_path):
    findings = own / "findings"
    findings.mkdir()
    (findings / "knn.json").write_text(json.dumps({"scores": {"k": 5, "top1": 87.654}}))
    (findings / "rank.json").write_text(json.dumps({"scores": {"effective_rank": 3.0}}))
    (findings / "finetune.json").write_text(json.dumps({"scores": {"last": 12.34}}))  # on other data
    (findings / "discriminant.json").write_text(json.dumps({"scores": {"top1": 12.34}}))  # told already
    (findings / "calibration.json").write_text(json.dumps({"scores": {"crossed_ece": 12.34}}))
    text = (export(own, "hub", tmp_path / "hub") / "README.md").read_text()
    head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert "library_name: varcon" in head[1].splitlines()
    assert not any(line.startswith("license") for line in head[1].splitlines())  # the user's to choose
    for word in (
        "# run",
        "36 images of 16 x 16",
        "`varcon`",
        "| kNN top-1 | 87.65 |",
        "blue, green, red",
        "`small`",
        "unlike anything seen: at most one of the 21 test\nimages is",
    ):
        assert word in text
    assert "rank" not in text
    assert "tuned" not in text and "12.34" not in text
    assert str(tmp_path) not in text
    assert str(own.parent) not in (tmp_path / "hub/config.json").read_text()
    assert sorted(file.name for file in (tmp_path / "hub").iterdir()) == [
        "README.md",
        "centroids.npy",
        "classifier.npy",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("to", FORMATS)
def test_no_export_holds_a_path_of_this_machine(own, data, tmp_path, to):
    """Neither of the data nor of weights that training began with."""
    shutil.rmtree(own / "deploy")
    facts = json.loads((own / "recipe.json").read_text())
    facts["recipe"]["encoder"]["weights"] = str(tmp_path / "first.safetensors")
    (own / "recipe.json").write_text(json.dumps(facts))
    folder = export(own, to, tmp_path / "out")
    assert str(data) in (own / "deploy/training.json").read_text()  # which stays here
    for file in folder.iterdir():
        assert str(data.parent).encode() not in file.read_bytes(), file.name
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
        for module in (varcon, torch):
            assert str(Path(module.__file__).parent).encode() not in file.read_bytes(), file.name
    weights = json.loads((folder / "config.json").read_text())["origin"]["recipe"]["encoder"]["weights"]
    assert weights == "first.safetensors"


@pytest.mark.parametrize(
    ("count", "words"), [(99, "at most one of the 99 test"), (100, "one in a hundred test")]
)
def test_the_card_says_how_many_test_images_are_marked(trained, model, count, words):
    assert (np.arange(count) < np.quantile(np.arange(count), learned.UNUSUAL)).sum() == 1
    config = dataclasses.replace(model.config, origin={**model.config.origin, "test_images": count})
    assert f"unlike anything seen: {words}\nimages is." in card(
        trained, EncoderSettings().build(), config, "hub"
    )


def test_the_cards_script_and_files_are_there(exported, trained):
    for to in ("onnx", "pt2"):
        assert "use_model.py" in (exported[to] / "README.md").read_text()
        assert (exported[to] / "use_model.py").exists()
    weights = load_file(trained / "encoder.safetensors")
    shared = load_file(exported["safetensors"] / "model.safetensors")
    assert weights.keys() == shared.keys()
    assert all(torch.equal(weights[name], shared[name]) for name in weights)


def test_what_cannot_be_exported_is_refused_and_nothing_is_lost(own, exported, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no format 'onxx' to export to; did you mean 'onnx'"):
        export(own, "onxx", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("keep")
    with pytest.raises(InputError, match="exists and is not empty"):
        export(own, "hub", tmp_path / "full")
    assert (tmp_path / "full/mine.txt").read_text() == "keep"
    with pytest.raises(InputError, match="is not a run"):
        export(exported["hub"], "onnx", tmp_path / "out")
    with pytest.raises(InputError, match="there is no run"):
        export(tmp_path / "nowhere", "onnx", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"pip install 'varcon\[onnx\]'"):
        export(own, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert export(own, "hub") == own / "export/hub"


def test_a_run_that_may_not_be_written_is_told_before_anything_is_computed(own, monkeypatch):
    run = own.resolve()
    monkeypatch.setattr(os, "access", lambda place, how: place != run)  # as root may write anywhere
    monkeypatch.setattr(exporting, "load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InputError, match=f"^{re.escape(str(run))} may not be written; .* -o FOLDER"):
        export(own)


@pytest.mark.parametrize("out", [".", "../here", "new/folder"])
def test_an_export_goes_into_this_folder_if_it_is_empty(trained, exported, tmp_path, monkeypatch, out):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    was = here.stat().st_ino
    assert export(trained, "hub", out) == Path(out)
    assert here.stat().st_ino == was  # where a shell stands is still there
    names = {file.name for file in Path(out).iterdir()}
    assert names == {file.name for file in exported["hub"].iterdir()}
    varcon.load(out, "cpu")
    with pytest.raises(InputError, match="exists and is not empty"):
        export(trained, "hub", out)
    assert [file.name for file in tmp_path.iterdir()] == ["here"]


def test_what_a_killed_export_left_in_a_folder_is_no_hindrance(trained, model, tmp_path, monkeypatch):
    (tmp_path / "out/.unfinished").mkdir(parents=True)
    (tmp_path / "out/.unfinished/model.pt2").write_text("half")
    monkeypatch.setitem(FORMATS, "pt2", Mock(side_effect=RunError("fails")))
    with pytest.raises(RunError, match="fails"):
        export(trained, "pt2", tmp_path / "out")
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]
    monkeypatch.undo()
    export(trained, "safetensors", tmp_path / "out")
    assert not (tmp_path / "out/model.pt2").exists()
    assert varcon.load(tmp_path / "out", "cpu").classes == model.classes


def test_a_missing_runtime_and_damaged_files_are_named(exported, tmp_path, monkeypatch):
    for to in ("onnx", "pt2", "safetensors"):
        copy = shutil.copytree(exported[to], tmp_path / to)
        (copy / f"model.{to}").write_bytes(b"damaged")
        with pytest.raises(InputError, match=f"model.{to} cannot be read"):
            varcon.load(copy, "cpu")
    config = json.loads((exported["onnx"] / "config.json").read_text())
    for version, words in (
        ("1", "is of varcon model, version 1, and this varcon reads version 2"),
        ("", "not that"),
    ):
        form = f"varcon model, version {version}" if version else "another model"
        (tmp_path / "onnx/config.json").write_text(json.dumps({**config, "format": form}))
        with pytest.raises(InputError, match=words):
            varcon.load(tmp_path / "onnx")
    for name in ("centroids.npy", "classifier.npy"):
        shutil.rmtree(tmp_path / "onnx")
        shutil.copytree(exported["onnx"], tmp_path / "onnx")
        (tmp_path / "onnx" / name).write_bytes(b"")
        with pytest.raises(InputError, match="does not hold a whole model"):
            varcon.load(tmp_path / "onnx")
        np.save(tmp_path / "onnx" / name, np.zeros((3, 3)))
        with pytest.raises(InputError, match=rf"{name} has the shape \(3, 3\)"):
            varcon.load(tmp_path / "onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"needs onnxruntime: pip install 'varcon\[onnx\]'"):
        varcon.load(exported["onnx"])
