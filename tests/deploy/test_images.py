import numpy as np
import pytest
import torch
from PIL import Image

from varcon.core import InputError
from varcon.data.decoding import decode
from varcon.deploy.images import find_images, pixel_blocks, read_block, read_blocks


def to_pixels(images, size):
    blocks = list(pixel_blocks(images, size))
    return torch.cat(blocks) if blocks else None


def test_files_folders_and_patterns_are_found_once_and_in_order(zoo, monkeypatch):
    monkeypatch.chdir(zoo)
    inside = zoo / "more/deep"
    inside.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(inside / "b.png")
    Image.new("RGB", (4, 4)).save(inside / "[a].png")
    Image.new("RGB", (4, 4)).save(inside / ".hidden.png")
    (inside / "notes.txt").write_text("no image")
    deep = [inside / "[a].png", inside / "b.png"]
    assert find_images([zoo / "more"]) == deep
    assert find_images([inside / "[a].png"]) == deep[:1]  # a file, although it looks like a pattern
    assert find_images([f"{zoo}/more/**/*.png"]) == deep
    assert find_images([f"{zoo}/mor*"]) == deep
    assert find_images([deep[1], zoo / "more"]) == [deep[1], deep[0]]
    assert [file.name for file in find_images(["*.gif", "plain.png"])] == ["animated.gif", "plain.png"]
    assert find_images([inside / "notes.txt"]) == [inside / "notes.txt"]  # the user says it is one


def test_linked_folders_are_followed_and_a_link_back_is_not(zoo, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "pictures").symlink_to(zoo)
    (zoo / "back").symlink_to(linked)
    assert find_images([linked]) == [linked / "pictures" / file.name for file in sorted(zoo.glob("*.*"))]


def test_many_images_come_in_blocks(monkeypatch):
    monkeypatch.setattr("varcon.deploy.images.FILES_AT_ONCE", 3)
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
    assert [len(block) for block in pixel_blocks(list(images), 8)] == [3, 3, 1]


@pytest.mark.parametrize(
    ("place", "words"),
    [("nowhere", "there is no file or folder"), ("none*.png", "no image matches"), ("empty", "no image in")],
)
def test_what_is_not_there_is_named(tmp_path, place, words):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=words):
        find_images([tmp_path / place])


def test_an_empty_name_is_not_the_folder_here(zoo, monkeypatch):
    """As of a shell's variable that is not set."""
    monkeypatch.chdir(zoo)
    with pytest.raises(InputError, match="one of the images has an empty name"):
        find_images([""])
    assert find_images(["."])


def test_pictures_of_every_kind_are_read_as_training_reads_them(zoo):
    files = find_images([zoo])
    assert len(files) == 12
    wanted = decode(files, 16)
    block = read_block(files, 16)
    assert block.files == files
    assert torch.equal(block.pixels, wanted)
    assert torch.equal(to_pixels(files, 16), wanted)
    green = block.pixels[files.index(zoo / "turned.jpg")].float().mean((1, 2))
    assert green.argmax() == 1
    first = block.pixels[files.index(zoo / "animated.gif")].float().mean((1, 2))
    assert first.argmax() == 2  # blue, the first frame


def test_dim_pictures_of_16_bits_are_warned_of(tmp_path):
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    dim, full = tmp_path / "dim.png", tmp_path / "full.png"
    Image.fromarray(values * 16).save(dim)  # of 10 bits
    Image.fromarray(values * 1024).save(full)
    with pytest.warns(UserWarning, match=r"dim\.png.*: the upper 8 of 16 bits are read") as caught:
        block = read_block([dim, full], 8)
        with Image.open(dim) as image:
            pixels = to_pixels([dim, full, image], 8)
    assert len(caught) == 2 and "full" not in str(caught[0].message) + str(caught[1].message)
    assert "an image of mode I;16" in str(caught[1].message)
    assert torch.equal(pixels[:2], block.pixels) and torch.equal(pixels[2], pixels[0])


def test_a_broken_file_stops_nothing(zoo):
    (zoo / "broken.jpg").write_bytes(b"no image")
    (zoo / "cut.png").write_bytes((zoo / "plain.png").read_bytes()[:90])
    files = find_images([zoo])
    blocks = list(read_blocks(files, 8, at_once=5))
    assert [len(block.files) + len(block.broken) for block in blocks] == [5, 5, 4]
    broken = {file.name: text for block in blocks for file, text in block.broken.items()}
    assert set(broken) == {"broken.jpg", "cut.png"}
    assert all("cannot be read" in text for text in broken.values())
    whole = [file for block in blocks for file in block.files]
    assert torch.equal(torch.cat([block.pixels for block in blocks]), decode(whole, 8))


def test_arrays_tensors_and_pictures_are_the_same_images():
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    wanted = torch.from_numpy(images).permute(0, 3, 1, 2)
    for given in (
        images,
        wanted,
        list(images),
        list(wanted),
        [Image.fromarray(image) for image in images],
        [images[0], wanted[1], Image.fromarray(images[2]), images[3:]],
    ):
        assert torch.equal(to_pixels(given, 8), wanted)
    assert torch.equal(to_pixels(images[0], 8), wanted[:1])
    assert torch.equal(to_pixels(Image.fromarray(images[0]), 8), wanted[:1])
    assert to_pixels([], 8) is None
    assert torch.equal(to_pixels((image for image in images), 8), wanted)


def test_grey_is_repeated_and_other_sizes_are_resized_as_files_are(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)
    wanted = torch.from_numpy(grey)[:, None].repeat(1, 3, 1, 1)
    for given in (grey[..., None], torch.from_numpy(grey)[:, None], list(grey), list(torch.from_numpy(grey))):
        assert torch.equal(to_pixels(given, 8), wanted)
    image = np.random.default_rng(1).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    wanted = decode([tmp_path / "a.png"], 8)
    assert torch.equal(to_pixels(image, 8), wanted)
    assert torch.equal(to_pixels(torch.from_numpy(image).permute(2, 0, 1), 8), wanted)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((8, 8, 3)), "must be uint8"),
        (np.zeros((8, 8, 5, 2), np.uint8), "have the shape"),
        (np.zeros((2, 0, 8, 3), np.uint8), "have the shape"),
        (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), "have the shape"),
        (torch.zeros(64, 96, 3, dtype=torch.uint8), r"\[64, 96, 3\] .* last; give tensors \[3"),
        (torch.zeros(64, 96, 1, dtype=torch.uint8), "channels last; give tensors"),
        (np.zeros((3, 64, 96), np.uint8), r"\[3, 64, 96\] .* first; give arrays \[H"),
        ([np.zeros((1, 64, 96), np.uint8)], "channels first; give arrays"),
        (np.zeros((40, 40, 4), np.uint8), r"\[40, 40, 4\] has 4 channels.*convert it to RGB"),
        (np.zeros((40, 40, 2), np.uint8), "2 channels.*convert it to RGB"),
        ([torch.zeros(4, 40, 40, dtype=torch.uint8)], "4 channels.*convert it to RGB"),
        (np.zeros((2, 40, 40, 4), np.uint8), "have the shape"),
        (np.zeros((5, 8, 8), np.uint8), r"have the shape \[5, 8, 8\].*1 in place of 3 is grey"),
        (torch.zeros(5, 8, 8, dtype=torch.uint8), "have the shape"),
        (7, "of type int"),
        ([7], "of type int"),
        (["nowhere.png"], "there is no file nowhere.png"),
        (Image.new("F", (4, 4)), "32 bits"),
    ],
)
def test_what_cannot_be_an_image_is_refused(images, words):
    with pytest.raises(InputError, match=words):
        to_pixels(images, 8)
