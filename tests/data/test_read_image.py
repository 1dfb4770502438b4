"""The decoder of images, for the library and the service."""

import io
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from image_factories import gradient, save_image
from PIL import Image

from hashcade.data import IMAGE_FORMATS, read_image, resize_image
from hashcade.errors import DataError

GREY = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
RGB = np.repeat(GREY[:, :, None], 3, axis=2)


def palette(path):
    Image.fromarray(GREY).convert("P").save(path, transparency=b"\x00\x80")


MODES = {
    "grey.png": (lambda path: save_image(path, GREY), RGB),
    "grey_alpha.png": (lambda path: save_image(path, np.dstack([GREY, GREY])), RGB),
    "palette.png": (palette, RGB),
    "bits.png": (lambda path: save_image(path, GREY > 100), np.where(RGB > 100, 255, 0)),
    "alpha.png": (
        lambda path: save_image(path, np.dstack([gradient(4, 6), GREY])),
        gradient(4, 6),
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_every_mode_becomes_rgb(tmp_path, name):
    save, expected = MODES[name]
    save(tmp_path / name)
    np.testing.assert_array_equal(read_image(tmp_path / name), expected)


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_16_bits_of_grey_are_scaled_from_a_file_and_from_bytes(tmp_path, name):
    file = save_image(tmp_path / name, GREY.astype(np.uint16) * 256 + 77)
    np.testing.assert_array_equal(read_image(file), RGB)
    np.testing.assert_array_equal(read_image(file.read_bytes()), RGB)
    np.testing.assert_array_equal(read_image(file, size=(2, 3)), resize_image(RGB, (2, 3)))


def test_16_bits_of_grey_in_a_pgm():
    pixels = (GREY.astype(np.uint16) * 256 + 77).astype(">u2").tobytes()
    np.testing.assert_array_equal(read_image(b"P5 6 4 65535\n" + pixels), RGB)


def test_a_path_bytes_and_a_stream_give_the_same(tmp_path):
    file = save_image(tmp_path / "a.png")
    for source in (file, str(file), file.read_bytes(), io.BytesIO(file.read_bytes())):
        np.testing.assert_array_equal(read_image(source), gradient(4, 6))


def test_images_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held sideways
    image = read_image(save_image(tmp_path / "a.png", exif=exif))
    np.testing.assert_array_equal(image, np.rot90(gradient(4, 6), -1))


def test_size_scales_and_crops_the_middle(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200  # the middle third, a square
    image = read_image(save_image(tmp_path / "a.png", pixels), size=5)
    assert image.shape == (5, 5, 3)
    assert (image[:, 1:4] >= 199).all()
    np.testing.assert_array_equal(resize_image(pixels, (5, 5)), image)
    assert read_image(tmp_path / "a.png", size=(3, 8)).shape == (3, 8, 3)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", size=(10, 30)), pixels)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, (3,), (3, 0), [3, 3], "3"])
def test_sizes_are_checked(size):
    with pytest.raises(ValueError, match="must be an integer >= 1, or"):
        read_image(b"", size=size)


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_other_formats_are_refused(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    formats = ", ".join(IMAGE_FORMATS)
    with pytest.raises(DataError) as caught:
        read_image(content)
    assert str(caught.value) == f"the image cannot be read as {formats}"
    with pytest.raises(DataError) as caught:
        read_image(tmp_path / "a.png")
    assert str(caught.value) == f"{tmp_path / 'a.png'} cannot be read as {formats}"


def test_damage_is_one_line(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), "u1")
    whole = save_image(tmp_path / "a.png", noise).read_bytes()
    with pytest.raises(
        DataError, match=r"^the image cannot be read \(OSError: .*truncated"
    ) as caught:
        read_image(whole[: len(whole) // 2])
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="FileNotFoundError"):
        read_image(tmp_path / "none.png")


def test_32_bits_are_refused(tmp_path):
    for dtype in (np.float32, np.int32):
        file = save_image(tmp_path / "a.tiff", np.zeros((4, 6), dtype))
        with pytest.raises(DataError, match="has pixels of 32 bits, must have 8 or 16"):
            read_image(file)


def test_a_bomb_is_refused_by_its_header():
    # Headers of a few bytes alone; the second is beyond Pillow's limit for a warning, the third
    # beyond its limit for an error.
    for sides, n_pixels in (((101, 100), 10_100), ((20_000, 5_000), 100_000_000)):
        with pytest.raises(
            DataError, match=f"has {n_pixels} pixels, must have <= max_pixels=10000"
        ):
            read_image(b"P6 %d %d 255\n" % sides, max_pixels=10_000)
    with pytest.raises(DataError, match="has too many pixels, must have <= max_pixels=10000"):
        read_image(b"P6 200000 50000 255\n", max_pixels=10_000)
    with pytest.raises(DataError, match="has too many pixels, must have <= max_pixels=178956970"):
        read_image(b"P6 200000 50000 255\n", max_pixels=10**12)


def test_threads_may_decode_at_once(tmp_path):
    content = save_image(tmp_path / "a.png").read_bytes()
    filters = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(read_image, [content] * 200))
    assert all(np.array_equal(image, gradient(4, 6)) for image in images)
    assert warnings.filters == filters  # decoding leaves no filter behind


def test_missing_pillow_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"PIL is not installed; run: pip install .*\[images\]"):
        read_image(b"")
