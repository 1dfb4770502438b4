import hashlib
import pickle
import tarfile

import numpy as np
import pytest

from hashcade.data import _cifar100, load_cifar100
from hashcade.errors import DataError


@pytest.fixture(params=["python", "binary"])
def written(request, cifar, tmp_path):
    """The tiny set in one of the layouts, in a folder of the official name."""
    folder = tmp_path / "data" / f"cifar-100-{request.param}"
    (cifar.write_pickles if request.param == "python" else cifar.write_binary)(folder)
    return folder


@pytest.fixture
def tiny_sums(monkeypatch, written):
    """Take the tiny files for the official ones."""
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in written.iterdir()}
    monkeypatch.setattr(_cifar100, "MD5", {name: sums.get(name) for name in _cifar100.MD5})


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_both_layouts_give_the_images_and_the_official_numbers(
    cifar, written, tiny_sums, split, labels
):
    for path in (written, written.parent, str(written)):
        items = load_cifar100(path, split, labels=labels)
        assert items.items.shape == (len(cifar.fine[split]), 32, 32, 3)
        assert items.items.dtype == np.uint8
        assert items.items.flags.c_contiguous
        np.testing.assert_array_equal(items.items[1], cifar.image(split, 1))
        assert items.labels.tolist() == getattr(cifar, labels)[split]
        assert items.class_names == getattr(cifar, f"{labels}_names")
        assert split in items.source


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_archives_are_read_as_they_are(cifar, written, tiny_sums, suffix, split):
    archive = written.parent / f"cifar.{suffix}"
    with tarfile.open(archive, "w:" + suffix.removeprefix("tar").removeprefix(".")) as tar:
        tar.add(written, written.name)
    before = sorted(written.parent.iterdir())
    items = load_cifar100(archive, split)
    np.testing.assert_array_equal(items.items[2], cifar.image(split, 2))
    assert items.labels.tolist() == cifar.fine[split]
    assert sorted(written.parent.iterdir()) == before


def test_files_other_than_the_official_ones_are_refused_unless_asked_for(written):
    with pytest.raises(DataError, match=r"md5 is \w{32}, the official file has \w{32}") as caught:
        load_cifar100(written)
    assert "verify=False" in str(caught.value)
    assert len(load_cifar100(written, verify=False)) == 6


def test_one_changed_byte_is_seen(written, tiny_sums):
    file = next(f for f in (written / "train", written / "train.bin") if f.exists())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="md5 is"):
        load_cifar100(written)
    assert len(load_cifar100(written, "test")) == 4


def test_bytes_behind_the_end_are_seen(written, tiny_sums):
    file = next(f for f in (written / "train", written / "train.bin") if f.exists())
    whole = file.read_bytes()
    for more in (b"x", b"x" * 3_000_000):  # within what is read ahead, and beyond it
        file.write_bytes(whole + more)
        with pytest.raises(DataError, match="md5 is"):
            load_cifar100(written)


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file_is_refused(written, tiny_sums, verify):
    file = next(f for f in (written / "train", written / "train.bin") if f.exists())
    file.write_bytes(file.read_bytes()[:-100])
    message = "md5 is" if verify else "damaged|must be a multiple of 3074"
    with pytest.raises(DataError, match=message):
        load_cifar100(written, verify=verify)


def test_a_truncated_archive_is_refused(cifar, tmp_path):
    cifar.write_pickles(tmp_path / "cifar-100-python")
    archive = tmp_path / "c.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tmp_path / "cifar-100-python", "cifar-100-python")
    whole = archive.read_bytes()
    for length in (0, 10, len(whole) // 2):
        archive.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"c\.tar\.xz"):
            load_cifar100(archive, verify=False)


def test_an_archive_is_read_only_as_far_as_needed(cifar, tmp_path):
    cifar.write_pickles(tmp_path / "c")
    with tarfile.open(tmp_path / "c.tar", "w") as tar:
        for name in ("meta", "test", "train"):
            tar.add(tmp_path / "c" / name, f"cifar-100-python/{name}")
    whole = (tmp_path / "c.tar").read_bytes()
    (tmp_path / "c.tar").write_bytes(whole[: whole.index(b"cifar-100-python/train") + 1000])
    assert len(load_cifar100(tmp_path / "c.tar", "test", verify=False)) == 4
    with pytest.raises(DataError, match="damaged"):
        load_cifar100(tmp_path / "c.tar", "train", verify=False)


def test_what_is_not_there_is_named(tmp_path, written):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load_cifar100(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"looked for the files test and meta.*test\.bin and fine"):
        load_cifar100(tmp_path / "empty", "test")
    for name in ("meta", "fine_label_names.txt"):
        (written / name).unlink(missing_ok=True)
    with pytest.raises(DataError, match="not Cifar-100, or not all of it"):
        load_cifar100(written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"fine_labels": [0, 1]}, "there are 6 items and 2 labels"),
        ({b"fine_labels": [0, 1, 2, 3, 0, 0]}, "labels has 3 in row 3, must be from 0 to 2"),
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
