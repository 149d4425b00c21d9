import threading
import time
from pathlib import Path

import numpy as np
import pytest
from pictures import noise, save, smooth
from PIL import Image

from varcon.core import InputError
from varcon.data.decoding import decode, in_order, square, with_image


def pixels(file: Path, size: int) -> np.ndarray:
    return decode([file], size)[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (6, 6), (7, 6)])
def test_centre_is_kept_at_native_size(tmp_path: Path, shape: tuple[int, int]) -> None:
    image = noise(*shape)
    top, left = (shape[0] - 6) // 2, (shape[1] - 6) // 2
    file = save(tmp_path / "image.png", image)
    assert np.array_equal(pixels(file, 6), image[top : top + 6, left : left + 6])


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "bmp", "webp", "gif", "tif", "tiff", "ppm"])
def test_every_format_as_pillow_reads_it(tmp_path: Path, suffix: str) -> None:
    file = save(tmp_path / f"image.{suffix}", smooth(20, 20))
    with Image.open(file) as image:
        assert np.array_equal(pixels(file, 20), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("size", [16, 40, 100])  # the margins are even: no half pixels
def test_resizing_agrees_with_resize_then_crop(tmp_path: Path, size: int) -> None:
    file = save(tmp_path / "image.png", smooth(60, 90))
    with Image.open(file) as image:
        resized = np.asarray(image.resize((size * 3 // 2, size), Image.Resampling.BILINEAR)).astype(int)
    left = (resized.shape[1] - size) // 2
    assert np.abs(resized[:, left : left + size] - pixels(file, size)).max() <= 1


def test_large_jpeg_decoded_small_is_the_same_picture(tmp_path: Path) -> None:
    file = save(tmp_path / "image.jpg", smooth(800, 800), quality=90)
    with Image.open(file) as image:
        whole = np.asarray(image.resize((40, 40), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(whole - pixels(file, 40)).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    upright = noise(4, 6)
    stored = {  # where the first row and the first column of the stored image lie in the upright one
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright[:, ::-1].transpose(1, 0, 2),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: upright[::-1].transpose(1, 0, 2),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = save(tmp_path / "image.png", np.ascontiguousarray(stored), exif=exif)
    assert np.array_equal(pixels(file, 4), upright[:, 1:5])


def test_broken_exif_is_no_reason_to_refuse(tmp_path: Path) -> None:
    file = save(tmp_path / "image.png", noise(5, 5), exif=b"Exif\0\0nonsense")
    assert np.array_equal(pixels(file, 5), noise(5, 5))


def test_grey_palette_alpha_and_deep_images(tmp_path: Path) -> None:
    colour = noise(5, 5)
    grey = colour[..., 0]
    repeated = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(pixels(save(tmp_path / "grey.png", grey), 5), repeated)
    alpha = np.dstack([colour, np.full((5, 5), 128, np.uint8)])
    assert np.array_equal(pixels(save(tmp_path / "alpha.png", alpha), 5), colour)
    palette = Image.fromarray(colour).quantize(25)
    assert np.array_equal(
        pixels(save(tmp_path / "palette.png", palette), 5), np.asarray(palette.convert("RGB"))
    )
    deep = grey.astype(np.uint16) * 257
    assert np.array_equal(pixels(save(tmp_path / "deep.png", deep), 5), repeated)
    assert np.array_equal(pixels(save(tmp_path / "deep.tif", deep), 5), repeated)
    black_and_white = Image.fromarray(grey).convert("1")
    assert set(np.unique(pixels(save(tmp_path / "two.png", black_and_white), 5))) <= {0, 255}


def test_parallel_equals_serial(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{i:03}.jpg", noise(20 + i % 7, 20 + i % 5, i)) for i in range(100)]
    serial = np.stack([with_image(file, lambda image: square(image, 16)) for file in files])
    parallel = decode(files, 16)
    assert np.array_equal(serial.transpose(0, 3, 1, 2), parallel.numpy())


def test_first_error_in_order_escapes_and_stops_the_rest() -> None:
    """Item 40 fails late, later chunks at once: 40 is named, and most work is left undone."""
    threads = threading.active_count()
    begun = []
    failed = threading.Event()

    def work(i: int) -> int:
        begun.append(i)
        if i == 40:
            failed.wait(5)
        elif i >= 48:
            failed.set()
        if i >= 40:
            time.sleep(0.001)
            raise InputError(f"item {i}")
        return i

    with pytest.raises(InputError, match=r"^item 40$"):
        in_order(work, 100_000, "testing")
    assert failed.is_set()
    assert len(begun) < 50_000
    assert threading.active_count() == threads


def test_interrupt_in_progress_stops_the_work() -> None:
    begun = []

    def interrupt(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    def work(i: int) -> None:
        begun.append(i)
        time.sleep(0.0005)

    with pytest.raises(KeyboardInterrupt):
        in_order(work, 100_000, "testing", interrupt)
    assert len(begun) < 50_000
