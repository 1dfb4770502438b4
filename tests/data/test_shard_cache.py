"""Parquet in many files: read together, or written once to a file that is mapped into memory."""

import json

import numpy as np
import pytest

from hashcade.data import load, load_items, load_parquet, parquet
from hashcade.errors import DataError, StorageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def vectors_and_labels(n=50, dim=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, dim)).astype(np.float32), rng.integers(0, 4, n)


@pytest.fixture
def folder(tmp_path):
    """Four files of 50 items; the third has none, and the last another type of labels."""
    vectors, labels = vectors_and_labels()
    (tmp_path / "shards").mkdir()
    for number, rows in enumerate(np.split(np.arange(50), [20, 45, 45])):
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[rows].ravel()), 3)
        classes = pa.array(labels[rows], pa.int32() if number == 3 else pa.int64())
        table = pa.table({"embedding": column, "label": classes, "key": rows})
        pq.write_table(table, tmp_path / "shards" / f"{number}.parquet", row_group_size=7)
    return tmp_path / "shards"


@pytest.fixture
def small_memory(monkeypatch):
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 100)
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 8)


def assert_all(found):
    vectors, labels = vectors_and_labels()
    np.testing.assert_array_equal(found.items, vectors)
    assert found.original_labels() == labels.tolist()


@pytest.mark.parametrize("path", ["", "*.parquet", ["0.parquet", "[123].parquet"]])
def test_a_directory_a_pattern_or_a_list_are_one_set(folder, path):
    several = [str(folder / name) for name in path] if isinstance(path, list) else folder / path
    found = load(several, ids="key")

    assert_all(found)
    assert not isinstance(found.items, np.memmap)
    assert found.ids == tuple(range(50))
    np.testing.assert_array_equal(load_items(several).items, found.items)


def test_more_than_memory_stays_in_a_file(folder, tmp_path, small_memory, monkeypatch):
    found = load_parquet(folder, cache=tmp_path)

    assert_all(found)
    assert isinstance(found.items, np.memmap)
    monkeypatch.setattr(parquet.Columns, "_parts", None)  # not read a second time
    assert_all(load_parquet(folder, cache=tmp_path))


def test_a_changed_file_is_read_again(folder, tmp_path, small_memory):
    load_parquet(folder, cache=tmp_path)
    table = pq.read_table(folder / "1.parquet").slice(0, 3)
    pq.write_table(table, folder / "1.parquet")

    assert len(load_parquet(folder, cache=tmp_path)) == 28


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_killed_run_resumes_after_the_last_whole_file(
    folder, tmp_path, small_memory, monkeypatch, stop
):
    read = parquet.Columns._parts

    def fails(self, shard, *args):
        for part in read(self, shard, *args):
            yield part
            if shard.endswith(f"{stop}.parquet"):
                raise KeyboardInterrupt

    monkeypatch.setattr(parquet.Columns, "_parts", fails)
    with pytest.raises(KeyboardInterrupt):
        load_parquet(folder, cache=tmp_path)
    done = [json.loads(file.read_bytes()) for file in tmp_path.rglob("rows.json")]
    monkeypatch.setattr(parquet.Columns, "_parts", read)

    assert_all(load_parquet(folder, cache=tmp_path))
    assert done == ([[20, 25, 0][:stop]] if stop else [])


def test_a_damaged_file_of_the_cache_is_named(folder, tmp_path, small_memory):
    load_parquet(folder, cache=tmp_path)
    for file in tmp_path.rglob("rows.json"):
        file.write_text("[1, ")
    with pytest.raises(StorageError, match=r"rows\.json is damaged"):
        load_parquet(folder, cache=tmp_path)


def test_a_sample_has_as_many_of_each_class_and_reads_no_more(folder, small_memory, tmp_path):
    vectors, labels = vectors_and_labels()
    found = load(folder, sample=22, ids="key", cache=tmp_path)

    rows = list(found.ids)
    np.testing.assert_array_equal(found.items, vectors[rows])
    assert found.original_labels() == labels[rows].tolist()
    counts = np.bincount(found.labels)
    assert counts.sum() == 22
    assert counts.max() - counts.min() <= 1
    assert not list(tmp_path.rglob("items.npy"))


def test_a_file_of_another_length_is_named(folder):
    pq.write_table(pa.table({"embedding": [[1.0]], "label": [1]}), folder / "4.parquet")
    with pytest.raises(
        DataError, match=r"4\.parquet: embedding has 1 numbers in row 0, must have 3"
    ):
        load(folder)


def test_a_file_without_the_column_is_named(folder):
    pq.write_table(pa.table({"other": [1]}), folder / "4.parquet")
    with pytest.raises(DataError, match=r"4\.parquet has the columns other"):
        load(folder)


def test_addresses(folder):
    pytest.importorskip("fsspec")
    assert_all(load(f"file://{folder}/*.parquet"))
