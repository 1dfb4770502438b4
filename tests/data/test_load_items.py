"""Items without labels, from whatever a user has."""

import io

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from hashcade import DataError
from hashcade.data import has_labels, load_image_folder, load_items, read_image

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def image(path, colour=(10, 20, 30), size=(5, 7)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def test_one_image(tmp_path):
    found = load_items(image(tmp_path / "a" / "b.png"), size=4)
    assert found.items.shape == (1, 4, 4, 3)
    assert found.names == ("b.png",)
    assert not has_labels(tmp_path / "a" / "b.png")


def test_a_folder_with_or_without_classes(tmp_path):
    image(tmp_path / "flat" / "2.png", (2, 2, 2))
    image(tmp_path / "flat" / "1.png", (1, 1, 1))
    found = load_items(tmp_path / "flat")
    assert found.names == ("1.png", "2.png")
    assert found.items[:, 0, 0, 0].tolist() == [1, 2]
    assert not has_labels(tmp_path / "flat")
    image(tmp_path / "classes" / "ant" / "x.png")
    image(tmp_path / "classes" / "bee" / "deep" / "y.png")
    labelled, plain = load_image_folder(tmp_path / "classes"), load_items(tmp_path / "classes")
    assert plain.names == labelled.names == ("ant/x.png", "bee/deep/y.png")
    assert (plain.items == labelled.items).all()
    assert has_labels(tmp_path / "classes")


def test_names_follow_what_is_selected_and_what_is_skipped(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        image(tmp_path / name)
    (tmp_path / "a" / "1.png").write_text("no image")
    calls = []
    found = load_image_folder(
        tmp_path, on_error="skip", progress=lambda done, total: calls.append((done, total))
    )
    assert found.names == ("a/2.png", "b/1.png")
    assert found.select([1]).names == ("b/1.png",)
    assert found.select(np.array([True, False])).names == ("a/2.png",)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert load_items(tmp_path, on_error="skip").names == found.names


def test_npy(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "one.npy", X[0])
    assert (load_items(tmp_path / "x.npy").items == X).all()
    assert load_items(tmp_path / "one.npy").items.shape == (1, 3)
    assert not has_labels(tmp_path / "x.npy")
    (tmp_path / "x_labels.txt").write_text("a\nb\nc\nd\n")
    assert has_labels(tmp_path / "x.npy")
    np.save(tmp_path / "bad.npy", np.array([[np.nan]]))
    with pytest.raises(DataError, match=r"bad\.npy: items has NaN or infinite values in row 0"):
        load_items(tmp_path / "bad.npy")


def test_npz(tmp_path):
    np.savez(tmp_path / "only.npz", anything=X)
    np.savez(tmp_path / "parts.npz", train=X, test=X[:1], train_labels=np.arange(4))
    assert len(load_items(tmp_path / "only.npz")) == 4
    assert len(load_items(tmp_path / "parts.npz")) == 4
    assert len(load_items(tmp_path / "parts.npz", split="test")) == 1
    assert len(load_items(tmp_path / "parts.npz", items_key="test")) == 1
    assert not has_labels(tmp_path / "only.npz")
    assert has_labels(tmp_path / "parts.npz")
    assert not has_labels(tmp_path / "parts.npz", split="test")
    assert not has_labels(tmp_path / "parts.npz", items_key="train")
    with pytest.raises(DataError, match="looked for Z; another can be named with items_key="):
        load_items(tmp_path / "parts.npz", items_key="Z")


def test_parquet(tmp_path):
    table = pyarrow.table({"clip": list(X), "label": list("abcd")})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert (load_items(tmp_path / "x.parquet", embedding="clip").items == X).all()
    assert has_labels(tmp_path / "x.parquet")
    assert not has_labels(tmp_path / "x.parquet", label="kind")
    (tmp_path / "bad.parquet").write_text("nothing")
    with pytest.raises(DataError, match="damaged, or not Parquet"):
        has_labels(tmp_path / "bad.parquet")


def test_what_is_nothing_of_all_that(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(DataError, match="of no known kind"):
        load_items(tmp_path / "x.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="of no known kind"):
        load_items(tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"):
        load_items(tmp_path / "nowhere")


def test_read_image_takes_a_stream_and_refuses_what_is_none(tmp_path):
    stream = io.BytesIO(image(tmp_path / "a.png").read_bytes())
    assert read_image(stream, size=(3, 2)).shape == (3, 2, 3)
    with pytest.raises(DataError, match="the image: not an image that can be read"):
        read_image(io.BytesIO(b"nothing"))
    stream.seek(0)
    with pytest.raises(DataError, match="the image: has 35 pixels, max_pixels=34"):
        read_image(stream, max_pixels=34)
