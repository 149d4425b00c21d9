import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from pictures import noise, save
from PIL import Image

from varcon.core import InputError
from varcon.data import assemble, folder
from varcon.data.folder import decode, load_folder, usual_size
from varcon.data.subset import hold_out
from varcon.deploy.images import find_images


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes, three training images and one test image each, 6 x 6 pixels."""
    for seed in range(8):
        part, number = ("train", seed // 2) if seed < 6 else ("test", 0)
        save(tmp_path / part / ("bee", "ant")[seed % 2] / f"{number}.png", noise(6, 6, seed))
    return tmp_path


# ---- what is read ----


def test_round_trip_of_png(root: Path) -> None:
    data = load_folder(str(root))
    assert data.classes == ["ant", "bee"]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [0, 1]
    for images, seeds in ((data.train.images, (1, 3, 5, 0, 2, 4)), (data.test.images, (7, 6))):
        expected = np.stack([noise(6, 6, seed) for seed in seeds]).transpose(0, 3, 1, 2)
        assert np.array_equal(images.numpy(), expected)
        assert images.is_contiguous() and images.dtype == torch.uint8
    scaled = data.train.images.double() / 255
    np.testing.assert_allclose(data.mean, scaled.mean((0, 2, 3)))
    np.testing.assert_allclose(data.std, scaled.std((0, 2, 3), correction=0))


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_other_names_of_the_test_split(root: Path, name: str) -> None:
    (root / "test").rename(root / name)
    assert len(load_folder(str(root)).test) == 2


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Train", "Test"),
        ("TRAIN", "val"),
        ("train", "Test"),
        ("Training", "Testing"),
        ("train_set", "test_set"),
        ("training_set", "test_set"),
        ("Training_Set", "Validation"),
    ],
)
def test_other_names_of_both_splits(root: Path, train: str, test: str) -> None:
    expected = load_folder(str(root))
    for old, new in (("train", train), ("test", test)):
        (root / old).rename(root / "on its way")  # where case is ignored, a folder cannot replace itself
        (root / "on its way").rename(root / new)
    found = load_folder(str(root))
    assert found.classes == ["ant", "bee"]
    assert torch.equal(found.train.images, expected.train.images)
    assert torch.equal(found.test.images, expected.test.images)


def test_test_is_preferred_and_may_lack_a_class(root: Path) -> None:
    save(root / "val" / "ant" / "0.png", noise(6, 6))
    (root / "test" / "ant" / "0.png").unlink()
    (root / "test" / "ant").rmdir()
    assert load_folder(str(root)).test.labels.tolist() == [1]


def test_hidden_and_other_files_are_passed_over(root: Path) -> None:
    save(root / "train" / "ant" / "9.PNG", noise(6, 6))
    for name in (".hidden.png", "notes.txt", "Thumbs.db"):
        (root / "train" / "ant" / name).write_text("no image")
    (root / "train" / ".cache").mkdir()
    (root / "train" / "readme.png").write_text("no class")
    assert load_folder(str(root)).train.labels.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_warnings_of_pillow_stay_inside(root: Path) -> None:
    """Warnings are errors in this suite; a palette with several transparent entries makes Pillow warn."""
    palette = Image.fromarray(noise(6, 6)).quantize(8)
    file = save(root / "train" / "ant" / "0.png", palette, transparency=bytes([0, 100, 200, 255]))
    with pytest.warns(UserWarning, match="Transparency"), Image.open(file) as image:
        image.convert("RGB")
    images = load_folder(str(root)).train.images
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), np.asarray(palette.convert("RGB")))


# ---- sizes, memory, threads ----


def test_default_size_is_the_median_short_side(tmp_path: Path) -> None:
    sides = [(3, 50), (20, 9), (9, 9), (100, 40), (8, 80)]
    files = [save(tmp_path / f"{i}.png", noise(*shape)) for i, shape in enumerate(sides)]
    assert usual_size(files) == 9
    large = save(tmp_path / "large.png", np.zeros((300, 400), np.uint8))
    assert usual_size([large]) == 224


def test_given_size(root: Path) -> None:
    assert load_folder(str(root), image_size=11).train.images.shape == (6, 3, 11, 11)


def test_progress_counts_to_the_end(root: Path) -> None:
    for i in range(40):
        save(root / "train" / "ant" / f"more {i}.png", noise(6, 6))
    calls: list[tuple[int, int, str]] = []
    load_folder(str(root), progress=lambda *call: calls.append(call))
    measured = [(done, total) for done, total, what in calls if what == "measuring images"]
    decoded = [(done, total) for done, total, what in calls if what == "decoding images"]
    assert measured == [(16, 46), (32, 46), (46, 46)]
    assert decoded == [(16, 48), (32, 48), (48, 48)]


def test_memory_is_asked_for_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "available_memory", lambda: 240_000_000)
    with pytest.raises(
        InputError, match=r"8 images of 5000 x 5000 .* 0\.60 GB .* 0\.24 GB .* to 3162 or less"
    ):
        load_folder(str(root), image_size=5000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")  # each of which reads them
    words = r"8 images of 1500 x 1500 pixels for each of 8 processes need 0\.43 GB .* to 1118 or less"
    with pytest.raises(InputError, match=words):
        load_folder(str(root), image_size=1500)


@pytest.mark.parametrize("layout", ["train without test", "classes alone"])
def test_some_are_held_out_where_there_are_no_test_images(tmp_path: Path, layout: str) -> None:
    start = tmp_path / "train" if layout == "train without test" else tmp_path
    for seed in range(25):
        save(start / ("bee", "ant")[seed < 10] / f"{seed:02}.png", noise(6, 6, seed))
    data = load_folder(str(tmp_path))
    assert data.classes == ["ant", "bee"]
    assert data.test.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.train.labels.tolist() == [0] * 8 + [1] * 12
    every = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert len(every.unique(dim=0)) == 25
    again = load_folder(str(tmp_path))
    assert torch.equal(again.test.images, data.test.images)


def test_the_images_held_out_are_drawn_from_the_order_of_paths_and_take_no_memory_of_their_own(
    tmp_path: Path,
) -> None:
    files = [
        save(tmp_path / name / f"{seed:02}.png", noise(7, 6, seed))
        for name, seeds in (("ant", range(12)), ("bee", range(12, 30)))
        for seed in seeds
    ]
    labels = torch.tensor([0] * 12 + [1] * 18)
    kept, held = hold_out(labels, 0.2, seed=0)
    every = decode(files, 6)
    data = load_folder(str(tmp_path))
    for split, places in ((data.train, kept), (data.test, held)):
        assert torch.equal(split.images, every[places])
        assert torch.equal(split.labels, labels[places])
        memory = split.images.untyped_storage()
        assert memory.nbytes() == every.numel()  # one array of all images, of which each split is a part
        assert memory.data_ptr() == data.train.images.untyped_storage().data_ptr()


# ---- what is refused ----


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*absent: correct data\.path"):
        load_folder(str(tmp_path / "absent"))


def test_no_train_folder(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no folder per class: the layout is <class>/.*, or train/<class>"
    ):
        load_folder(str(tmp_path))
    save(tmp_path / "val" / "ant" / "0.png", noise(6, 6))
    with pytest.raises(InputError, match="has a folder val and no folder train: the layout is <class>"):
        load_folder(str(tmp_path))


def test_no_class_folders(root: Path) -> None:
    for file in sorted((root / "train").glob("*/*")):
        file.rename(root / "train" / f"{file.parent.name} {file.name}")
    for class_folder in (root / "train" / "ant", root / "train" / "bee"):
        class_folder.rmdir()
    with pytest.raises(InputError, match="train has no folder per class: the layout is"):
        load_folder(str(root))


def test_empty_class_folders_are_named_together(root: Path) -> None:
    for name in ("asp", "yak"):
        (root / "train" / name).mkdir()
    with pytest.raises(
        InputError, match=r"train/asp and .*/train/yak hold no image .*: add some or remove them"
    ):
        load_folder(str(root))


def test_what_a_mac_adds_and_links_upwards_are_no_classes(root: Path) -> None:
    before = load_folder(str(root))
    (root / "train/__MACOSX").mkdir()
    (root / "train/loop").symlink_to(root / "train", target_is_directory=True)
    (root / "train/up").symlink_to(root, target_is_directory=True)
    after = load_folder(str(root))
    assert after.classes == before.classes
    assert torch.equal(after.train.images, before.train.images)


@pytest.mark.parametrize("part", ["train", "test"])
def test_empty_class_folder(root: Path, part: str) -> None:
    for file in (root / part / "bee").iterdir():
        file.rename(file.with_suffix(".txt"))
    with pytest.raises(InputError, match=rf"{part}/bee holds no image .*: add some or remove it"):
        load_folder(str(root))


def test_test_images_without_class_folders(root: Path) -> None:
    """As ImageNet's validation images unpack."""
    (root / "test").rename(root / "elsewhere")
    for number in range(3):
        save(root / "val" / f"{number}.png", noise(6, 6))
    with pytest.raises(
        InputError,
        match=r"val holds images and no folder per class: sort them into val/<class>/, or move val out of .*"
        "; some training images are then held out in its place$",
    ):
        load_folder(str(root))


def test_two_training_folders(root: Path) -> None:
    save(root / "Training" / "ant" / "0.png", noise(6, 6))
    with pytest.raises(InputError, match="has the folders Training and train: keep the one to train on"):
        load_folder(str(root))


def test_splits_of_unknown_names_are_not_classes(tmp_path: Path) -> None:
    for place in ("amazon/cup/0.png", "amazon/pen/0.png", "webcam/cup/1.png", "webcam/pen/a/1.png"):
        save(tmp_path / place, noise(6, 6))
    with pytest.raises(
        InputError,
        match=r"its folders amazon and webcam hold no image of their own, but each the same folders, cup and "
        "pen: name two of them train and test, or, if they are the classes, move them into a folder train$",
    ):
        load_folder(str(tmp_path))
    save(tmp_path / "webcam" / "2.png", noise(6, 6))  # an image of its own: a class, however it is arranged
    assert load_folder(str(tmp_path)).classes == ["amazon", "webcam"]


def test_classes_with_the_same_folders_are_classes_within_train(tmp_path: Path) -> None:
    for number, place in enumerate(("cat/indoors", "cat/outdoors", "dog/indoors", "dog/outdoors")):
        save(tmp_path / "train" / place / f"{number}.png", noise(6, 6))
    assert load_folder(str(tmp_path)).classes == ["cat", "dog"]


def test_nothing_to_hold_out(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        save(tmp_path / name / "0.png", noise(6, 6))
    with pytest.raises(InputError, match="one image of each class, and none to judge by: add some"):
        load_folder(str(tmp_path))


def test_unknown_test_class(root: Path) -> None:
    save(root / "test" / "cat" / "0.png", noise(6, 6))
    with pytest.raises(InputError, match="test/cat is a class without training images: add them"):
        load_folder(str(root))


def truncated(suffix: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(stream, suffix)  # noise: nearly all of the file is pixels
    return stream.getvalue()[: len(stream.getvalue()) // 2]


@pytest.mark.parametrize("image_size", [0, 6])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot identify"),
        (b"no image", "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),  # Pillow could read it
        (truncated("jpeg"), "truncated"),
        (truncated("png"), "."),
        (truncated("webp"), "."),
        (truncated("tiff"), "."),
    ],
    ids=["empty", "text", "postscript", "jpeg", "png", "webp", "tiff"],
)
def test_bad_image(root: Path, content: bytes, reason: str, image_size: int) -> None:
    file = root / "test" / "bee" / "0.png" if image_size else root / "train" / "bee" / "1.png"
    file.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"cannot be read \(.*{reason}.*\): repair, shrink or remove"
    ) as caught:
        load_folder(str(root), image_size)
    assert str(caught.value).startswith(f"{file} ")


@pytest.mark.parametrize("image_size", [0, 6])
def test_all_bad_images_are_named_at_once(root: Path, image_size: int) -> None:
    bad = [
        root / "train" / "ant" / "1.png",
        root / "train" / "bee" / "0.png",
        root / "train" / "bee" / "1.png",
    ]
    for file in bad:
        file.write_bytes(b"no image")
    with pytest.raises(InputError) as caught:
        load_folder(str(root), image_size)
    first, second, third = map(str, bad)
    assert str(caught.value).startswith(f"{first} cannot be read (cannot identify")
    assert str(caught.value).endswith(f"repair, shrink or remove it, and also {second} and {third}")


def test_very_many_bad_images_are_counted(tmp_path: Path) -> None:
    files = [tmp_path / f"{number:02}.png" for number in range(40)]
    with pytest.raises(InputError) as caught:
        folder.decode(files, 4)
    assert str(caught.value).startswith(f"{files[0]} cannot be read")
    assert str(caught.value).endswith(f", {files[20]} and 19 more")


def test_decompression_bomb(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 25)
    with pytest.warns(Image.DecompressionBombWarning), Image.open(root / "test" / "ant" / "0.png"):
        pass
    assert load_folder(str(root)).train.images.shape[-1] == 6  # 36 pixels: Pillow only warns
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15)
    with pytest.raises(InputError, match=r"train/ant/0\.png cannot be read .*exceeds limit of 30.*shrink"):
        load_folder(str(root))


def test_12_bits_in_a_16_bit_file_are_warned_of_once(root: Path) -> None:
    grey = noise(6, 6)[..., 0].astype(np.uint16)
    dim = [save(root / "train" / name / "7.png", grey * 16) for name in ("ant", "bee")]
    save(root / "train" / "ant" / "8.png", np.full((6, 6), 8192, np.uint16))
    with pytest.warns(UserWarning) as caught:
        assert len(load_folder(str(root)).train) == 9
    (told,) = caught
    assert str(told.message).startswith(f"{dim[0]} and {dim[1]}: the upper 8 of 16 bits are read")


def test_32_bit_image(root: Path) -> None:
    save(root / "train" / "ant" / "4.tif", np.zeros((6, 6), np.float32))
    with pytest.raises(InputError, match=r"4\.tif cannot be read .*32 bits.* save it with 8"):
        load_folder(str(root))


def test_images_deeper_down_are_of_the_class_too(tmp_path: Path) -> None:
    for place in ("cat/1.png", "cat/indoors/2.png", "cat/.small/1.png", "dog/a/b/3.png", "dog/4.png"):
        save(tmp_path / "train" / place, noise(8, 8))
        save(tmp_path / "test" / place, noise(8, 8))
    data = load_folder(str(tmp_path))
    assert data.train.labels.tolist() == [0, 0, 1, 1]


def test_links_are_followed_as_predict_follows_them(tmp_path: Path) -> None:
    """But not back: the images of all classes would then be of one."""
    for place in ("pets/cat/1.png", "pets/cat/4.png", "pets/dog/2.png", "pets/dog/5.jfif", "more/3.png"):
        save(tmp_path / place, noise(8, 8))
    root = tmp_path / "pets"
    (root / "cat/also").symlink_to(tmp_path / "more", target_is_directory=True)
    (root / "cat/round").symlink_to(root, target_is_directory=True)
    (root / "cat/itself").symlink_to(root / "cat", target_is_directory=True)
    found = folder.find_images(root)
    assert found.train_labels == [0, 0, 0, 1, 1]
    assert found.train_files[2] == root / "cat/also/3.png"
    assert find_images([root]) == found.train_files
    assert load_folder(str(root)).train.images.shape[0] == 3


# ---- real photographs ----


def test_real_photographs(tmp_path: Path) -> None:
    """The two that come with scikit-learn; Pillow's own crop and resize is the oracle."""
    photographs = Path(sklearn.datasets.__file__).parent / "images"
    for split in ("train", "test"):
        for name in ("china", "flower"):
            (tmp_path / split / name).mkdir(parents=True)
            shutil.copy(photographs / f"{name}.jpg", tmp_path / split / name)
    data = load_folder(str(tmp_path))
    assert data.classes == ["china", "flower"]
    assert data.train.images.shape == data.test.images.shape == (2, 3, 224, 224)
    for image, name in zip(data.train.images, data.classes, strict=True):
        with Image.open(photographs / f"{name}.jpg") as picture:
            assert picture.size == (640, 427)
            square = (
                picture.convert("RGB").crop((106, 0, 533, 427)).resize((224, 224), Image.Resampling.BICUBIC)
            )
        difference = image.permute(1, 2, 0).float() - torch.from_numpy(np.array(square)).float()
        assert difference.abs().mean() < 3
    assert all(0.1 < mean < 0.7 for mean in data.mean) and all(0.15 < std < 0.4 for std in data.std)


def test_a_class_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """In no report could it be written."""
    for name in (b"B\xe9ngal", "Zürich".encode()):
        folder = tmp_path / os.fsdecode(name)
        for seed in range(3):
            save(folder / f"{seed}.png", noise(6, 6, seed))
    with pytest.raises(InputError, match=r"the folder B\\udce9ngal has a name that is not UTF-8; rename it"):
        load_folder(str(tmp_path))
