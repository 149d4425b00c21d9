import json
import os

import numpy as np
import pytest

from varcon.core import InputError
from varcon.deploy import index as indexes
from varcon.deploy.index import open_index
from varcon.deploy.model import Model


@pytest.fixture
def own_model(own, model):
    """The model, with a folder of its own for indexes."""
    return Model(model._encode, model.config, own / "encoder.safetensors", model.device)


@pytest.fixture
def encoded(own_model, monkeypatch):
    """The names of the files that are encoded, as they are."""
    names = []
    encode = indexes.encode

    def noting(files, *rest):
        names.extend(file.name for file in files)
        return encode(files, *rest)

    monkeypatch.setattr(indexes, "encode", noting)
    return names


def test_the_nearest_files_are_found(own_model, zoo):
    index = open_index(own_model, zoo)
    files = sorted(zoo.iterdir())
    vectors = own_model.embed(files)
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = index.search(vectors, 3)
    for row, hits in enumerate(found):
        cosines = directions @ directions[row]
        assert [cosine for cosine, _ in hits] == pytest.approx(np.sort(cosines)[::-1][:3], abs=1e-5)
        for cosine, file in hits:
            assert cosines[files.index(file)] == pytest.approx(cosine, abs=1e-5)
        assert hits[0][0] == pytest.approx(1, abs=1e-5)


def test_only_what_is_new_or_has_changed_is_encoded(own_model, zoo, encoded, draw, monkeypatch):
    first = open_index(own_model, zoo)
    assert len(encoded) == len(first.entries) == 12
    encoded.clear()
    again = open_index(own_model, zoo)
    assert not encoded
    assert again.entries == first.entries
    assert np.array_equal(again.vectors, first.vectors)

    draw("blue", 77).save(zoo / "plain.png")
    draw("green", 78).save(zoo / "new.png")
    (zoo / "grey.png").unlink()
    monkeypatch.setattr(indexes, "FILES_AT_ONCE", 5)
    changed = open_index(own_model, zoo)
    assert sorted(encoded) == ["new.png", "plain.png"]
    wanted = own_model.embed([zoo / entry.name for entry in changed.entries])
    assert changed.vectors == pytest.approx(wanted / np.linalg.norm(wanted, axis=1, keepdims=True), abs=1e-5)
    assert len(list((own_model.weights.parent / "indexes").rglob("*.npy"))) == 1


def test_a_file_with_the_old_size_and_a_new_time_is_encoded_again(own_model, zoo, encoded):
    open_index(own_model, zoo)
    encoded.clear()
    os.utime(zoo / "plain.png", ns=(1, 1))
    open_index(own_model, zoo)
    assert encoded == ["plain.png"]


def test_broken_files_are_told_every_time_and_left_out(own_model, zoo, encoded, draw):
    (zoo / "broken.png").write_text("no image")
    index = open_index(own_model, zoo)
    assert len(index.broken) == 1
    assert "broken.png cannot be read" in index.broken[0]
    assert len(index.vectors) == 12
    assert all(
        file.name != "broken.png" for _, file in index.search(own_model.embed(zoo / "plain.png"), 99)[0]
    )
    encoded.clear()
    assert open_index(own_model, zoo).broken == index.broken
    assert not encoded
    draw("green", 78).save(zoo / "new.png")
    changed = open_index(own_model, zoo)
    assert changed.broken == index.broken
    assert len(changed.vectors) == 13


def test_a_file_that_can_be_read_now_is_encoded(own_model, zoo, encoded, monkeypatch):
    whole = indexes.read_block

    def without_plain(files, size):
        block = whole([file for file in files if file.name != "plain.png"], size)
        return block._replace(broken={zoo / "plain.png": "permission denied"})

    with monkeypatch.context() as patch:
        patch.setattr(indexes, "read_block", without_plain)
        assert open_index(own_model, zoo).broken == ["permission denied"]
    encoded.clear()
    index = open_index(own_model, zoo)
    assert index.broken == []
    assert encoded == ["plain.png"]
    assert len(index.vectors) == 12


def test_another_encoder_makes_its_own_index(own_model, zoo, encoded):
    open_index(own_model, zoo)
    encoded.clear()
    own_model.weights.write_bytes(b"other weights")
    open_index(own_model, zoo)
    assert len(encoded) == 12


def test_a_damaged_index_is_made_again(own_model, zoo, encoded):
    whole = open_index(own_model, zoo)
    (place,) = (own_model.weights.parent / "indexes").iterdir()
    contents = json.loads((place / "contents.json").read_text())
    for damage in ("{", json.dumps({**contents, "images": contents["images"][1:]})):
        encoded.clear()
        (place / "contents.json").write_text(damage)
        assert open_index(own_model, zoo).entries == whole.entries
        assert len(encoded) == 12


def test_an_interrupt_keeps_what_is_done(own_model, zoo, encoded, monkeypatch):
    monkeypatch.setattr(indexes, "FILES_AT_ONCE", 5)

    def interrupt(done, total, what):
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_index(own_model, zoo, interrupt)
    assert len(encoded) == 10
    encoded.clear()
    assert len(open_index(own_model, zoo).vectors) == 12
    assert len(encoded) == 2


def test_a_folder_without_images_is_refused_and_leaves_nothing(own_model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image in"):
        open_index(own_model, tmp_path / "empty")
    assert not (own_model.weights.parent / "indexes").exists()


def test_a_folder_may_have_a_name_that_is_not_utf_8(own_model, zoo, encoded):
    odd = zoo.rename(zoo.with_name(os.fsdecode("caf\u00e9s".encode("latin-1"))))
    (odd / "plain.png").rename(odd / os.fsdecode("caf\u00e9.png".encode("latin-1")))
    for _ in range(2):
        index = open_index(own_model, odd)
        assert len(index.vectors) == len(encoded) == 12  # the second time what is there is found again
    assert all((odd / entry.name).exists() for entry in index.entries)
