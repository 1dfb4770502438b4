import sys

import numpy as np
import pytest

from hashcade.data import load_items, load_parquet, parquet
from hashcade.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

VECTORS = [[1.0, 2.0], [3.0, 4.0], [5.0, -6.0]]
LISTS = {
    "fixed": pa.list_(pa.float32(), 2),
    "list": pa.list_(pa.float32()),
    "large": pa.large_list(pa.float64()),
    "half": pa.list_(pa.float16(), 2),
    "integers": pa.list_(pa.int8()),
}


def write(path, embedding, label, **options):
    table = pa.table({"other": range(len(label)), "embedding": embedding, "label": label})
    pq.write_table(table, path, **options)
    return path


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_kinds_of_lists(tmp_path, monkeypatch, kind, batch_rows):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", batch_rows)
    vectors = [[np.float16(x) for x in row] for row in VECTORS] if kind == "half" else VECTORS
    vectors = [[int(x) for x in row] for row in vectors] if kind == "integers" else vectors
    path = write(tmp_path / "a.parquet", pa.array(vectors, LISTS[kind]), ["b", "a", "b"])
    items = load_parquet(path)
    assert items.items.dtype == np.float32
    assert items.items.tolist() == VECTORS
    assert items.original_labels() == ["b", "a", "b"]


def test_many_row_groups_and_a_large_file(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 7)
    path = write(tmp_path / "a.parquet", column, np.arange(1000) % 10 - 5, row_group_size=64)
    items = load_parquet(path)
    np.testing.assert_array_equal(items.items, vectors)
    assert items.class_names == tuple(range(-5, 5))


@pytest.mark.parametrize("batch_rows", [2, 100])
def test_ids_and_payload(tmp_path, monkeypatch, batch_rows):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", batch_rows)
    kept = {"a": ["x", None, "y"], "a.b": [1, 2, 3], "c": [{"d": 1}, {"d": 2}, None]}
    columns = {"embedding": VECTORS, "label": [1, 2, 1], "key": ["p", "q", "r"]}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns | kept), path)
    rows = tuple(dict(zip(kept, row, strict=True)) for row in zip(*kept.values(), strict=True))
    items = load_parquet(path, ids="key", payload="all")
    assert items.ids == ("p", "q", "r")
    assert items.payload == rows
    assert items.original_labels() == [1, 2, 1]
    items = load_items(path, payload=["c", "key", "embedding"], ids="key")
    assert items.ids == ("p", "q", "r")
    assert items.payload[2] == {"c": None, "key": "r", "embedding": VECTORS[2]}
    assert load_parquet(path, payload="a").payload == ({"a": "x"}, {"a": None}, {"a": "y"})
    items = load_parquet(path)
    assert items.ids is None
    assert items.payload is None
    with pytest.raises(DataError, match=r"looked for e$") as caught:
        load_parquet(path, payload=["a", "e"])
    assert caught.value.hint == "name another with payload= (--payload)"


def test_columns_by_name_and_dictionaries(tmp_path):
    labels = pa.array(["x", "y", "x"]).dictionary_encode()
    pq.write_table(pa.table({"v": VECTORS, "kind": labels}), tmp_path / "a.parquet")
    items = load_parquet(tmp_path / "a.parquet", items="v", labels="kind")
    assert items.original_labels() == ["x", "y", "x"]
    with pytest.raises(DataError, match=r"columns v, kind; looked for embedding$") as caught:
        load_parquet(tmp_path / "a.parquet")
    assert caught.value.hint == "name another with items= (--items)"
    with pytest.raises(DataError, match=r"looked for label$") as caught:
        load_parquet(tmp_path / "a.parquet", items="v")
    assert caught.value.hint == "name another with labels= (--labels)"


@pytest.mark.parametrize(
    ("embedding", "label", "message"),
    [
        ([[1.0, 2.0], [3.0], [1.0, 2.0]], [1, 2, 3], "has 1 numbers in row 1, must have 2"),
        ([[1.0], None, [2.0]], [1, 2, 3], "embedding has 0 numbers in row 1, must have 1"),
        ([[1.0], [None], [2.0]], [1, 2, 3], "items has NaN or values beyond float32 in row 1"),
        ([[1.0], [float("nan")], [2.0]], [1, 2, 3], "NaN or values beyond float32 in row 1"),
        ([[1.0], [1e300], [2.0]], [1, 2, 3], "NaN or values beyond float32 in row 1"),
        ([[1.0], [2.0], [3.0]], [1, None, 3], r"labels has None \(NoneType\) in row 1"),
        ([[1.0], [2.0], [3.0]], [[1], [1, 2], []], r"labels has \[1\] \(list\) in row 0"),
        ([[1.0], [2.0], [3.0]], [1.0, 2.0, 3.0], r"labels has 1.0 \(float\) in row 0"),
        ([1.0, 2.0, 3.0], [1, 2, 3], "has type double, must be a list of numbers"),
        ([["a"], ["b"], ["c"]], [1, 2, 3], "must be a list of numbers"),
        ([[], [], []], [1, 2, 3], "must be a list of numbers"),
        (pa.array([[], []], pa.list_(pa.float32())), [1, 2], r"shape \(2, 0\), must be"),
        (pa.array([], pa.list_(pa.float32())), [], r"shape \(0, 0\), must be"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, embedding, label, message):
    path = write(tmp_path / "a.parquet", embedding, label)
    with pytest.raises(DataError, match=message) as caught:
        load_parquet(path)
    assert str(caught.value).startswith(str(path))


def test_lengths_that_change_between_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 2)
    path = write(tmp_path / "a.parquet", [[1.0], [2.0], [3.0, 4.0]], [1, 2, 3])
    with pytest.raises(DataError, match="has 2 numbers in row 2, must have 1"):
        load_parquet(path)


def test_damage_is_one_error(tmp_path):
    path = write(tmp_path / "a.parquet", VECTORS, [1, 2, 3])
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[:-20], whole[20:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.parquet is damaged, or not Parquet") as caught:
            load_parquet(path)
        assert "\n" not in str(caught.value)


def test_missing_pyarrow_is_one_line(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", VECTORS, [1, 2, 3])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pyarrow is not installed; run: .*\[parquet\]"):
        load_parquet(path)
