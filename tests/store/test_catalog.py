"""The catalog: what belongs to the numbers in an index, and the file that it is stored in."""

import sqlite3

import numpy as np
import pandas as pd
import pytest

from hashcade import CorruptIndexError, HashTable, IncompatibleFormatError, StorageError
from hashcade.index import NO_LABEL
from hashcade.store import Catalog
from tests.store.factories import make_table

# -- labels ----


@pytest.mark.parametrize(
    ("labels", "codes", "classes"),
    [
        (["b", "a", "b"], [0, 1, 0], ["b", "a"]),
        ([7, -3, 7], [0, 1, 0], [7, -3]),
        ([7.0, np.nan], [0, NO_LABEL], [7]),
        (["a", None], [0, NO_LABEL], ["a"]),
        (np.array(["a", None, 3], dtype=object), [0, NO_LABEL, 1], ["a", 3]),
        (pd.Series([1, 2, None], dtype="Int64"), [0, 1, NO_LABEL], [1, 2]),
        (pd.Series(["x", pd.NA], dtype="string"), [0, NO_LABEL], ["x"]),
        ([], [], []),
    ],
)
def test_labels_get_codes_in_the_order_in_which_they_come(labels, codes, classes):
    catalog = Catalog()
    assert catalog.codes(labels, len(labels)).tolist() == codes
    assert catalog.classes == classes
    expected = [None if code == NO_LABEL else classes[code] for code in codes]
    assert catalog.labels(np.array(codes, dtype=np.int64)).tolist() == expected


def test_no_labels_at_all():
    assert Catalog().codes(None, 3).tolist() == [NO_LABEL] * 3


def test_known_classes_keep_their_codes():
    catalog = Catalog(["a", "b"])
    assert catalog.codes(["c", "a"], 2).tolist() == [2, 0]
    assert catalog.classes == ["a", "b", "c"]
    assert (catalog.label(2), catalog.label(NO_LABEL), catalog.label(9)) == ("c", None, None)
    assert catalog.codes(["d"], 1, known=["d"]).tolist() == [3]
    with pytest.raises(ValueError, match="labels has 'e', 5, which the table does not have"):
        catalog.codes(np.array(["e", 5, "a"], dtype=object), 3, known=["d"])


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (["a"], "shape"),
        ([["a", "b"]], "shape"),
        ([1.5, 2.0], "1.5 in row 0"),
        ([b"a", 3.5], "row 0"),
        (np.array([2**63, 1], dtype=np.uint64), "row 0"),
    ],
)
def test_bad_labels_leave_the_classes_as_they_are(labels, match):
    catalog = Catalog(["a"])
    with pytest.raises(ValueError, match=match):
        catalog.codes(labels, 2)
    assert catalog.classes == ["a"]


def test_a_change_that_fails_leaves_everything_as_it_was():
    catalog = Catalog(["a"])

    def fail():
        catalog.put(catalog.codes(["b", "a"], 2), 0, ids=["x", "y"])
        assert catalog.labels(np.array([1])).tolist() == ["b"]
        return 1 / 0

    with pytest.raises(ZeroDivisionError), catalog.change():
        fail()
    assert (catalog.classes, catalog.id_kind, len(catalog.where())) == (["a"], None, 0)
    with catalog.change():
        codes = catalog.codes(["c", "a", None], 3)
        catalog.put(codes, 0)
    assert catalog.labels(codes).tolist() == ["c", "a", None]
    assert catalog.id_kind == "int"


# -- ids, names, payload ----


def put(catalog, n=2, **more):
    with catalog.change():
        return catalog.put(np.full(n, NO_LABEL), 0, **more)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([1, 1], "id 1 more than once"),
        (["a", "a"], "id 'a' more than once"),
        ([-1, 2], "row 0"),
        (["a", 1], "ids mixes text with 1 in row 1"),
        ([1.5, 2.5], "must be integers"),
        ([True, False], "must be integers"),
        ([None, 2], "integers or strings"),
        (["a"], "ids has 1 entries"),
        ("ab", "must be a list"),
        (["a\0b", "c"], "not valid text"),
        (["\ud800", "c"], "not valid text"),
        (np.array([2**63, 1], dtype=np.uint64), r"2\*\*63"),
    ],
)
def test_bad_ids_are_named(ids, match):
    catalog = Catalog()
    with pytest.raises(ValueError, match=match):
        put(catalog, ids=ids)
    assert len(catalog.where()) == 0


def test_ids_are_of_one_kind():
    catalog = Catalog()
    assert put(catalog, ids=["ä", "b"]).tolist() == [0, 1]
    with pytest.raises(ValueError, match="ids are integers, those of the table are text"):
        put(catalog, ids=[1, 2])
    with pytest.raises(ValueError, match="ids are missing, this table has ids of text"):
        put(catalog)
    with pytest.raises(ValueError, match="id 'b' already in the table"):
        put(catalog, ids=["b", "c"])
    with catalog.change():
        assert catalog.put(np.full(2, NO_LABEL), 7, ids=["c", "b"], replace=True).tolist() == [7, 1]
    assert catalog.ids_of(np.array([[0, 1], [7, -1]])).tolist() == [["ä", "b"], ["c", None]]
    assert [catalog.number_of(item) for item in ("ä", "x", 0, "\ud800")] == [0, None, None, None]
    with pytest.raises(ValueError, match="id 'x' not in the table"), catalog.change():
        catalog.remove(["b", "x"])
    assert catalog.number_of("b") == 1


@pytest.mark.parametrize(
    "payload",
    [
        [{"a": 1, "b": "x"}, {"a": None, "b": "y"}],
        {"a": [1, np.nan], "b": np.array(["x", "y"])},
        pd.DataFrame({"a": pd.Series([1, None], dtype="Int64"), "b": ["x", "y"]}),
        ({"a": np.int64(1), "b": np.str_("x")}, {"a": float("nan"), "b": "y"}),
    ],
)
def test_payload_is_taken_in_many_forms(payload):
    catalog = Catalog()
    numbers = put(catalog, payload=payload)
    assert catalog.payload_of(numbers).tolist() == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


def test_payload_of_arrow_tables():
    pa = pytest.importorskip("pyarrow")
    catalog = Catalog()
    when = np.array(["2026-01-02T03:04:05"], dtype="datetime64[s]")
    numbers = put(catalog, 1, payload=pa.table({"when": when, "tags": [["a", "b"]]}))
    expected = {"when": "2026-01-02T03:04:05", "tags": ["a", "b"]}
    assert catalog.payload_of(numbers).tolist() == [expected]


def test_payload_comes_back_as_it_was():
    catalog = Catalog()
    rows = [
        {"a": {"b": [1, 2.5, None, True]}, "": "empty", 'ä"\\\n': "\0\U0001f600", "big": 10**30},
        None,
        {},
    ]
    numbers = put(catalog, 3, payload=rows)
    assert catalog.payload_of(numbers).tolist() == rows
    assert catalog.payload_of(np.array([[2, -1], [99, 0]])).tolist() == [
        [{}, None],
        [None, rows[0]],
    ]


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        ([{"a": 1}], "payload has 1 rows, there are 2 items"),
        ([{"a": 1}, 5], "payload has a int in row 1"),
        ([{"a": 1}, {"b": {1, 2}}], "'b' in row 1 is of type set"),
        ([{"a": float("inf")}, None], "'a' in row 0 is infinite"),
        ([{"a": [{"c": b"x"}]}, None], "'a' in row 0 is of type bytes"),
        ([{"a": {3: 4}}, None], "'a' in row 0 has the key 3"),
        ([{5: 1}, None], "the field 5 in row 0"),
        ([None, {"a": "\ud800"}], "row 1 is not valid text"),
        ({"a": [1, 2], "b": [1]}, "different lengths: a 2, b 1"),
        ("text", "payload is of type str"),
    ],
)
def test_bad_payload_is_named(payload, match):
    catalog = Catalog()
    with pytest.raises(ValueError, match=match):
        put(catalog, payload=payload)
    assert len(catalog.where()) == 0


@pytest.mark.parametrize("n", [0, 1, 10, 200, 201, 5000])
def test_items_come_in_the_order_in_which_they_are_asked_for(n):
    """Some of them twice, and some that are not there; a few at once, and many."""
    catalog, ids = Catalog(), [f"id{number}" for number in range(300)]
    payload = [{"n": number} if number % 3 else None for number in range(300)]
    names = [f"{number}.jpg" if number % 2 else None for number in range(300)]
    catalog.put(np.zeros(300, np.int64), 0, ids=ids, names=names, payload=payload)
    asked = np.random.default_rng(n).integers(-1, 310, (1, n))
    for values, found in (
        (ids, catalog.ids_of(asked)),
        (names, catalog.names_of(asked)),
        (payload, catalog.payload_of(asked)),
    ):
        assert found.shape == (1, n)
        expected = [values[k] if 0 <= k < 300 else None for k in asked[0].tolist()]
        assert found[0].tolist() == expected


def test_names_are_those_of_the_last_item_with_an_id():
    catalog = Catalog()
    put(catalog, ids=[4, 7], names=["four.jpg", None])
    assert catalog.names_of(np.array([4, 7, 9])).tolist() == ["four.jpg", None, None]
    put(catalog, 1, ids=[4], replace=True)  # a new item under the old id has no name
    assert catalog.name_of(4) is None
    with pytest.raises(ValueError, match="names has 1 entries, there are 2 items"):
        put(catalog, names=["one"])


# -- the file ----


def test_what_was_written_is_read(tmp_path):
    settings = {"metric": "inner_product", "place": "network", "data": tmp_path}
    make_table(tmp_path / "t", classes=["ä", 7, -(2**63), "", "x"], names={3: "a.jpg"}, **settings)
    read = Catalog.open(tmp_path / "t")
    assert read.classes == ["ä", 7, -(2**63), "", "x"]
    assert (read.metric, read.place, read.data) == ("inner_product", "network", tmp_path)
    assert read.names_of(np.array([3, 4])).tolist() == ["a.jpg", None]


def test_a_missing_catalog_says_what_to_do(tmp_path):
    with pytest.raises(StorageError, match=r"items\.db is missing") as caught:
        Catalog.open(tmp_path)
    assert "hashcade fit" in caught.value.hint


def run(place, *statements):
    db = sqlite3.connect(place / "items.db")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("UPDATE meta SET value = '99' WHERE key = 'version'", IncompatibleFormatError),
        ("UPDATE meta SET value = 'other' WHERE key = 'format'", IncompatibleFormatError),
        ("DELETE FROM meta WHERE key = 'metric'", CorruptIndexError),
        ("UPDATE meta SET value = 'float' WHERE key = 'ids'", CorruptIndexError),
        ("UPDATE classes SET label = x'00' WHERE code = 1", CorruptIndexError),
        ("DELETE FROM classes WHERE code = 1", CorruptIndexError),
        ("DROP TABLE items", IncompatibleFormatError),
        ("CREATE TABLE more(x)", IncompatibleFormatError),
        ("CREATE VIEW more AS SELECT 1", IncompatibleFormatError),
        (
            "CREATE TRIGGER bad AFTER DELETE ON items BEGIN DELETE FROM items; END",
            IncompatibleFormatError,
        ),
        ("DELETE FROM generations", StorageError),
    ],
)
def test_a_database_that_was_tampered_with_is_an_error(tmp_path, statement, error):
    place = make_table(tmp_path / "table")
    run(place, statement)
    with pytest.raises(error):
        HashTable.load(place)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_not_a_database_is_an_error(tmp_path, content):
    place = make_table(tmp_path / "table")
    (place / "items.db").write_bytes(content)
    with pytest.raises((CorruptIndexError, IncompatibleFormatError)):
        HashTable.load(place)


def test_a_row_that_was_changed_is_an_error_and_not_an_answer(tmp_path):
    place = make_table(tmp_path / "table", names={3: "three"})
    run(place, "UPDATE items SET name = 'thrxe' WHERE number = 3")
    table = HashTable.load(place)
    with pytest.raises(CorruptIndexError, match="checksum of item 3"):
        print(table[3])
    assert table[4].name is None
    with pytest.raises(CorruptIndexError, match="checksum of item 3"):
        table.catalog.verify(table.index)
    run(place, "UPDATE meta SET value = 'names payload' WHERE key = 'kept'")
    for damage in ("'{\"a\": 1}'", "x'00'", "'{'"):
        run(place, f"UPDATE items SET payload = {damage} WHERE number = 4")
        with pytest.raises(CorruptIndexError, match="checksum of item 4"):
            print(HashTable.load(place)[4])


def test_names_and_payload_that_no_item_has_are_not_looked_for(tmp_path):
    table = HashTable.load(make_table(tmp_path / "table"))
    table.catalog.close()  # so nothing can be read
    for found in (table.catalog.names_of, table.catalog.payload_of):
        assert found(np.arange(6).reshape(2, 3)).tolist() == [[None] * 3] * 2


def test_items_that_have_more_than_the_database_says_are_found_out(tmp_path):
    place = make_table(tmp_path / "table", names={3: "three"})
    run(place, "UPDATE meta SET value = '' WHERE key = 'kept'")
    table = HashTable.load(place)
    with pytest.raises(CorruptIndexError, match="an item has names, and none is said to have"):
        table.catalog.verify(table.index)
    run(place, "UPDATE meta SET value = 'names tails' WHERE key = 'kept'")
    with pytest.raises(CorruptIndexError, match="items are said to have 'names tails'"):
        HashTable.load(place)


def test_rows_and_index_are_compared(tmp_path):
    place = make_table(tmp_path / "table")
    run(place, "DELETE FROM items WHERE number = 3")
    table = HashTable.load(place)
    with pytest.raises(CorruptIndexError, match="its 199 items are not the 200 of the index"):
        table.catalog.verify(table.index)


def test_every_damaged_byte_is_an_error_or_of_no_consequence(tmp_path):
    """Bytes all over the file, one at a time: what is read is right, or there is an error."""
    place = make_table(tmp_path / "table", names={k: f"item {k}" for k in range(40)})
    path = place / "items.db"
    good = path.read_bytes()
    expected = HashTable.load(place).catalog.names_of(np.arange(200)).tolist()
    rng = np.random.default_rng(0)
    n_errors = 0
    for at in rng.choice(len(good), 300, replace=False).tolist():
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(bytes(bad))
        try:
            table = HashTable.load(place)
            names = table.catalog.names_of(np.arange(200)).tolist()
            table.catalog.verify(table.index)
            table.close()
        except StorageError:
            n_errors += 1
        else:
            assert names == expected, at
    assert n_errors > 30


def test_a_damaged_change_is_an_error(tmp_path):
    from hashcade.store import DurableIndex
    from tests.store.factories import abandon, add, vector

    place = make_table(tmp_path / "table")
    durable = DurableIndex(place)
    add(durable, [3], vector(1), labels=[0]).result()
    abandon(durable)
    db = sqlite3.connect(place / "items.db")
    (body,) = db.execute("SELECT body FROM changes").fetchone()
    for bad in (body[:-1], body[:30] + bytes([body[30] ^ 1]) + body[31:], b"", "text"):
        db.execute("UPDATE changes SET body = ?", (bad,))
        db.commit()
        with pytest.raises(CorruptIndexError, match="cannot be read"):
            HashTable.load(place)
    db.close()
