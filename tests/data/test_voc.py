import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import InputError
from varcon.data.voc import load_voc

# What each photograph shows, as the authors' lists write it; 0 is difficult to see.
CATS = {"000001": "1", "000002": "-1", "000003": " 0"}
DOGS = {"000001": "1", "000002": "1", "000003": "-1"}


def write_list(root, name, shown):
    file = root / "ImageSets" / "Main" / f"{name}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{image} {value:>2}\n" for image, value in shown.items()), encoding="utf-8")


def write_image(root, name, colour, size=(40, 30)):
    (root / "JPEGImages").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(root / "JPEGImages" / f"{name}.jpg")


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2007"
    write_list(root, "cat_trainval", CATS)
    write_list(root, "dog_trainval", DOGS)
    write_list(root, "cat_test", {"000004": "-1"})
    write_list(root, "dog_test", {"000004": "1"})
    write_list(root, "trainval", {})  # the list of all images, which is of no class
    for number, colour in enumerate(("red", "lime", "blue", "white"), start=1):
        write_image(root, f"{number:06}", colour)
    return root


def test_labels_and_images_as_the_lists_say(root):
    data = load_voc(str(root))
    assert data.classes == ["cat", "dog"]
    assert data.train.labels.tolist() == [[1, 1], [0, 1], [-1, 0]]
    assert data.test.labels.tolist() == [[0, 1]]
    assert data.train.images.shape == (3, 3, 30, 30)
    colours = data.train.images.float().mean((2, 3))
    assert colours.argmax(1).tolist() == [0, 1, 2]
    assert data.test.images.min() > 250
    np.testing.assert_allclose(data.mean, data.train.images.double().mean((0, 2, 3)) / 255)


@pytest.mark.parametrize("above", [0, 1, 2])
def test_the_archives_outer_folders_serve_as_well(root, above):
    path = [root, *root.parents][above]
    assert torch.equal(load_voc(str(path), 8).train.labels, load_voc(str(root), 8).train.labels)
    assert load_voc(str(path), 8).train.images.shape[-1] == 8


def test_what_is_amiss_is_said(root, tmp_path):
    with pytest.raises(InputError, match=r"nowhere has no folder ImageSets/Main; the layout is JPEGImages"):
        load_voc(str(tmp_path / "nowhere"))
    lists = root / "ImageSets" / "Main"
    (lists / "cat_test.txt").rename(lists / "kept")
    with pytest.raises(InputError, match=r"there is no .*cat_test.txt; unpack the archives of both"):
        load_voc(str(root))
    (lists / "cat_test.txt").write_text("000004\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cat_test.txt, line 1, is not an image's name and 1, -1 or 0"):
        load_voc(str(root))
    (lists / "cat_test.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cat_test.txt names no image"):
        load_voc(str(root))
    write_list(root, "cat_test", {"000005": "1"})
    with pytest.raises(InputError, match=r"dog_test.txt names other images than cat_test.txt"):
        load_voc(str(root))
    write_list(root, "dog_test", {"000005": "1"})
    with pytest.raises(InputError, match=r"000005.jpg cannot be read"):
        load_voc(str(root))
    for file in lists.glob("*_trainval.txt"):
        file.unlink()
    with pytest.raises(InputError, match=r"Main has no list <class>_trainval.txt"):
        load_voc(str(root))
