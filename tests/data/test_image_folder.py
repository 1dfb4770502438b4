import sys

import numpy as np
import pytest

from hashcade.data import load_image_folder
from hashcade.errors import DataError

Image = pytest.importorskip("PIL.Image")


def gradient(height, width):
    """An image in which every pixel is different."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 7, x * 11, (x + y) * 5], axis=2).astype(np.uint8)


def save(path, pixels=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient(4, 6) if pixels is None else pixels).save(path, **options)
    return path


def test_the_folder_names_the_class_and_names_give_the_order(tmp_path):
    other = 255 - gradient(4, 6)
    save(tmp_path / "dog" / "b.png")
    save(tmp_path / "cat" / "10.png", other)
    save(tmp_path / "cat" / "deep" / "er" / "1.PNG")
    save(tmp_path / "cat" / "9.bmp")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "stray.png").write_text("not in a class")
    items = load_image_folder(tmp_path)
    assert items.items.shape == (4, 4, 6, 3)
    assert items.original_labels() == ["cat", "cat", "cat", "dog"]
    np.testing.assert_array_equal(items.items[0], other)
    for row in (1, 2, 3):
        np.testing.assert_array_equal(items.items[row], gradient(4, 6))


def test_other_modes_become_rgb(tmp_path):
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
    rgba = np.dstack([gradient(4, 6), np.full((4, 6), 9, np.uint8)])
    save(tmp_path / "a" / "0.png", grey)
    save(tmp_path / "a" / "1.png", rgba)
    save(tmp_path / "a" / "2.png", grey.astype(np.uint16) * 256 + 77)
    save(tmp_path / "a" / "3.png", np.dstack([grey, grey]))
    palette = Image.fromarray(grey).convert("P")
    palette.save(tmp_path / "a" / "4.png", transparency=b"\x00\x80")
    save(tmp_path / "a" / "5.png", grey > 100)
    images = load_image_folder(tmp_path).items
    repeated = np.repeat(grey[:, :, None], 3, axis=2)
    for row in (0, 2, 3, 4):
        np.testing.assert_array_equal(images[row], repeated)
    np.testing.assert_array_equal(images[1], gradient(4, 6))
    np.testing.assert_array_equal(images[5], np.where(repeated > 100, 255, 0))


def test_images_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held sideways
    save(tmp_path / "a" / "0.png", exif=exif)
    (image,) = load_image_folder(tmp_path).items
    np.testing.assert_array_equal(image, np.rot90(gradient(4, 6), -1))


def test_size_scales_and_cuts_the_middle(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200  # the middle third, a square
    save(tmp_path / "a" / "0.png", pixels)
    save(tmp_path / "a" / "1.png", np.full((50, 20, 3), 7, np.uint8))
    images = load_image_folder(tmp_path, size=5).items
    assert images.shape == (2, 5, 5, 3)
    assert (images[0, :, 1:4] >= 199).all()
    assert (images[1] == 7).all()
    assert load_image_folder(tmp_path, size=(3, 8)).items.shape == (2, 3, 8, 3)


def test_an_image_of_the_right_size_is_not_touched(tmp_path):
    save(tmp_path / "a" / "0.png")
    (image,) = load_image_folder(tmp_path, size=(4, 6)).items
    np.testing.assert_array_equal(image, gradient(4, 6))


def test_different_sizes_need_a_size(tmp_path):
    save(tmp_path / "a" / "0.png")
    save(tmp_path / "a" / "1.png", gradient(5, 5))
    with pytest.raises(DataError, match=r"1\.png has 5×5 pixels, .*0\.png has 4×6; give a size"):
        load_image_folder(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "bomb", "float"])
def test_an_unreadable_image_is_named_or_skipped(tmp_path, damage):
    save(tmp_path / "a" / "0.png")
    save(tmp_path / "b" / "1.png")
    bad = save(tmp_path / "b" / "0.png", np.random.default_rng(0).integers(0, 255, (4, 6, 3), "u1"))
    limit = 1000
    if damage == "truncated":
        bad.write_bytes(bad.read_bytes()[:-40])
    elif damage == "empty":
        bad.write_bytes(b"")
    elif damage == "text":
        bad.write_text("hello")
    elif damage == "bomb":
        limit = 30
        save(bad, gradient(5, 7))
    else:
        bad.unlink()
        bad = save(tmp_path / "b" / "0.tiff", np.zeros((4, 6), np.float32))
    with pytest.raises(DataError) as caught:
        load_image_folder(tmp_path, max_pixels=limit)
    assert str(caught.value).startswith(f"{bad}: ")
    items = load_image_folder(tmp_path, on_error="skip", max_pixels=limit)
    assert items.original_labels() == ["a", "b"]
    assert items.skipped == (str(caught.value),)
    if damage == "bomb":
        assert "has 35 pixels, max_pixels=30" in items.skipped[0]


def test_a_bomb_is_refused_by_its_header(tmp_path, monkeypatch):
    # 200 million pixels in a few hundred bytes of header; Pillow's own warning is not needed.
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.ppm").write_bytes(b"P6 20000 5000 255\n")
    with pytest.raises(DataError, match="has 100000000 pixels, max_pixels=50000000"):
        load_image_folder(tmp_path)
    (tmp_path / "a" / "0.ppm").write_bytes(b"P6 200000 50000 255\n")
    with pytest.raises(DataError, match=r"0\.ppm: not an image that can be read \(Decompression"):
        load_image_folder(tmp_path, max_pixels=10**12)


def test_a_class_without_images_is_named(tmp_path):
    save(tmp_path / "a" / "0.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"no images in b; looked for files ending in \.bmp"):
        load_image_folder(tmp_path)
    (tmp_path / "b" / "0.png").write_text("")
    with pytest.raises(DataError, match="no image can be read of the classes b"):
        load_image_folder(tmp_path, on_error="skip")
    (tmp_path / "a" / "0.png").write_text("")
    with pytest.raises(DataError, match="none of 2 images can be read; first: "):
        load_image_folder(tmp_path, on_error="skip")


def test_a_folder_must_have_folders(tmp_path):
    for path in (tmp_path, save(tmp_path / "0.png")):
        with pytest.raises(DataError, match="must be a folder with one folder of images per class"):
            load_image_folder(path)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, (3,), (3, 0), [3, 3], "3"])
def test_settings_are_checked(tmp_path, size):
    with pytest.raises(ValueError, match="must be an integer >= 1, or"):
        load_image_folder(tmp_path, size=size)
    with pytest.raises(ValueError, match="on_error='warn' must be 'raise' or 'skip'"):
        load_image_folder(tmp_path, on_error="warn")


def test_missing_pillow_is_one_line(tmp_path, monkeypatch):
    save(tmp_path / "a" / "0.png")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"PIL is not installed; run: pip install .*\[images\]"):
        load_image_folder(tmp_path)
