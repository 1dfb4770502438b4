"""``items.db`` of a stranger: its schema, its rows, and what is beside it."""

import os
import shutil
import sqlite3
from contextlib import suppress

import numpy as np
import pytest

from hashcade import CorruptIndexError, HashTable, StorageError
from hashcade.store import load_state
from hashcade.store.database import connect
from hashcade.store.rows import payload_crc, row_crc
from tests.hostile.fuzz_table import TRIGGERS, golden_table


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    golden_table(folder)
    return folder / "0"


def crafted(golden, tmp_path, *statements):
    """A copy in which a stranger has run statements of SQL; triggers are put back."""
    path = tmp_path / "table"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(golden, path)
    db = sqlite3.connect(path / "items.db", isolation_level=None)
    for name in ("item_added", "item_removed"):
        db.execute(f"DROP TRIGGER {name}")
    for statement, *values in statements:
        db.execute(statement, values)
    for statement in TRIGGERS:
        db.execute(statement)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return path


def looked_at(path):
    """Everything that is read of a table, but for what verify alone does."""
    state, _ = load_state(path)
    try:
        table = HashTable.from_parts(None, state.index, state.catalog)
        result = table.index.search(
            np.zeros((1, 5)), bucket_ids=[list(range(16))], n_neighbors=20, threads=1
        )
        list(table.matches(result))
        return table
    finally:
        state.catalog.close()


@pytest.mark.promise("crafted db", "views, triggers, tables and indexes of a stranger in items.db")
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW v AS SELECT load_extension('x')",
        "CREATE TRIGGER more AFTER DELETE ON items BEGIN DELETE FROM classes; END",
        "CREATE TABLE more(x)",
        "CREATE INDEX more ON items(name)",
        "DROP INDEX item_ids",
        "ALTER TABLE items ADD COLUMN more",
        "CREATE TEMP TABLE x(y)",
    ],
)
def test_any_other_schema_is_refused(golden, tmp_path, statement, cases):
    path = crafted(golden, tmp_path, (statement,))
    if "TEMP" in statement:  # not in the file
        looked_at(path)
    else:
        with pytest.raises(StorageError, match="is not the database of a hashcade table"):
            looked_at(path)
    cases.add()


@pytest.mark.promise("crafted db", "functions in the schema of a stranger are not called")
def test_the_schema_is_not_trusted_before_it_is_known(golden, tmp_path, cases):
    path = crafted(golden, tmp_path)
    db = connect(path / "items.db", check=False)
    assert db.execute("PRAGMA trusted_schema").fetchone() == (0,)
    assert db.execute("PRAGMA cell_size_check").fetchone() == (1,)
    with pytest.raises(sqlite3.OperationalError, match="too many attached"):
        db.execute("ATTACH ':memory:' AS other")
    db.close()
    cases.add(3)


def row(**changes):
    """A statement that changes item 1, its checksums right."""
    values = {"number": 1, "id": None, "label": 1, "name": "1.png", "payload": '{"k":1,"t":"x"}'}
    values |= changes
    described = [values[name] for name in ("number", "id", "label", "name")]
    text = values["payload"]
    of_payload = payload_crc(1, text)
    if of_payload != of_payload:  # not text: any number is as wrong
        of_payload = -1
    return (
        "UPDATE items SET id = ?, label = ?, name = ?, crc = ?, payload = ?, payload_crc = ?"
        " WHERE number = 1",
        *described[1:], row_crc(*described), text, of_payload,
    )  # fmt: skip


ROWS = {
    "id where numbers are ids": row(id="x"),
    "id of bytes": row(id=b"x"),
    "label beyond the classes": row(label=99),
    "label negative": row(label=-5),
    "label text": row(label="a"),
    "label other than the index has": row(label=0),
    "name of bytes": row(name=b"\xff"),
    "payload of bytes": row(payload=b"{}"),
    "payload a number": row(payload="1"),
    "payload of two": row(payload='{"k":1},{"k":2}'),
    "payload out of its list": row(payload='null],["x"'),
    "payload not JSON": row(payload="{"),
    "payload of another kind than its index": row(payload='{"k":"one"}'),
    "payload nested without end": row(payload="[" * 100_000),
    "an index of a field without the value": ("DELETE FROM field_values WHERE number = 1",),
    "an index of a field with another": ("UPDATE field_values SET value = 9 WHERE number = 1",),
    "a path of another field": ("UPDATE fields SET path = '$.t'",),
    "a field of bytes": ("UPDATE fields SET name = x'ff'",),
    "an item less": ("DELETE FROM items WHERE number = 1",),
    "a class twice": ("UPDATE classes SET label = 'a'",),
    "a class of bytes": ("UPDATE classes SET label = x'ff' WHERE code = 1",),
    "a class less": ("DELETE FROM classes WHERE code = 1",),
    "ids of another kind": ("UPDATE meta SET value = 'str' WHERE key = 'ids'",),
    "metric": ("UPDATE meta SET value = 'x' WHERE key = 'metric'",),
    "metric cosine": ("UPDATE meta SET value = 'cosine' WHERE key = 'metric'",),
    "place": ("UPDATE meta SET value = NULL WHERE key = 'place'",),
    "number of changes": ("INSERT INTO sqlite_sequence VALUES('changes', 'x')",),
    "a change that is none": ("INSERT INTO changes(body) VALUES(x'00')",),
    "a change that is text": ("INSERT INTO changes(body) VALUES('x')",),
}


@pytest.mark.promise("crafted db", "rows of a stranger in items.db, their checksums right")
@pytest.mark.parametrize("attack", ROWS)
def test_rows_of_a_stranger_are_refused_by_verify(golden, tmp_path, attack, cases):
    path = crafted(golden, tmp_path, ROWS[attack])
    with pytest.raises((CorruptIndexError, StorageError)):  # noqa: PT012
        state, _ = load_state(path)
        try:
            state.catalog.last_change  # noqa: B018
            state.catalog.verify(state.index)
        finally:
            state.catalog.close()
    with suppress(StorageError):  # and never anything else
        looked_at(path)
    cases.add()


@pytest.mark.promise("crafted db", "a pipe, a link or a directory beside items.db")
def test_what_is_beside_the_database_is_a_regular_file(golden, tmp_path, cases):
    for suffix in ("-wal", "-shm", "-journal"):
        for kind in ("pipe", "link", "directory"):
            path = crafted(golden, tmp_path)
            beside = path / f"items.db{suffix}"
            beside.unlink(missing_ok=True)
            if kind == "pipe":
                os.mkfifo(beside)
            elif kind == "link":
                beside.symlink_to(tmp_path / "elsewhere")
            else:
                beside.mkdir()
            with pytest.raises(StorageError, match="must be a regular file"):
                HashTable.open(path)
            assert not (tmp_path / "elsewhere").exists()
            cases.add()


@pytest.mark.promise("M6", "a file that is cut short under an open table, before it is read")
def test_a_file_that_was_cut_short_is_noticed_before_a_block_is_read(golden, tmp_path, cases):
    """Reading beyond the end of a mapped file would end the process; see docs/operations.md."""
    path = tmp_path / "table"
    shutil.copytree(golden, path)
    state, _ = load_state(path)
    (file,) = (path / "index").glob("segment-*.bin")
    os.truncate(file, 64)
    with pytest.raises(CorruptIndexError, match="64 bytes, must have"):
        state.index.search(np.zeros((1, 5)), bucket_ids=[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]], threads=1)
    with pytest.raises(CorruptIndexError, match="64 bytes, must have"):
        state.index.verify()
    state.catalog.close()
    cases.add(2)
