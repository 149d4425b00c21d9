import math

import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import Data, InputError, Split
from varcon.data import DataSettings, load
from varcon.encoders import EncoderSettings
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.transfer import MEASURED_BY, Target, Transfer, judge, parse_target

CPU = torch.device("cpu")
QUICK = LogisticProbe(steps=3, least=1e-2, greatest=1)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory, digits):
    """Digits of 16 pixels as a user's .npz file, with fewer and fewer of each class in the test part."""
    larger = load(DataSettings(image_size=16))
    rank = np.array([int((larger.test.labels[:i] == y).sum()) for i, y in enumerate(larger.test.labels)])
    kept = torch.from_numpy(rank) < 50 - 5 * larger.test.labels
    path = tmp_path_factory.mktemp("data") / "uneven.npz"
    np.savez(
        path,
        train_images=larger.train.images[:200].permute(0, 2, 3, 1).numpy(),
        train_labels=larger.train.labels[:200].numpy(),
        test_images=larger.test.images[kept].permute(0, 2, 3, 1).numpy(),
        test_labels=larger.test.labels[kept].numpy(),
    )
    return path


def test_each_target_is_the_probe_of_its_images_in_the_encoders_size(digits, uneven):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = FrozenEncoder(EncoderSettings().build(), digits, CPU)
    told = []
    encoder.progress = lambda done, total, what: told.append(what)
    targets = (
        Target("mine", DataSettings("npz", str(uneven))),
        Target("Oxford-Pets", DataSettings("npz", str(uneven))),
        Target("large", DataSettings("npz", str(uneven), image_size=16), "mean-per-class"),
    )
    findings = Transfer(targets, QUICK)(encoder, digits)
    scores = findings.scores
    resized, own = (load(DataSettings("npz", str(uneven), image_size=size)) for size in (8, 16))
    # The probe by itself, on images normalised as the encoder learnt them.
    small, large = (
        QUICK(FrozenEncoder(encoder.encoder, digits, CPU), data).scores for data in (resized, own)
    )
    assert scores["mine"] == pytest.approx(small["top1"])
    assert scores["Oxford-Pets"] == pytest.approx(small["mean_per_class"], abs=2)  # it may choose otherwise
    assert scores["large"] == pytest.approx(large["mean_per_class"], abs=2)
    assert scores["mine"] != scores["Oxford-Pets"]
    assert scores["mean"] == pytest.approx((scores["mine"] + scores["Oxford-Pets"] + scores["large"]) / 3)
    assert findings.arrays["names"].tolist() == ["mine", "Oxford-Pets", "large"]
    assert findings.arrays["measures"].tolist() == ["top1", "mean-per-class", "mean-per-class"]
    assert findings.arrays["values"].tolist() == [scores["mine"], scores["Oxford-Pets"], scores["large"]]
    assert "transfer to Oxford-Pets" in told


def test_the_papers_data_sets_have_the_papers_measures():
    assert len(MEASURED_BY) == 12
    per_class = {name for name, measure in MEASURED_BY.items() if measure == "mean-per-class"}
    assert per_class == {"aircraft", "pets", "caltech101", "flowers"}
    assert [name for name, measure in MEASURED_BY.items() if measure == "map"] == ["voc2007"]
    for name in ("Caltech-101", "caltech_101", "Flowers-102", "FGVC-Aircraft"):
        assert parse_target(f"{name}=/data").measure == "mean-per-class"
    assert parse_target("SUN397=/data").measure == "top1"


def test_targets_from_a_command_line():
    assert parse_target("flowers=/data/f") == Target("flowers", DataSettings("folder", "/data/f"))
    assert parse_target("CIFAR-10=/data") == Target("CIFAR-10", DataSettings("cifar10", "/data"))
    own = Target("leaves", DataSettings("npz", "a=b.npz"), "mean-per-class")
    assert parse_target("leaves:mean-per-class=a=b.npz") == own
    assert parse_target("digits").data == DataSettings("digits")
    assert parse_target("pets:top1=/data").measure == "top1"
    with pytest.raises(InputError, match=r"names no path; write NAME=PATH"):
        parse_target("flowers")
    with pytest.raises(InputError, match=r"no metric 'mean-per-clas'; did you mean 'mean-per-class'"):
        parse_target("flowers:mean-per-clas=/data")
    with pytest.raises(InputError, match="has no name"):
        parse_target("=/data")


def test_voc_is_read_as_it_is_published(digits, tmp_path, generator):
    """Two squares that are lit or not, each a class, one in ten of them difficult to see."""
    targets = torch.randint(-1, 9, (120, 2), generator=generator).clamp(max=1)
    pictures = torch.randint(0, 60, (120, 8, 8, 3), generator=generator)
    pictures[:, :, :4] += 150 * (targets[:, 0] == 1)[:, None, None, None]
    pictures[:, :, 4:] += 150 * (targets[:, 1] == 1)[:, None, None, None]
    lists, photographs = tmp_path / "VOC2007/ImageSets/Main", tmp_path / "VOC2007/JPEGImages"
    lists.mkdir(parents=True)
    photographs.mkdir()
    written = {1: 1, 0: -1, -1: 0}
    for number, picture in enumerate(pictures.to(torch.uint8).numpy()):
        Image.fromarray(picture).save(photographs / f"{number:06}.jpg", quality=95)
        part = "trainval" if number < 80 else "test"
        for name, shown in zip(("left", "right"), targets[number].tolist(), strict=True):
            with (lists / f"{name}_{part}.txt").open("a", encoding="utf-8") as file:
                file.write(f"{number:06} {written[shown]:>2}\n")
    findings = Transfer((parse_target(f"voc2007={tmp_path}"),), QUICK)(raw_pixels(digits, CPU), digits)
    assert findings.scores["voc2007"] > 99
    assert findings.arrays["measures"].tolist() == ["map"]
    assert math.isnan(findings.arrays["top1"][0])
    with pytest.raises(InputError, match=r"which only VOC's folder has; give its path"):
        parse_target("voc2007=arrays.npz")
    with pytest.raises(InputError, match=r"transfer target VOC-2007: .*nowhere has no folder ImageSets/Main"):
        Transfer((parse_target(f"VOC-2007={tmp_path}/nowhere"),))(raw_pixels(digits, CPU), digits)


def test_images_of_several_classes(generator):
    """As those of VOC2007: the upper and the lower half of an image light up or not."""
    targets = torch.randint(0, 2, (200, 2), generator=generator)
    noise = torch.randint(0, 100, (200, 3, 4, 4), generator=generator)
    lit = 60 * targets.repeat_interleave(2, dim=1)[:, None, :, None]
    images = (noise + lit).to(torch.uint8)
    train, test = Split(images[:100], targets[:100]), Split(images[100:], targets[100:])
    data = Data(train, test, ["above", "below"], (0.3, 0.3, 0.3), (0.2, 0.2, 0.2))
    value, accuracy, per_class, _ = judge(raw_pixels(data, CPU), data, "map", QUICK)
    assert value > 97
    assert math.isnan(accuracy)
    assert math.isnan(per_class)
    with pytest.raises(InputError, match="does not suit these labels"):
        judge(raw_pixels(data, CPU), data, "top1", QUICK)


def test_what_cannot_be(digits, tmp_path):
    pixels = raw_pixels(digits, CPU)
    with pytest.raises(InputError, match="transfer has no targets"):
        Transfer()(pixels, digits)
    with pytest.raises(InputError, match=r"transfer target leaves: there is no folder .*nowhere"):
        Transfer((parse_target(f"leaves={tmp_path / 'nowhere'}"),))(pixels, digits)
    with pytest.raises(InputError, match="two transfer targets are named 'a'"):
        Transfer((parse_target("a=/data"), parse_target("a=/other")))
    with pytest.raises(InputError, match="is named 'mean'"):
        Transfer((parse_target("mean=/data"),))
    with pytest.raises(InputError, match="choose one of top1, mean-per-class, map"):
        Target("a", DataSettings(), "accuracy")


@pytest.mark.parametrize("setting", [{"held_out": 0.2}, {"per_class": 5}, {"store": "decoded"}])
def test_settings_that_voc_cannot_have_are_refused_and_not_ignored(setting):
    """Whoever holds images out to choose by would else be judged by the test images."""
    data = DataSettings("folder", "voc", **setting)
    with pytest.raises(InputError, match=rf"target voc sets data\.{next(iter(setting))}, .*leave it out"):
        Target("voc", data)
    Target("pets", data)
