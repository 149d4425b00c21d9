import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import Data, InputError, Split
from varcon.data.corrupted_folder import locate, open_corrupted


@pytest.fixture
def data():
    labels = torch.tensor([0, 1, 1, 0])
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    return Data(
        Split(images, labels), Split(images, labels), ["cat", "dog"], (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)
    )


@pytest.fixture
def arrays(tmp_path):
    """Four images of five severities, each filled with its position."""
    positions = np.arange(20, dtype=np.uint8)
    np.save(tmp_path / "fog.npy", np.broadcast_to(positions[:, None, None, None], (20, 8, 8, 3)))
    np.save(tmp_path / "labels.npy", np.tile(np.array([0, 1, 1, 0], dtype=np.uint8), 5))
    return tmp_path


@pytest.fixture
def folders(tmp_path):
    for name, value in (("cat/a", 10), ("cat/b", 20), ("dog/c", 30), ("dog/d", 40)):
        file = tmp_path / "weather/fog/3" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (value, value, value)).save(file)
    return tmp_path


def test_arrays_hold_five_severities_one_after_the_other(arrays, data):
    for severity in (1, 5):
        labels, read = open_corrupted(str(arrays), "fog", severity, data)
        assert labels.tolist() == [0, 1, 1, 0]
        images = read(torch.tensor([3, 1]))
        assert images.shape == (2, 3, 8, 8)
        assert images[:, 0, 0, 0].tolist() == [4 * severity - 1, 4 * severity - 3]


def test_arrays_are_brought_to_the_size_of_the_data(arrays, data):
    data.test.images = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
    _, read = open_corrupted(str(arrays), "fog", 1, data)
    assert read(torch.tensor([2])).shape == (1, 3, 16, 16)


def test_folders_of_classes(folders, data):
    """With or without the name of the archive around the corruption's folder."""
    for root in (folders, folders / "weather"):
        labels, read = open_corrupted(str(root), "fog", 3, data)
        assert labels.tolist() == [0, 0, 1, 1]
        assert read(torch.tensor([2, 0]))[:, 1, 4, 4].tolist() == [30, 10]


def test_what_is_missing_is_named(arrays, data, tmp_path):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere of corrupted images.*NAME\.npy"):
        locate(str(tmp_path / "nowhere"), "fog", 1)
    with pytest.raises(InputError, match=r"there is no file .*snow\.npy"):
        locate(str(arrays), "snow", 1)
    (arrays / "labels.npy").unlink()
    with pytest.raises(InputError, match=r"there is no file .*labels\.npy"):
        locate(str(arrays), "fog", 1)


def test_what_is_missing_of_the_folders_is_named(folders, data):
    with pytest.raises(InputError, match=r"holds neither snow\.npy nor a folder snow"):
        locate(str(folders), "snow", 3)
    with pytest.raises(InputError, match=r"there is no folder .*fog/4"):
        locate(str(folders), "fog", 4)
    (folders / "weather/fog/5").mkdir()
    with pytest.raises(InputError, match="holds no folder per class"):
        open_corrupted(str(folders), "fog", 5, data)
    (folders / "weather/fog/3/bird").mkdir()
    with pytest.raises(InputError, match="bird is a class without training images"):
        open_corrupted(str(folders), "fog", 3, data)


@pytest.mark.parametrize("kind", ["arrays", "folders"])
def test_other_images_than_those_of_the_run_are_refused(kind, data, request):
    """Their clean accuracy is not known."""
    data.test = Split(data.test.images[:3], data.test.labels[:3])
    with pytest.raises(InputError, match=r"holds 4 images of a severity.* the run has 3 test images"):
        open_corrupted(str(request.getfixturevalue(kind)), "fog", 3, data)


def test_files_that_are_something_else(arrays, data):
    np.save(arrays / "labels.npy", np.zeros(20, dtype=np.uint8))
    with pytest.raises(InputError, match="differ from those of the test images"):
        open_corrupted(str(arrays), "fog", 1, data)
    np.save(arrays / "labels.npy", np.full(20, 2))
    with pytest.raises(InputError, match=r"hold 2 at position 0, outside 0\.\.1"):
        open_corrupted(str(arrays), "fog", 1, data)
    np.save(arrays / "labels.npy", np.zeros(4, dtype=np.uint8))
    with pytest.raises(InputError, match="one for each of the 20 images"):
        open_corrupted(str(arrays), "fog", 1, data)
    np.save(arrays / "fog.npy", np.zeros((20, 8, 8)))
    with pytest.raises(InputError, match=r"should hold the images of five severities"):
        open_corrupted(str(arrays), "fog", 1, data)
    (arrays / "fog.npy").write_bytes(b"not an array")
    with pytest.raises(InputError, match=r"is not a readable \.npy file"):
        open_corrupted(str(arrays), "fog", 1, data)
