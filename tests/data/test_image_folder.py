"""Folders of images with one sub-folder per class."""

import sys

import numpy as np
import pytest
from image_factories import gradient, save_image

from hashcade.data import list_image_folder, load_image_folder, load_items
from hashcade.errors import DataError


def test_the_folder_names_the_class_and_names_give_the_order(tmp_path):
    other = 255 - gradient(4, 6)
    save_image(tmp_path / "dog" / "b.png")
    save_image(tmp_path / "cat" / "10.png", other)
    save_image(tmp_path / "cat" / "deep" / "er" / "1.PNG")
    save_image(tmp_path / "cat" / "9.bmp")
    save_image(tmp_path / "cat" / ".trash" / "0.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "stray.png").write_text("not in a class")
    items = load_image_folder(tmp_path)
    assert items.items.shape == (4, 4, 6, 3)
    assert items.original_labels() == ["cat", "cat", "cat", "dog"]
    assert items.labels.dtype == np.int64
    assert items.names == ("cat/10.png", "cat/9.bmp", "cat/deep/er/1.PNG", "dog/b.png")
    np.testing.assert_array_equal(items.items[0], other)
    for row in (1, 2, 3):
        np.testing.assert_array_equal(items.items[row], gradient(4, 6))
    files, labels, class_names = list_image_folder(tmp_path)
    assert [file.relative_to(tmp_path).as_posix() for file in files] == list(items.names)
    assert (labels, class_names) == ([0, 0, 0, 1], ["cat", "dog"])


def test_classes_whose_names_begin_alike_have_one_order(tmp_path):
    for name in ("cat/1.png", "cat-big/1.png", "cat/sub/2.png", "cat/sub-a/3.png"):
        save_image(tmp_path / name)
    expected = ("cat/1.png", "cat/sub/2.png", "cat/sub-a/3.png", "cat-big/1.png")
    assert load_image_folder(tmp_path).names == expected
    assert load_items(tmp_path).names == expected


def test_sizes_must_be_equal_or_given(tmp_path):
    save_image(tmp_path / "a" / "0.png")
    save_image(tmp_path / "a" / "1.png", gradient(5, 5))
    with pytest.raises(DataError, match=r"1\.png has 5×5 pixels, .*0\.png has 4×6") as caught:
        load_image_folder(tmp_path)
    assert caught.value.hint == "make them equal with size= (--image-size)"
    assert load_image_folder(tmp_path, size=(3, 8)).items.shape == (2, 3, 8, 3)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "bomb", "float"])
def test_an_unreadable_image_is_named_or_skipped(tmp_path, damage):
    save_image(tmp_path / "a" / "0.png")
    save_image(tmp_path / "b" / "1.png")
    noise = np.random.default_rng(0).integers(0, 255, (4, 6, 3), "u1")
    bad = save_image(tmp_path / "b" / "0.png", noise)
    limit = 1000
    if damage == "truncated":
        bad.write_bytes(bad.read_bytes()[:-40])
    elif damage == "empty":
        bad.write_bytes(b"")
    elif damage == "text":
        bad.write_text("hello")
    elif damage == "bomb":
        limit = 30
        save_image(bad, gradient(5, 7))
    else:
        bad.unlink()
        bad = save_image(tmp_path / "b" / "0.tiff", np.zeros((4, 6), np.float32))
    with pytest.raises(DataError) as caught:
        load_image_folder(tmp_path, max_pixels=limit)
    assert str(caught.value).startswith(f"{bad} ")
    assert caught.value.hint == "remove it, or skip such files with on_error='skip' (--skip-bad)"
    items = load_image_folder(tmp_path, on_error="skip", max_pixels=limit)
    assert items.original_labels() == ["a", "b"]
    assert items.names == ("a/0.png", "b/1.png")
    assert items.skipped == (str(caught.value),)
    if damage == "bomb":
        assert "has 35 pixels, must have <= max_pixels=30" in items.skipped[0]


def test_a_class_without_images_is_named(tmp_path):
    save_image(tmp_path / "a" / "0.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"no images in b; looked for files ending in \.bmp"):
        load_image_folder(tmp_path)
    (tmp_path / "b" / "0.png").write_text("")
    with pytest.raises(DataError, match="no image of the classes b can be read"):
        load_image_folder(tmp_path, on_error="skip")
    (tmp_path / "a" / "0.png").write_text("")
    with pytest.raises(DataError, match="none of 2 images can be read; first: "):
        load_image_folder(tmp_path, on_error="skip")


def test_a_folder_must_have_folders(tmp_path):
    with pytest.raises(DataError, match="must be a folder of images with one sub-folder per"):
        load_image_folder(tmp_path)
    image = save_image(tmp_path / "0.png")
    with pytest.raises(DataError, match="has 1 images but no sub-folders: no labels") as caught:
        load_image_folder(tmp_path)
    assert caught.value.hint.startswith("put the images of each class into a folder of their own")
    with pytest.raises(DataError, match="must be a folder of images with one sub-folder per"):
        load_image_folder(image)


def test_settings_are_checked(tmp_path):
    save_image(tmp_path / "a" / "0.png")
    with pytest.raises(ValueError, match="size=0 must be an integer >= 1, or"):
        load_image_folder(tmp_path, size=0)
    with pytest.raises(ValueError, match="on_error='warn' must be one of 'raise', 'skip'"):
        load_image_folder(tmp_path, on_error="warn")


def test_progress_is_shown_on_a_terminal_unless_told_otherwise(tmp_path, monkeypatch, capsys):
    for name in ("a/0.png", "a/1.png", "b/0.png"):
        save_image(tmp_path / name)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load_image_folder(tmp_path)
    assert "reading images" in capsys.readouterr().err
    load_image_folder(tmp_path, verbose=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    load_image_folder(tmp_path)
    assert capsys.readouterr().err == ""


def test_missing_pillow_is_one_line(tmp_path, monkeypatch):
    save_image(tmp_path / "a" / "0.png")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"PIL is not installed; run: pip install .*\[images\]"):
        load_image_folder(tmp_path)
