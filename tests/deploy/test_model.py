"""Predictions against what follows from the definitions, written out."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import varcon
from varcon.augment import AugmentSettings
from varcon.cli import main
from varcon.core import InputError
from varcon.data import DataSettings
from varcon.data.folder import load_folder
from varcon.deploy import learned
from varcon.encoders import EncoderSettings
from varcon.engine.checkpoint import load_weights, save_weights
from varcon.recipe import TrainSettings
from varcon.run_folder import names_digest


def features_of(trained, data, images):
    """By the encoder itself, image by image."""
    encoder = EncoderSettings().build().eval()
    load_weights(trained / "encoder.safetensors", encoder)
    mean, std = (torch.tensor(values)[None, :, None, None] for values in (data.mean, data.std))
    with torch.no_grad():
        return torch.cat([encoder((image[None] / 255 - mean) / std) for image in images]).double().numpy()


def length_one(rows):
    return rows / np.sqrt((rows**2).sum(1, keepdims=True))


def test_predictions_follow_from_their_definition(trained, data, model):
    images = load_folder(str(data), 16)
    train = length_one(features_of(trained, images, images.train.images))
    test = length_one(features_of(trained, images, images.test.images))
    labels = images.train.labels.numpy()
    centroids = length_one(np.stack([train[labels == label].sum(0) for label in range(3)]))
    classifier = np.load(model.weights.parent / "deploy/classifier.npy").astype(float)
    predictions = model.predict(images.test.images, top=2, neighbours=2)
    fits = []
    for z, found in zip(test, predictions, strict=True):
        cosines = [float(z @ centroid) for centroid in centroids]
        weights = [math.exp(float(z @ row[:-1]) + row[-1]) for row in classifier]
        best = int(np.argmax(weights))
        assert found.label == ["blue", "green", "red"][best]
        assert found.probability == pytest.approx(weights[best] / sum(weights), abs=1e-4)
        assert found.top[0] == (found.label, found.probability)
        assert found.top[1][1] == pytest.approx(sorted(weights)[-2] / sum(weights), abs=1e-4)
        fits.append(math.log(sum(math.exp(cosine / 0.1) for cosine in cosines) / 3))
        assert found.likelihood == pytest.approx(fits[-1], abs=1e-4)
        nearest = np.argsort(-(train @ z))[:2]
        assert [n.cosine for n in found.neighbours] == pytest.approx(train[nearest] @ z, abs=1e-5)
        assert found.neighbours[0].label == ["blue", "green", "red"][labels[found.neighbours[0].index]]
    fits_of_training = [math.log(np.exp(centroids @ z / 0.1).sum() / 3) for z in train]
    threshold = min(np.quantile(fits, 0.01), np.quantile(fits_of_training, 0.01))  # there are 21 test images
    assert model.config.threshold == pytest.approx(threshold, abs=1e-4)
    assert [found.unlike_anything_seen for found in predictions] == [
        found.likelihood < model.config.threshold for found in predictions
    ]
    assert sum(found.unlike_anything_seen for found in predictions) == 1  # of 21, the lowest
    right = [
        found.label == images.classes[y] for found, y in zip(predictions, images.test.labels, strict=True)
    ]
    assert model.config.measured["top1"] == pytest.approx(100 * np.mean(right))


def test_features_are_the_encoders_for_files_and_arrays(trained, data, model):
    images = load_folder(str(data), 16)
    wanted = features_of(trained, images, images.test.images)
    files = sorted((data / "test").glob("*/*.png"))
    assert model.embed(files) == pytest.approx(wanted, abs=1e-4)
    assert model.embed([str(file) for file in files]) == pytest.approx(wanted, abs=1e-4)
    assert model.embed(images.test.images) == pytest.approx(wanted, abs=1e-4)
    assert model.embed(str(files[0])) == pytest.approx(wanted[:1], abs=1e-4)
    assert model.embed([]).shape == (0, model.features)
    assert model.predict([]) == []
    assert model.classes == ["blue", "green", "red"]


def test_a_training_image_is_its_own_nearest_neighbour(data, model):
    file = data / "train/green/07.png"
    first, _ = model.predict([file], neighbours=2)[0].neighbours
    assert (first.path, first.name, first.label) == (str(file), "train/green/07.png", "green")
    assert first.cosine == pytest.approx(1, abs=1e-5)
    assert first.index == 12 + 7


@pytest.mark.parametrize("below", ["", "train"])  # with test images, and with none, where some are held out
@pytest.mark.parametrize("fewer", [{}, {"held_out": 0.3}, {"per_class": 4, "per_class_seed": 3}])
def test_neighbours_are_named_where_only_some_images_are_trained_on(
    data, tmp_path, below, fewer, small_recipe
):
    data = data / below
    run = varcon.train(small_recipe(data, **fewer), tmp_path / "run")
    model = varcon.load(run, "cpu")
    stored = json.loads((run / "deploy/training.json").read_text())
    assert len(stored["files"]) == json.loads((run / "recipe.json").read_text())["train_images"]
    assert (len(stored["files"]) < 36) == bool(below or fewer)
    for name in stored["files"]:
        nearest = model.predict([data / name], neighbours=1)[0].neighbours[0]
        assert nearest.cosine == pytest.approx(1, abs=1e-5)
        assert nearest.path == str(data / name)


def lying_at(likelihoods):
    """Features of two numbers that fit the one centroid (1, 0) as well as that, at a temperature of 1."""
    cosines = torch.tensor(likelihoods, dtype=torch.float64)
    return torch.stack([cosines, (1 - cosines**2).sqrt()], dim=1)


def threshold_of(train, test):
    return learned.threshold_of(lying_at(train), lying_at(test), torch.tensor([[1.0, 0.0]]).double(), 1.0)


def test_few_test_images_do_not_mark_many_training_images():
    train, test = np.linspace(0.1, 0.9, 81), np.linspace(0.24, 0.8, 20)  # 14 of 81 lie below all of these
    assert (train < test.min()).sum() == 14
    threshold = threshold_of(train, test)
    assert (train < threshold).sum() == 1
    assert not (test < threshold).any()


def test_training_images_that_fit_better_do_not_mark_all_others():
    """Of 5,050 images together the test images are the lowest hundredth."""
    test = np.linspace(0.2, 0.6, 50)
    assert (test < threshold_of(np.linspace(0.9, 0.99, 5000), test)).sum() == 1


@pytest.mark.parametrize("count", [100, 1000])
def test_of_enough_test_images_one_in_a_hundred_is_marked(count):
    test = np.linspace(0.2, 0.6, count)
    assert (test < threshold_of(np.linspace(0.1, 0.9, 81), test)).sum() == count // 100


@pytest.mark.parametrize("neighbours", [0, 1])  # whether they are asked for or not
def test_a_training_image_is_never_marked(model, data, neighbours):
    config = dataclasses.replace(model.config, threshold=math.inf)
    files = sorted((data / "train").glob("*/*.png"))

    def marks(training, features):
        one = varcon.deploy.model.Model(model._encode, config, model.weights, model.device, training)
        return [found.unlike_anything_seen for found in one.predict_features(features, 1, neighbours)]

    assert marks(model.training, model.embed(files)) == [False] * 36
    cosines = np.array([1, 0.9995, 0.9985, 0])
    features = np.zeros((4, model.features), np.float32)
    features[:, 1], features[:, 2] = cosines, np.sqrt(1 - cosines**2)
    training = learned.Training(np.eye(2, model.features, dtype=np.float32), [0, 1], None, "")
    assert marks(training, 7 * features) == [False, False, True, True]
    assert marks(None, features) == [True] * 4  # of an export, which has no training images


def test_neighbours_are_found_from_any_folder(own, data, tmp_path, monkeypatch):
    """The recipe has the data where they lay as seen from the folder in which training was started."""
    shutil.rmtree(own / "deploy")
    facts = json.loads((own / "recipe.json").read_text())
    facts["recipe"]["data"]["path"] = data.name
    (own / "recipe.json").write_text(json.dumps(facts))
    monkeypatch.chdir(data.parent)
    varcon.load(own, "cpu")
    monkeypatch.chdir(tmp_path)
    file = data / "train/green/07.png"
    assert varcon.load(own, "cpu").predict([file])[0].neighbours[0].path == str(file)
    shutil.copytree(data, tmp_path / "moved")
    elsewhere = varcon.load(own, "cpu", data_path="moved")
    assert elsewhere.predict([file])[0].neighbours[0].path == str(tmp_path / "moved/train/green/07.png")


def test_the_data_are_needed_once(own, data, model, tmp_path):
    facts = json.loads((own / "recipe.json").read_text())
    facts["recipe"]["data"]["path"] = str(tmp_path / "moved")
    (own / "recipe.json").write_text(json.dumps(facts))
    image = data / "test/red/01.png"
    assert varcon.load(own, "cpu").predict([image]) == model.predict([image])
    shutil.rmtree(own / "deploy")
    with pytest.raises(InputError, match=r"needs its training data once.*--data\.path"):
        varcon.load(own, "cpu")
    assert not (own / "deploy").exists()
    moved = shutil.copytree(data, tmp_path / "moved-again")
    found = varcon.load(own, "cpu", data_path=moved).predict([image])[0]
    assert found.probability == pytest.approx(model.predict([image])[0].probability, abs=1e-6)
    assert found.neighbours[0].path.startswith(str(moved))


def test_other_data_than_those_of_training_are_refused(own, data, tmp_path):
    shutil.rmtree(own / "deploy")
    other = shutil.copytree(data, tmp_path / "other")
    (other / "train/red/00.png").unlink()
    with pytest.raises(InputError, match="trained on other data"):
        varcon.load(own, "cpu", data_path=other)


def test_the_hardest_images_are_named(own, data, capsys):
    """By which wrong labels are found."""
    assert main(["evaluate", str(own), "--only", "temperature", "--device", "cpu"]) == 0
    assert main(["report", str(own)]) == 0
    shown, page = capsys.readouterr().out, (own / "report.html").read_text()
    with np.load(own / "findings/temperature.npz") as found:
        files, labels = found["hardest_files"], found["hardest_labels"]
    assert len(files) == 36
    for file, label in zip(files, labels, strict=True):
        assert file.split("/")[:2] == ["train", ["blue", "green", "red"][label]]
        assert (data / file).exists() and file in page
    assert files[0] in shown and files[9] in shown


def test_labels_that_were_corrected_are_learned_anew(own, data, tmp_path):
    right = shutil.copytree(data, tmp_path / "right")
    for number in range(6):  # names that differ from class to class, as photographs have them
        for file in sorted((right / "train").glob(f"*/{number:02}.png")):
            file.rename(file.with_name(f"{file.parent.name}-{number}.png"))
    facts = json.loads((own / "recipe.json").read_text())
    (own / "recipe.json").write_text(
        json.dumps(facts | {"files": names_digest(map(str, right.glob("train/*/*")))})
    )
    shutil.rmtree(own / "deploy")
    before = varcon.load(own, "cpu", data_path=right).config.centroids
    wrong = right / "train/red/red-3.png"
    wrong.rename(right / "train/green/red-3.png")
    (right / "train/green/green-3.png").rename(right / "train/red/green-3.png")
    model = varcon.load(own, "cpu", data_path=right)
    assert not np.allclose(model.config.centroids[1:], before[1:])
    nearest = model.predict([right / "train/green/red-3.png"], neighbours=1)[0].neighbours[0]
    assert (nearest.name, nearest.label) == ("train/green/red-3.png", "green")
    (right / "train/red/green-3.png").unlink()  # data of which some are gone are no longer the run's
    assert np.array_equal(varcon.load(own, "cpu", data_path=right).config.centroids, model.config.centroids)
    shutil.rmtree(right)
    right.mkdir()  # as where no disk is mounted
    assert np.array_equal(varcon.load(own, "cpu", data_path=right).config.centroids, model.config.centroids)
    with pytest.raises(InputError, match="there is no nowhere"):
        varcon.load(own, "cpu", data_path="nowhere")


def test_other_weights_or_damaged_files_are_learned_anew(own, data, model, monkeypatch):
    calls = []
    learn = learned.learn
    monkeypatch.setattr(learned, "learn", lambda *given: (calls.append(1), learn(*given))[1])
    before = varcon.load(own, "cpu").config.centroids
    assert not calls
    encoder = EncoderSettings().build()
    save_weights(own / "encoder.safetensors", encoder)
    assert not np.allclose(varcon.load(own, "cpu").config.centroids, before)
    for file in ("config.json", "centroids.npy", "classifier.npy"):
        (own / "deploy" / file).write_text("{")
        varcon.load(own, "cpu")
    for file in ("training.npy", "classifier.npy"):
        (own / "deploy" / file).unlink()
        varcon.load(own, "cpu")
    assert len(calls) == 6


def test_what_another_version_fitted_is_fitted_anew(own, data, model):
    path = own / "deploy/config.json"
    whole = path.read_text()
    kept = json.loads(whole)
    del kept["origin"]["fit"]
    kept["prediction"]["threshold"] = 99.0
    path.write_text(json.dumps(kept))
    assert varcon.load(own, "cpu").config.threshold == model.config.threshold
    assert path.read_text() == whole


@pytest.mark.parametrize(
    "file", ["config.json", "centroids.npy", "classifier.npy", "training.json", "training.npy"]
)
@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_what_is_cut_short_is_made_again(own, data, model, file, part):
    path = own / "deploy" / file
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    image = data / "test/red/01.png"
    assert varcon.load(own, "cpu").predict([image]) == model.predict([image])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["[]", "{}", '{"labels": [0], "files": null, "root": ""}'])
def test_training_facts_of_other_images_are_made_again(own, data, model, text):
    (own / "deploy/training.json").write_text(text)
    image = data / "test/red/01.png"
    assert varcon.load(own, "cpu").predict([image]) == model.predict([image])


def test_data_without_files_name_their_images_by_number(tmp_path, small_recipe):
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 256, (8, 8, 8), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(8) % 2
    np.savez(tmp_path / "data.npz", **arrays)
    small = small_recipe(tmp_path / "data.npz", name="npz", image_size=0)
    small = dataclasses.replace(small, train=dataclasses.replace(small.train, batch_size=8))
    model = varcon.load(varcon.train(small, tmp_path / "run"), "cpu")
    nearest = model.predict(arrays["train_images"][3])[0].neighbours[0]
    assert (nearest.index, nearest.path, nearest.name) == (3, None, "training image 3 (1)")
    photo = Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8))  # of any size and colour
    assert model.predict(photo)[0].label in ("0", "1")


def test_what_is_no_model_is_refused(own, tmp_path):
    with pytest.raises(InputError, match="there is no run or exported model"):
        varcon.load(tmp_path / "nowhere")
    (tmp_path / "notes").mkdir()
    with pytest.raises(InputError, match="neither a run nor an exported model"):
        varcon.load(tmp_path / "notes")
    (tmp_path / "notes/config.json").write_text('{"architectures": ["other"]}')
    (tmp_path / "notes/model.safetensors").write_text("")
    with pytest.raises(InputError, match="not that of a varcon model"):
        varcon.load(tmp_path / "notes")
    (own / "encoder.safetensors").unlink()
    with pytest.raises(InputError, match=r"has not finished training.*--resume"):
        varcon.load(own)


def test_impossible_numbers_are_refused(model):
    with pytest.raises(InputError, match="top is 0"):
        model.predict([], top=0)
    with pytest.raises(InputError, match="NaN"):
        model.predict_features(np.full((1, model.features), np.nan, np.float32))


def test_a_run_on_vectors_is_refused(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 2
    vectors = generator.normal(size=(40, 5)).astype(np.float32) + labels[:, None]
    path = tmp_path / "table.npz"
    np.savez(path, train_images=vectors, train_labels=labels, test_images=vectors, test_labels=labels)
    recipe = varcon.Recipe(
        data=DataSettings("npz", str(path)),
        augment=AugmentSettings(policy="vectors"),
        encoder=EncoderSettings("mlp"),
        train=TrainSettings(epochs=1, batch_size=16, device="cpu"),
    )
    run = varcon.train(recipe, tmp_path / "run")
    with pytest.raises(InputError, match="trained on vectors, and this is for images"):
        varcon.load(run, "cpu")
