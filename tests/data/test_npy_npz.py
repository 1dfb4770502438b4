import io
import zipfile

import numpy as np
import pytest

from hashcade.data import load_npy, load_npz, read_npy, read_npz
from hashcade.errors import DataError

VECTORS = np.arange(6, dtype=np.float16).reshape(3, 2)
LABELS = np.array([40, -2, 40])


# -- .npz ---------------------------------------------------------------------------------


def test_parts_and_their_keys(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, train=VECTORS, train_labels=LABELS, test=VECTORS[:1], test_labels=LABELS[:1])
    for split in (None, "train"):
        items = load_npz(file, split=split)
        assert items.items.dtype == np.float32
        assert items.items.tolist() == VECTORS.tolist()
        assert items.original_labels() == LABELS.tolist()
    assert len(load_npz(file, split="test")) == 1
    swapped = load_npz(file, items="test", labels="test_labels")
    assert swapped.source.endswith("a.npz (test)")


def test_a_split_is_never_answered_with_another(tmp_path):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, X=VECTORS, y=LABELS, X_val=VECTORS[:2], y_val=LABELS[:2])
    assert len(load_npz(file)) == 3
    assert len(load_npz(file, split="val")) == 2
    with pytest.raises(
        DataError, match="X, y, X_val, y_val; looked for test and test_labels; or"
    ) as caught:
        load_npz(file, split="test")
    assert caught.value.hint == "name others with items= and labels= (--items, --labels)"


def test_images_and_strings(tmp_path):
    file = tmp_path / "a.npz"
    images = np.zeros((2, 8, 8, 3), np.uint8)
    np.savez(file, X=images, y=np.array(["b", "a"]))
    assert load_npz(file).class_names == ("a", "b")
    assert load_npz(file).is_images


def test_keys_go_together(tmp_path):
    np.savez(tmp_path / "a.npz", a=VECTORS)
    with pytest.raises(ValueError, match="items='a' and labels=None must be given together"):
        load_npz(tmp_path / "a.npz", items="a")
    with pytest.raises(DataError, match="has no key 'foo'") as caught:  # before labels are missed
        load_npz(tmp_path / "a.npz", items="foo")
    assert caught.value.hint == "it has the keys a"
    with pytest.raises(DataError, match="has the keys a; looked for vec and lab"):
        load_npz(tmp_path / "a.npz", items="vec", labels="lab")


@pytest.mark.parametrize("key", ["X", "y"])
def test_pickled_objects_are_never_read(tmp_path, key):
    class Hostile:
        def __reduce__(self):
            return (print, ("executed",))

    arrays = {"X": VECTORS, "y": LABELS} | {key: np.array([Hostile()] * 3, dtype=object)}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match="holds pickled objects"):
        load_npz(tmp_path / "a.npz")


def test_damage_is_one_error(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, X=np.zeros((50, 50)), y=np.arange(50))
    whole = file.read_bytes()
    for content in (b"", b"PK\x03\x04", b"hello", whole[:1000], whole[: len(whole) - 30]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz (is damaged|holds pickled)"):
            load_npz(file)
    flipped = bytearray(whole)
    flipped[5000] ^= 255
    file.write_bytes(flipped)
    with pytest.raises(DataError, match="Bad CRC-32"):
        load_npz(file)


def test_a_single_array_is_not_an_archive(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, VECTORS)
    with pytest.raises(DataError, match="holds one array without a key"):
        load_npz(tmp_path / "a.npz")


def test_members_that_are_no_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("X.npy", b"text")
        content = io.BytesIO()
        np.save(content, LABELS)
        archive.writestr("y.npy", content.getvalue())
    with pytest.raises(DataError, match=r"a\.npz"):
        load_npz(tmp_path / "a.npz")


# -- .npy ---------------------------------------------------------------------------------


def test_labels_beside_the_file_or_given(tmp_path):
    file = tmp_path / "a.npy"
    np.save(file, VECTORS)
    with pytest.raises(DataError, match=r"has no labels: there is no a_labels\.npy or a_labels\.t"):
        load_npy(file)
    (tmp_path / "a_labels.txt").write_text("b\na c\nb\n")
    assert load_npy(file).original_labels() == ["b", "a c", "b"]
    np.save(tmp_path / "a_labels.npy", LABELS)
    assert load_npy(file).original_labels() == LABELS.tolist()
    (tmp_path / "other.txt").write_text("10\n-9\n10\n")
    for labels in (tmp_path / "other.txt", str(tmp_path / "other.txt"), [10, -9, 10]):
        assert load_npy(file, labels=labels).class_names == (-9, 10)


def test_labels_that_do_not_fit(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS)
    with pytest.raises(DataError, match=r"a\.npy: there are 3 items and 2 labels"):
        load_npy(tmp_path / "a.npy", labels=[1, 2])
    with pytest.raises(DataError, match=r"none\.npy does not exist"):
        load_npy(tmp_path / "a.npy", labels=tmp_path / "none.npy")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8 text with one label per line"):
        load_npy(tmp_path / "a.npy", labels=tmp_path / "b.txt")


def test_a_damaged_file_is_one_error(tmp_path):
    file = tmp_path / "a.npy"
    np.save(file, np.zeros((50, 50)))
    whole = file.read_bytes()
    for content in (b"", b"hello", whole[:6], whole[:100], whole[:-1]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npy (is damaged|holds pickled)"):
            load_npy(file, labels=[1])
    np.savez(tmp_path / "b.npz", X=VECTORS)
    (tmp_path / "b.npz").rename(file)
    with pytest.raises(DataError, match=r"holds several arrays under their keys"):
        load_npy(file, labels=[1])


# -- arrays of any meaning ----------------------------------------------------------------


def test_all_arrays_of_a_file(tmp_path):
    np.savez(tmp_path / "a.npz", a=VECTORS, b=LABELS)
    arrays = read_npz(tmp_path / "a.npz")
    assert list(arrays) == ["a", "b"]
    np.testing.assert_array_equal(arrays["a"], VECTORS)
    np.save(tmp_path / "a.npy", VECTORS)
    mapped = read_npy(tmp_path / "a.npy", mmap=True)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, read_npy(tmp_path / "a.npy"))
    with pytest.raises(DataError, match=r"a\.npz is damaged, or not a numpy file"):
        read_npy(tmp_path / "a.npz", mmap=True)
    np.save(tmp_path / "a.npy", np.array([print], dtype=object))
    for mmap in (False, True):
        with pytest.raises(DataError, match=r"pickled objects|Python objects"):
            read_npy(tmp_path / "a.npy", mmap=mmap)
