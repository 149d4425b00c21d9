import shutil

import numpy as np
import pytest

import varcon
from varcon.core import InputError
from varcon.deploy.model import load
from varcon.deploy.serve import gallery as module
from varcon.deploy.serve.gallery import AROUND, Map, open_gallery


def silent(done, total, what):
    pass


@pytest.fixture(scope="module")
def digits(small_recipe, tmp_path_factory):
    """A run of data that are no files."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("arrays")
    images = rng.integers(0, 256, (30, 16, 16, 3), dtype=np.uint8)
    np.savez(
        folder / "data.npz",
        train_images=images[:20],
        train_labels=np.arange(20) % 2,
        test_images=images[20:],
        test_labels=np.arange(10) % 2,
    )
    recipe = small_recipe(folder / "data.npz", name="npz")
    return varcon.train(recipe, folder / "run"), images[:20]


def test_pictures_of_arrays_are_kept_so_that_the_data_may_go(digits):
    run, images = digits
    data = run.parent / "data.npz"
    model = load(run, "cpu")
    open_gallery(model, None, None, silent)
    data.rename(data.with_suffix(".gone"))
    found, amiss = open_gallery(load(run, "cpu"), None, None, silent)
    assert amiss == []
    for number in range(20):
        assert np.array_equal(np.asarray(found.picture_of(number)), images[number])
        assert found.labels_of(np.array([number])) == [number % 2]
    (run / "serve/pixels.npy").write_bytes(b"damaged")
    with pytest.raises(InputError, match="needs its training data once"):
        open_gallery(load(run, "cpu"), None, None, silent)
    data.with_suffix(".gone").rename(data)
    assert np.array_equal(
        np.asarray(open_gallery(load(run, "cpu"), None, None, silent)[0].picture_of(7)), images[7]
    )


def test_the_map_is_drawn_once_and_again_when_the_images_have_changed(own, data, zoo, monkeypatch):
    model, drawn = load(own, "cpu"), []

    class Counted(module.Projector):
        def __call__(self, features, start=None):
            drawn.append(len(features))
            return super().__call__(features, start)

    monkeypatch.setattr(module, "Projector", Counted)
    first = open_gallery(model, None, None, silent)[0].map
    again = open_gallery(model, None, None, silent)[0].map
    assert drawn == [36]
    assert np.array_equal(first.points, again.points)
    open_gallery(model, zoo, None, silent)
    (zoo / "grey.png").unlink()
    assert len(open_gallery(model, zoo, None, silent)[0].map.ids) == 11
    open_gallery(model, zoo, None, silent)
    assert drawn == [36, 12, 11]
    (own / "serve/map-training.npz").write_bytes(b"damaged")
    assert np.array_equal(open_gallery(model, None, None, silent)[0].map.points, first.points)
    assert drawn == [36, 12, 11, 36]


def test_too_few_images_make_no_map(own, data, tmp_path, draw):
    folder = tmp_path / "few"
    folder.mkdir()
    for number in range(3):
        draw("red", number).save(folder / f"{number}.png")
    found = open_gallery(load(own, "cpu"), folder, None, silent)[0]
    assert found.map is None
    assert len(found.around(found.vectors[:1], 6)[0]) == 3


def test_a_place_is_the_mean_of_the_nearest_by_their_distance():
    angles = np.array([0.0, 0.2, 0.5, 2.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    points = np.array([[0, 0], [4, 0], [0, 8], [100, 100]], np.float32)
    found = Map(np.array([3, 5, 7, 9]), points, vectors)
    asked = 0.1
    place, near = found.place(np.array([np.cos(asked), np.sin(asked)], np.float32))
    weights = 1 / (1 - np.cos(angles[:AROUND] - asked))
    assert sorted(near) == [3, 5, 7]
    assert place == pytest.approx((weights[:, None] * points[:AROUND]).sum(0) / weights.sum(), rel=1e-3)
    assert found.place(vectors[1])[0] == pytest.approx([4, 0], abs=0.01)


def test_a_folder_that_has_gone_is_told(own, data, tmp_path):
    model = load(own, "cpu", shutil.copytree(data, tmp_path / "gone"))
    shutil.rmtree(tmp_path / "gone")
    found, amiss = open_gallery(model, None, None, silent)
    assert len(found) == 36
    assert len(amiss) == 1
    assert "--data.path" in amiss[0]
