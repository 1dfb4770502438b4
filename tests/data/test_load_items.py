"""Items without labels, from whatever a user has."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from image_factories import gradient, save_image

from hashcade import DataError
from hashcade.data import has_labels, load_image_folder, load_items

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_one_image(tmp_path):
    items = load_items(save_image(tmp_path / "a" / "b.png"), size=3)
    assert items.items.shape == (1, 3, 3, 3)
    assert items.names == ("b.png",)
    assert not has_labels(tmp_path / "a" / "b.png")


def test_a_folder_with_or_without_classes(tmp_path):
    save_image(tmp_path / "flat" / "2.png")
    save_image(tmp_path / "flat" / "1.png", 255 - gradient(4, 6))
    items = load_items(tmp_path / "flat")
    assert items.names == ("1.png", "2.png")
    assert items.items[:, 0, 0, 0].tolist() == [255, 0]
    assert not has_labels(tmp_path / "flat")
    save_image(tmp_path / "classes" / "ant" / "x.png")
    save_image(tmp_path / "classes" / "bee" / "deep" / "y.png")
    labelled, items = load_image_folder(tmp_path / "classes"), load_items(tmp_path / "classes")
    assert items.names == labelled.names == ("ant/x.png", "bee/deep/y.png")
    assert (items.items == labelled.items).all()
    assert has_labels(tmp_path / "classes")


def test_npy(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "one.npy", X[0])
    assert (load_items(tmp_path / "x.npy").items == X).all()
    assert load_items(tmp_path / "one.npy").items.shape == (1, 3)
    assert not has_labels(tmp_path / "x.npy")
    (tmp_path / "x_labels.txt").write_text("a\nb\nc\nd\n")
    assert has_labels(tmp_path / "x.npy")
    np.save(tmp_path / "bad.npy", np.array([[np.nan]]))
    with pytest.raises(
        DataError, match=r"bad\.npy: items has NaN or values beyond float32 in row 0"
    ):
        load_items(tmp_path / "bad.npy")


def test_npz(tmp_path):
    np.savez(tmp_path / "only.npz", anything=X)
    np.savez(tmp_path / "parts.npz", train=X, test=X[:1], train_labels=np.arange(4))
    assert len(load_items(tmp_path / "only.npz")) == 4
    assert len(load_items(tmp_path / "parts.npz")) == 4
    assert len(load_items(tmp_path / "parts.npz", split="test")) == 1
    assert len(load_items(tmp_path / "parts.npz", items="test")) == 1
    assert not has_labels(tmp_path / "only.npz")
    assert has_labels(tmp_path / "parts.npz")
    assert not has_labels(tmp_path / "parts.npz", split="test")
    assert not has_labels(tmp_path / "parts.npz", items="train")
    with pytest.raises(DataError, match=r"looked for Z$") as caught:
        load_items(tmp_path / "parts.npz", items="Z")
    assert caught.value.hint == "name others with items= (--items)"


def test_parquet(tmp_path):
    table = pyarrow.table({"clip": list(X), "label": list("abcd")})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert (load_items(tmp_path / "x.parquet", items="clip").items == X).all()
    assert has_labels(tmp_path / "x.parquet")
    pyarrow.parquet.write_table(table.select(["clip"]), tmp_path / "y.parquet")
    assert not has_labels(tmp_path / "y.parquet")
    (tmp_path / "bad.parquet").write_text("nothing")
    with pytest.raises(DataError, match="damaged, or not Parquet"):
        has_labels(tmp_path / "bad.parquet")


def test_other_things_are_refused(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(DataError, match="of no known kind"):
        load_items(tmp_path / "x.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no images"):
        load_items(tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"):
        load_items(tmp_path / "nowhere")
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match="split='test' is for npz, folder"):
        load_items(tmp_path / "x.npy", split="test")


def test_splits_of_a_folder(tmp_path):
    for name in ("train/a/1.png", "test/a/2.png"):
        save_image(tmp_path / name)
    assert load_items(tmp_path, split="test").names == ("a/2.png",)
    assert load_items(tmp_path).names == ("test/a/2.png", "train/a/1.png")
    with pytest.raises(DataError, match="has no folder 'val'"):
        load_items(tmp_path, split="val")


def test_bad_images_are_skipped(tmp_path):
    save_image(tmp_path / "1.png")
    (tmp_path / "2.png").write_text("no image")
    items = load_items(tmp_path, on_error="skip")
    assert items.names == ("1.png",)
    assert len(items.skipped) == 1
