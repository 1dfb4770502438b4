"""``load``: whatever a user has, recognised and loaded with its labels."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from image_factories import save_image

from hashcade.data import load, required_extras
from hashcade.errors import DataError

VECTORS = np.ones((2, 3), np.float32)


def test_arrays_by_their_suffix(tmp_path):
    np.savez(
        tmp_path / "a.npz", train=VECTORS, train_labels=[1, 2], test=VECTORS, test_labels=[3, 3]
    )
    assert load(tmp_path / "a.npz").class_names == (1, 2)
    assert load(str(tmp_path / "a.npz"), split="test").class_names == (3,)
    assert load(tmp_path / "a.npz", items="train", labels="test_labels").class_names == (3,)
    np.save(tmp_path / "b.npy", VECTORS)
    (tmp_path / "names.txt").write_text("x\ny\n")
    assert load(tmp_path / "b.npy", labels=tmp_path / "names.txt").class_names == ("x", "y")


def test_parquet_by_its_suffix(tmp_path):
    table = pyarrow.table({"v": [[1.0], [2.0]], "label": [5, 6], "kind": ["a", "b"]})
    for name in ("a.parquet", "a.pq"):
        pyarrow.parquet.write_table(table, tmp_path / name)
        assert load(tmp_path / name, items="v").class_names == (5, 6)
        assert load(tmp_path / name, items="v", labels="kind").class_names == ("a", "b")


def test_image_folders_and_their_splits(tmp_path):
    for name in ("train/a", "train/b", "test/b"):
        save_image(tmp_path / name / "0.png")
    with pytest.raises(DataError, match="has the splits test, train") as caught:
        load(tmp_path)
    assert caught.value.hint == "choose one with split= (--split)"
    assert load(tmp_path, split="train").class_names == ("a", "b")
    assert load(tmp_path / "train", size=2).items.shape == (2, 2, 2, 3)
    with pytest.raises(DataError, match="has no folder 'val'; it has test, train"):
        load(tmp_path, split="val")


def test_settings_of_images_do_not_touch_arrays(tmp_path):
    images = np.zeros((2, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "a.npz", X=images, y=[1, 2])
    assert load(tmp_path / "a.npz", size=2, verbose=False).items.shape == images.shape


def test_the_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_image(tmp_path / "photos" / "a" / "0.png")
    assert load("~/photos").names == ("a/0.png",)


def test_an_unknown_kind_says_what_is_known(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(
        DataError, match=r"of no known kind: .* ending in \.npy \.npz \.parquet \.pq"
    ):
        load(tmp_path / "a.csv")
    with pytest.raises(DataError, match="must be a folder of images with one sub-folder per class"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"a\.png is one image") as caught:
        load(save_image(tmp_path / "a.png"))
    assert caught.value.hint.startswith("give the folder of all images")
    with pytest.raises(DataError, match="nowhere does not exist") as caught:
        load(tmp_path / "nowhere")
    assert caught.value.hint == "check the path"


@pytest.mark.parametrize("name", ["split", "items"])
def test_an_argument_without_a_meaning_is_refused(tmp_path, name):
    np.save(tmp_path / "b.npy", VECTORS)
    with pytest.raises(ValueError, match=f"{name}='x' is for npz, .*b.npy is of the kind npy"):
        load(tmp_path / "b.npy", **{name: "x"})
    with pytest.raises(ValueError, match=r"labels='x' is for npz, parquet, npy; .* kind folder"):
        load(tmp_path, labels="x")


def test_extras_that_a_path_needs(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS)
    (tmp_path / "a.parquet").write_bytes(b"")
    assert required_extras(tmp_path / "a.npy") == {}
    assert required_extras(tmp_path / "a.parquet") == {"pyarrow": "parquet"}
    assert required_extras(tmp_path) == {"pyarrow": "parquet"}
    (tmp_path / "photos").mkdir()
    assert required_extras(tmp_path / "photos") == {"PIL": "images"}
