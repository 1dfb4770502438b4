import pickle
import tarfile

import numpy as np
import pytest

from hashcade.data import load
from hashcade.errors import DataError

VECTORS = np.ones((2, 3), np.float32)


def test_arrays_by_their_suffix(tmp_path):
    np.savez(
        tmp_path / "a.npz", train=VECTORS, train_labels=[1, 2], test=VECTORS, test_labels=[3, 3]
    )
    assert load(tmp_path / "a.npz").class_names == (1, 2)
    assert load(str(tmp_path / "a.npz"), split="test").class_names == (3,)
    np.save(tmp_path / "b.npy", VECTORS)
    assert load(tmp_path / "b.npy", labels=["x", "y"]).class_names == ("x", "y")


def test_parquet_by_its_suffix(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"v": [[1.0], [2.0]], "label": [5, 6]}), tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", embedding="v").class_names == (5, 6)


def test_cifar100_by_its_files(tmp_path, cifar):
    cifar.write_pickles(tmp_path / "p" / "cifar-100-python")
    cifar.write_binary(tmp_path / "b")
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "b", "cifar-100-binary")
    for place in ("p", "p/cifar-100-python", "b", "c.tar.gz"):
        items = load(tmp_path / place, split="test", verify=False)
        assert items.original_labels() == ["bus", "apple", "bear", "apple"]
    assert len(load(tmp_path / "b", verify=False, labels="coarse")) == 6


def test_imagenet32_by_its_files(tmp_path):
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}
    (tmp_path / "val_data").write_bytes(pickle.dumps(batch))
    assert load(tmp_path, split="val").class_names == (1, 2)
    with pytest.raises(DataError, match="there is no train_data_batch_1"):
        load(tmp_path)


def test_image_folders_and_their_parts(tmp_path):
    image = pytest.importorskip("PIL.Image").fromarray(np.zeros((4, 4, 3), np.uint8))
    for name in ("train/a", "train/b", "test/b"):
        (tmp_path / name).mkdir(parents=True)
        image.save(tmp_path / name / "0.png")
    with pytest.raises(DataError, match="has the parts test, train; say which with split="):
        load(tmp_path)
    assert load(tmp_path, split="train").class_names == ("a", "b")
    assert load(tmp_path / "train", size=2).items.shape == (2, 2, 2, 3)
    with pytest.raises(DataError, match="has the folders test, train; no split 'val'"):
        load(tmp_path, split="val")


def test_what_is_not_recognised_is_told_what_was_looked_for(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(DataError, match=r"looked for a name ending in \.npy \.npz \.parquet \.pq"):
        load(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"looked for Cifar-100 .*ImageNet .* one folder of images"):
        load(tmp_path)
    with pytest.raises(DataError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


def test_an_option_that_the_loader_does_not_have(tmp_path):
    np.save(tmp_path / "b.npy", VECTORS)
    with pytest.raises(ValueError, match="read by load_npy, which has no option size, split; its"):
        load(tmp_path / "b.npy", size=3, split="train")
