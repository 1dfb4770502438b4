"""The catalog: which label and which name belong to the numbers in an index."""

import json

import numpy as np
import pytest

from hashcade.errors import CorruptIndexError, IncompatibleFormatError, StorageError
from hashcade.index import NO_LABEL
from hashcade.store import Catalog


class NAType:  # as pandas calls its mark of a missing value
    pass


@pytest.mark.parametrize(
    ("labels", "classes", "codes"),
    [
        (["b", "a", "b"], ["b", "a"], [0, 1, 0]),
        ([7, 3, 7], [7, 3], [0, 1, 0]),
        (np.array([1.0, 2.0]), [1, 2], [0, 1]),
        (["b", None, "b"], ["b"], [0, NO_LABEL, 0]),
        ([3.0, float("nan")], [3], [0, NO_LABEL]),
        (np.array(["b", NAType()], dtype=object), ["b"], [0, NO_LABEL]),
        ([None, None], [], [NO_LABEL, NO_LABEL]),
        (np.array([True, False]), [1, 0], [0, 1]),
        ([], [], []),
    ],
)
def test_labels_become_codes_and_come_back(labels, classes, codes):
    catalog = Catalog()
    assert catalog.codes(labels, len(labels)).tolist() == codes
    assert catalog.classes == classes
    expected = [None if code == NO_LABEL else classes[code] for code in codes]
    assert catalog.labels(np.array(codes, dtype=np.int64)).tolist() == expected


def test_no_labels_at_all():
    assert Catalog().codes(None, 3).tolist() == [NO_LABEL] * 3


def test_new_labels_get_the_next_codes():
    catalog = Catalog(["a", "b"])
    assert catalog.codes(["c", "a"], 2).tolist() == [2, 0]
    assert catalog.classes == ["a", "b", "c"]
    assert (catalog.label(2), catalog.label(NO_LABEL), catalog.label(9)) == ("c", None, None)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"], r"labels has shape \(1,\), must be \(2,\)"),
        ([1.5, 2.0], "labels has 1.5 in row 0, must be an integer, a string or None"),
        ([["a"], ["b"]], r"labels has shape \(2, 1\)"),
    ],
)
def test_bad_labels_change_nothing(labels, message):
    catalog = Catalog(["a"])
    with pytest.raises(ValueError, match=message):
        catalog.codes(labels, 2)
    assert catalog.classes == ["a"]


def test_names():
    catalog = Catalog()
    catalog.name_items(np.array([4, 7]), ["four.jpg", None])
    assert catalog.names == {4: "four.jpg"}
    catalog.name_items(np.array([4]), None)  # a new item under the old id has no name
    assert catalog.names == {}
    refused = pytest.raises(ValueError, match="names has 1 entries, there are 2 items")
    with refused, catalog.change(2, ["one"]):
        pass


def test_a_failed_change_leaves_no_classes():
    catalog = Catalog(["a"])
    with pytest.raises(ZeroDivisionError), catalog.change(2, None):
        print(catalog.codes(["b", "a"], 2) / (1 / 0))
    assert catalog.classes == ["a"]
    assert catalog.codes(["c"], 1).tolist() == [1]


def test_a_failed_change_leaves_no_labels():
    catalog = Catalog(["a"])
    with pytest.raises(ZeroDivisionError), catalog.change(2, None):
        print(catalog.labels(catalog.codes(["b", "a"], 2)), 1 / 0)
    assert catalog.labels(catalog.codes(["c", "a", None], 3)).tolist() == ["c", "a", None]


@pytest.mark.parametrize("names", [{}, {3: "drei.jpg", 10**15: "ä/\n.png"}])
@pytest.mark.parametrize("classes", [[], [3, 1], ["b", "ä"], ["1", 1]])
def test_what_is_written_can_be_read(tmp_path, classes, names):
    settings = {"metric": "inner_product", "place": "network", "data": tmp_path}
    Catalog(classes, names, **settings).write(tmp_path)
    read = Catalog.read(tmp_path)
    assert (read.classes, read.names) == (classes, names)
    assert {name: getattr(read, name) for name in settings} == settings
    assert {name: getattr(read.copy(), name) for name in settings} == settings


def test_the_stored_format(tmp_path):
    Catalog(["ä", 7], {3: "a.jpg"}).write(tmp_path)
    assert (tmp_path / "catalog.json").read_text("utf-8") == (
        '{\n "format": "hashcade-table",\n "version": 1,\n "metric": "euclidean",\n'
        ' "place": "label",\n "data": null,\n'
        ' "has_names": true,\n "classes": [\n  "ä",\n  7\n ]\n}\n'
    )
    assert (tmp_path / "names.json").read_text("utf-8") == '{"3": "a.jpg"}'


def test_a_missing_catalog_says_what_to_do(tmp_path):
    with pytest.raises(StorageError, match="is not a hashcade table") as caught:
        Catalog.read(tmp_path)
    assert "hashcade fit" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 99}, IncompatibleFormatError),
        ({"format": "other"}, IncompatibleFormatError),
        ({"classes": [1.5]}, CorruptIndexError),
        ({"classes": 3}, CorruptIndexError),
        ({"place": "shelf"}, CorruptIndexError),
        ({"has_names": True}, StorageError),  # names.json is missing
    ],
)
def test_a_damaged_catalog_is_an_error(tmp_path, change, error):
    Catalog(["a"]).write(tmp_path)
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(error):
        Catalog.read(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", '"x"', "\x00"])
def test_an_unreadable_catalog_is_an_error(tmp_path, content):
    (tmp_path / "catalog.json").write_text(content)
    with pytest.raises(StorageError):
        Catalog.read(tmp_path)
