"""What is wrong with shards is said in one line, and leaves no table behind."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hashcade.batch import build_table
from hashcade.errors import ConfigError, DataError, HashcadeError, IndexLockedError
from tests.batch.factories import DIM, rows


def lists(vectors):
    return pa.array([list(map(float, vector)) for vector in vectors])


def with_nan(table, row):
    X = np.stack(table["embedding"].to_numpy()).copy()
    X[row, 3] = np.nan
    return table.set_column(0, "embedding", lists(X))


GOOD = rows(1500, 0)
CASES = {
    "column": (GOOD.drop_columns("label"), {}, r"1\.parquet has the columns .*; looked for label"),
    "other column": (GOOD, {"payload": ["colour"]}, "looked for colour"),
    "no list": (
        GOOD.set_column(0, "embedding", pa.array(np.zeros(1500))), {}, "must be a list of numbers"
    ),
    "other size": (
        GOOD.set_column(0, "embedding", lists(np.zeros((1500, DIM + 1)))), {},
        f"embedding has {DIM + 1} numbers in row 0, must have {DIM}",
    ),
    "one row of another size": (
        GOOD.set_column(0, "embedding", lists([*np.zeros((1300, DIM)), *np.zeros((200, 3))])), {},
        f"embedding has 3 numbers in row 1300, must have {DIM}",
    ),
    "NaN": (with_nan(GOOD, 1234), {}, r"1\.parquet: embedding has NaN .* in row 1234"),
    "mixed labels": (
        GOOD.set_column(1, "label", pa.array(np.arange(1500))), {}, "all integers or all text"
    ),
    "labels of no kind": (
        GOOD.set_column(1, "label", pa.array(np.full(1500, 0.5))), {}, "must be an integer"
    ),
    "double integers": (
        GOOD.append_column("sku", pa.array(np.arange(1499, 2999))), {"ids": "sku"},
        "ids has id 1499 more than once",
    ),
    "double in one shard": (
        GOOD.append_column("sku", pa.array([5000] * 1500)), {"ids": "sku"},
        "ids has id 5000 more than once",
    ),
    "negative id": (
        GOOD.append_column("sku", pa.array(-np.arange(1500))), {"ids": "sku"}, "must be in 0..2"
    ),
    "no id": (
        GOOD.append_column("sku", pa.array([*range(1500, 2999), None])), {"ids": "sku"},
        "sku has no value in row 1499",
    ),
    "other ids": (
        GOOD.append_column("sku", pa.array([f"{n}" for n in range(1500)])), {"ids": "sku"},
        "sku has integers in .*0.parquet and text in .*1.parquet",
    ),
    "payload": (
        GOOD.append_column("raw", pa.array([b"x"] * 1500)), {"payload": ["raw"]},
        "which JSON does not have",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bad_second_shard(tmp_path, model, case):
    second, columns, message = CASES[case]
    first = GOOD.append_column("sku", pa.array(np.arange(1500)))
    if case == "payload":
        first = first.append_column("raw", pa.array([b"x"] * 1500))
    pq.write_table(first, tmp_path / "0.parquet")
    pq.write_table(second, tmp_path / "1.parquet")
    with pytest.raises(HashcadeError, match=message):
        build_table(model, str(tmp_path / "*.parquet"), tmp_path / "out", **columns)
    assert not (tmp_path / "out").exists()


def test_double_ids_of_text(tmp_path, model):
    for number in range(2):
        ids = [f"item {n}" for n in range(1000 * number, 1000 * number + 1500)]
        pq.write_table(rows(1500, number, sku=ids), tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=r"sku: ids has ids 'item 1000'.* more than once"):
        build_table(model, str(tmp_path / "*.parquet"), tmp_path / "out", ids="sku")


def test_bad_arguments(tmp_path, model, shards):
    def build(**changes):
        arguments = {"model": model, "shards": str(shards), "output": tmp_path / "out"}
        return build_table(**{**arguments, **changes})

    with pytest.raises(ValueError, match="metric='manhattan' must be one of"):
        build(metric="manhattan")
    with pytest.raises(ValueError, match="place='here' must be one of"):
        build(place="here")
    with pytest.raises(ValueError, match="workers=0 must be >= 1"):
        build(workers=0)
    with pytest.raises(ValueError, match="memory=1000 must be >= 16777216"):
        build(memory=1000)
    with pytest.raises(DataError, match="stands for no file"):
        build(shards=str(tmp_path / "*.parquet"))
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(DataError, match="is damaged, or not Parquet"):
        build(shards=str(tmp_path / "text.parquet"))
    pq.write_table(GOOD.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="there are no rows in any shard"):
        build(shards=str(tmp_path / "empty.parquet"))
    assert not (tmp_path / "out").exists()


def test_memory_addresses_need_one_process(tmp_path, model, shards):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://alone/0.parquet", "wb") as file:
        file.write((shards / "000.parquet").read_bytes())
    with pytest.raises(ConfigError, match="must be built with workers=1"):
        build_table(model, "memory://alone/0.parquet", tmp_path / "out", workers=2)


def test_two_builds_at_once(tmp_path, model, shards):
    from hashcade._io import writer_lock

    work = tmp_path / "out.building"
    work.mkdir()
    with writer_lock(work), pytest.raises(IndexLockedError):
        build_table(model, str(shards), tmp_path / "out")
