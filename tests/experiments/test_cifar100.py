import hashlib
import pickle

import numpy as np
import pytest

from experiments.datasets import cifar100
from experiments.datasets.cifar100 import load_cifar100
from hashcade.errors import DataError


@pytest.fixture
def written(cifar, tmp_path):
    """The tiny set in a folder of the official name."""
    folder = tmp_path / "data" / "cifar-100-python"
    cifar.write_pickles(folder)
    return folder


@pytest.fixture
def tiny_sums(monkeypatch, written):
    """Take the tiny files for the official ones."""
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in written.iterdir()}
    monkeypatch.setattr(cifar100, "MD5", sums)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_images_and_official_numbers(cifar, written, tiny_sums, split, labels):
    for path in (written, written.parent, str(written)):
        items = load_cifar100(path, split, labels=labels)
        assert items.items.shape == (len(cifar.fine[split]), 32, 32, 3)
        assert items.items.dtype == np.uint8
        assert items.items.flags.c_contiguous
        np.testing.assert_array_equal(items.items[1], cifar.image(split, 1))
        assert items.labels.tolist() == getattr(cifar, labels)[split]
        assert items.class_names == getattr(cifar, f"{labels}_names")
        assert split in items.source


def test_files_other_than_the_official_ones_are_refused_unless_asked_for(written):
    with pytest.raises(DataError, match=r"md5 is \w{32}, the official file has \w{32}") as caught:
        load_cifar100(written)
    assert "verify=False" in caught.value.hint
    assert len(load_cifar100(written, verify=False)) == 6


def test_one_changed_byte_is_seen(written, tiny_sums):
    content = bytearray((written / "train").read_bytes())
    content[len(content) // 2] ^= 1
    (written / "train").write_bytes(content)
    with pytest.raises(DataError, match="md5 is"):
        load_cifar100(written)
    assert len(load_cifar100(written, "test")) == 4


def test_bytes_behind_the_end_are_seen(written, tiny_sums):
    whole = (written / "train").read_bytes()
    for more in (b"x", b"x" * 3_000_000):  # within what is read ahead, and beyond it
        (written / "train").write_bytes(whole + more)
        with pytest.raises(DataError, match="md5 is"):
            load_cifar100(written)


@pytest.mark.parametrize(("verify", "message"), [(True, "md5 is"), (False, "damaged")])
def test_a_truncated_file_is_refused(written, tiny_sums, verify, message):
    (written / "train").write_bytes((written / "train").read_bytes()[:-100])
    with pytest.raises(DataError, match=message):
        load_cifar100(written, verify=verify)


def test_missing_files_are_named(tmp_path, written):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load_cifar100(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="not Cifar-100, test and meta is missing"):
        load_cifar100(tmp_path / "empty", "test")
    (written / "meta").unlink()
    with pytest.raises(DataError, match="not Cifar-100, meta is missing"):
        load_cifar100(written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"fine_labels": [0, 1]}, "there are 6 items and 2 labels"),
        ({b"fine_labels": [0, 1, 2, 3, 0, 0]}, "labels must be from 0 to 2, not so in row 3"),
        ({b"fine_labels": None}, "labels is object"),
        ({b"data": np.zeros((6, 10), np.uint8)}, "data has 10 numbers per image, must be 3072"),
        ({b"data": np.zeros((6, 3072))}, r"data is float64 of shape \(6, 3072\), must be uint8"),
        ({b"data": [1]}, "data is list, must be uint8"),
    ],
)
def test_a_pickle_with_other_content_is_refused(cifar, tmp_path, change, message):
    cifar.write_pickles(tmp_path / "c")
    batch = pickle.loads((tmp_path / "c" / "train").read_bytes())
    (tmp_path / "c" / "train").write_bytes(pickle.dumps(batch | change))
    with pytest.raises(DataError, match=message):
        load_cifar100(tmp_path / "c", verify=False)
    del batch[b"data"]
    (tmp_path / "c" / "train").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=r"has the keys .*; data is missing"):
        load_cifar100(tmp_path / "c", verify=False)


def test_settings_are_checked(tmp_path):
    with pytest.raises(ValueError, match="split='val' must be 'train' or 'test'"):
        load_cifar100(tmp_path, "val")
    with pytest.raises(ValueError, match="labels='both' must be 'fine' or 'coarse'"):
        load_cifar100(tmp_path, labels="both")
