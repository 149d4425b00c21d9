import copy

import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import Data, InputError, Split
from varcon.encoders import EncoderSettings
from varcon.evaluations.finetune import FineTune, classification_loss
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.logistic import LogisticProbe, losses_and_slopes
from varcon.evaluations.transfer import parse_target

CPU = torch.device("cpu")


def untrained(data):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FrozenEncoder(EncoderSettings().build(), data, CPU)


def test_the_copy_learns_and_the_encoder_stays(digits):
    encoder = untrained(digits)
    before = {name: value.clone() for name, value in encoder.encoder.state_dict().items()}
    features = encoder.features(digits.test).clone()
    state = torch.get_rng_state()
    findings = FineTune(epochs=3, learning_rate=0.1, head="random", flip=0.0)(encoder, digits)
    assert torch.equal(torch.get_rng_state(), state)
    after = encoder.encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not encoder.encoder.training
    assert not any(weight.requires_grad for weight in encoder.encoder.parameters())
    assert torch.equal(FrozenEncoder(encoder.encoder, digits, CPU).features(digits.test), features)
    # A linear classifier on the untrained features is what the weights' training must beat.
    frozen = LogisticProbe(steps=9)(encoder, digits).scores["top1"]
    assert findings.scores["last"] > frozen + 1
    assert (np.diff(findings.arrays["loss"]) < 0).all()


def test_scores_come_from_the_curves(digits):
    encoder = untrained(digits)
    few = Data(
        Split(digits.train.images[:129], digits.train.labels[:129]),  # 129 = 2 * 64 + 1
        digits.test,
        digits.classes,
        digits.mean,
        digits.std,
    )
    first, again, other = (
        FineTune(epochs=2, head="random", augment="sim", seed=s)(encoder, few) for s in (0, 0, 1)
    )
    assert (first.arrays["loss"] == again.arrays["loss"]).all()
    assert (first.arrays["loss"] != other.arrays["loss"]).any()
    curve, per_class = first.arrays["accuracy"], first.arrays["mean_per_class"]
    assert first.scores["last"] == curve[-1]
    assert first.scores["best"] == curve.max() == curve[int(first.scores["best_epoch"]) - 1]
    assert first.scores["last_mean_per_class"] == per_class[-1]
    assert first.scores["best_mean_per_class"] == per_class.max()


def test_no_part_is_of_a_single_image(digits):
    """Whose batch norm would have no deviation where it has shrunk to one pixel."""
    sizes = []
    for count, batch in ((3, 2), (7, 2), (129, 64)):
        few = Split(digits.train.images[:count], digits.train.labels[:count])
        encoder = untrained(digits)
        encoder.encoder.register_forward_hook(
            lambda module, images, features: sizes.append(len(images[0])) if module.training else None
        )
        data = Data(few, digits.test, digits.classes, digits.mean, digits.std)
        FineTune(epochs=1, head="random", batch_size=batch)(encoder, data)
    assert sizes == [3, 3, 2, 2, 43, 43, 43]


def test_the_regression_is_where_it_begins(digits):
    """With a rate that moves nothing, still images and no batch norm to follow them."""
    pixels = raw_pixels(digits, CPU)
    still = FineTune(epochs=1, learning_rate=1e-12, augment="none")(pixels, digits)
    assert still.scores["last"] == LogisticProbe()(pixels, digits).scores["top1"]


def test_another_data_set(digits, tmp_path):
    """Bright and dark images, of another size than the encoder's, with two classes and not ten."""
    generator = torch.Generator().manual_seed(0)
    labels = np.arange(40) % 2
    images = torch.randint(0, 100, (40, 12, 12), generator=generator).numpy() + 150 * labels[:, None, None]
    images = images.astype(np.uint8)
    path = tmp_path / "light.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    evaluation = FineTune(target=parse_target(f"light={path}"), epochs=4, batch_size=8, learning_rate=0.1)
    assert evaluation.name == "finetune-light"
    assert FineTune().name == "finetune"
    assert evaluation(untrained(digits), digits).scores["best"] == 100


def test_the_loss_of_several_classes_leaves_out_what_is_difficult(generator):
    outputs = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 0, -1], [-1, -1, -1], [0, 0, 0], [1, 1, 1], [0, -1, 1]])
    loss = classification_loss(outputs, targets)
    expected, slopes = losses_and_slopes(outputs.detach(), targets)  # the regression's, derived by hand
    assert loss.item() == pytest.approx(expected.item() / 5)
    loss.backward()
    torch.testing.assert_close(outputs.grad, slopes / 5)


def test_several_classes_an_image(digits, tmp_path, generator):
    """Two halves that are lit or not, each a class, some of them difficult to see."""
    targets = torch.randint(-1, 9, (120, 2), generator=generator).clamp(max=1)
    pictures = torch.randint(0, 60, (120, 8, 8, 3), generator=generator)
    for half, place in enumerate((slice(4), slice(4, 8))):
        pictures[:, :, place] += 150 * (targets[:, half] == 1)[:, None, None, None]
    lists, photographs = tmp_path / "VOC2007/ImageSets/Main", tmp_path / "VOC2007/JPEGImages"
    lists.mkdir(parents=True)
    photographs.mkdir()
    for number, picture in enumerate(pictures.to(torch.uint8).numpy()):
        Image.fromarray(picture).save(photographs / f"{number:06}.jpg", quality=95)
        for name, shown in zip(("left", "right"), targets[number].tolist(), strict=True):
            with (lists / f"{name}_{'trainval' if number < 80 else 'test'}.txt").open("a") as file:
                file.write(f"{number:06} {(-1, 1, 0)[shown]}\n")
    for head in ("logistic", "random"):
        learn = FineTune(parse_target(f"voc2007={tmp_path}"), 12, 8, 0.1, flip=0.0, head=head, augment="none")
        found = learn(untrained(digits), digits)
        assert found.scores["last"] == found.arrays["map"][-1] > 95
        assert found.scores["best"] == found.arrays["map"].max()
        assert found.arrays["loss"][-1] < found.arrays["loss"][0]
        assert set(found.scores) == {"last", "best", "best_epoch"}  # one class an image would have more


def test_what_cannot_be(digits):
    single = Split(digits.train.images[:1], torch.zeros(1, dtype=torch.int64))
    data = Data(single, single, ["a"], digits.mean, digits.std)
    with pytest.raises(InputError, match="needs two classes"):
        FineTune()(raw_pixels(data, CPU), data)
    with pytest.raises(InputError, match=r"diverged in epoch 1; lower finetune\.learning_rate"):
        FineTune(learning_rate=1e30, epochs=1)(untrained(digits), digits)
    for settings in (
        {"epochs": 0},
        {"batch_size": 1},
        {"learning_rate": 0.0},
        {"weight_decay": -1},
        {"seed": -1},
        {"flip": 2.0},
        {"head": "zero"},
        {"augment": "mix"},
    ):
        with pytest.raises(InputError, match=rf"finetune\.{next(iter(settings))} is"):
            FineTune(**settings)


@pytest.mark.gpu
def test_the_gpu_learns_too(digits):
    """Other images are drawn there, so the two agree about as well as two seeds do."""
    learn = FineTune(epochs=5, learning_rate=0.02, flip=0.0)
    on_cpu = untrained(digits)
    on_gpu = FrozenEncoder(copy.deepcopy(on_cpu.encoder), digits, torch.device("cuda"))
    cpu, gpu = (learn(encoder, digits).scores["last"] for encoder in (on_cpu, on_gpu))
    assert cpu > 85
    assert gpu > cpu - 5
