"""The fuzzer on the database and the payload of a table."""

import json
import sqlite3
import struct
import zlib

import numpy as np

from hashcade import HashIndex, HashTable
from hashcade.errors import CorruptIndexError
from hashcade.index import Encoded
from hashcade.store import Catalog, load_state
from hashcade.store.changes import Add, Remove
from hashcade.store.database import SCHEMA
from hashcade.store.rows import payload_crc, row_crc
from tests.hostile import forge
from tests.hostile.fuzz_index import DIM, SHAPES
from tests.hostile.fuzz_mutations import WrongAnswerError, mutate_array, mutated_bytes


def golden_table(folder):
    rng = np.random.default_rng(0)
    for kind in range(2):
        index = HashIndex.build(
            np.empty((0, 1), int), np.empty((0, DIM)), labels=[], shape=SHAPES[0]
        )
        table = HashTable.from_parts(None, index, Catalog(["a", "b", 3]))
        n = 12
        encoded = Encoded(
            rng.normal(size=(n, DIM)).astype(np.float32), rng.integers(0, 16, (n, 1)), None,
            by_path=False,
        )  # fmt: skip
        table.add(
            encoded, ids=[f"id{k}" for k in range(n)] if kind else None,
            labels=[("a", "b", 3, None)[k % 4] for k in range(n)],
            names=[f"{k}.png" for k in range(n)],
            payload=[{"k": k % 3, "t": "x" * k} if k % 5 else None for k in range(n)],
        )  # fmt: skip
        table.create_index("k")
        table.save(folder / str(kind))
        if kind:  # changes that the index does not have
            catalog = Catalog.open(folder / str(kind))
            catalog.rollback()
            catalog.begin()
            with catalog.change():
                numbers = catalog.put(np.array([0]), 50, ids=["new"])
                catalog.log(Add(numbers, np.array([[3]]), encoded.vectors[:1], np.array([0])))
                catalog.log(Remove(catalog.remove(["id3"])))
            catalog.commit()
            catalog.close()
        table.close()
        with sqlite3.connect(folder / str(kind) / "items.db") as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()


TRIGGERS = [sql for sql in SCHEMA if sql.startswith("CREATE TRIGGER")]
SQL_VALUES = [None, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 0.5, "", "x", "1", b"", b"\xff\x00", "é"]


def mutate_database(rng, folder):
    path = next(folder.iterdir()) / "items.db"
    if rng.random() < 0.5:
        path.write_bytes(mutated_bytes(rng, path.read_bytes()))
        return
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = OFF")
        for _ in range(rng.choice([1, 1, 2])):
            _mutate_row(rng, db)
        db.execute("PRAGMA journal_mode = WAL")
    except (sqlite3.Error, OverflowError):
        pass
    finally:
        db.close()


def _mutate_row(rng, db):
    listed = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    tables = {
        name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
        for (name,) in listed
        if not name.startswith("sqlite_")
    }
    table = rng.choice([*tables, "items", "items", "schema"])
    if table == "schema":
        statement = rng.choice([
            "CREATE VIEW v AS SELECT 1", "CREATE TABLE t(x)", "DROP INDEX item_labels",
            "CREATE TRIGGER t2 AFTER INSERT ON items BEGIN DELETE FROM items; END",
            "DROP TRIGGER item_added", "ALTER TABLE items ADD COLUMN more", "DROP TABLE fields",
            "DELETE FROM sqlite_sequence", "UPDATE sqlite_sequence SET seq = 'x'",
        ])  # fmt: skip
        db.execute(statement)
        return
    column = rng.choice(tables[table])
    rows = db.execute(f"SELECT * FROM {table}").fetchall()
    if not rows:
        return
    row = list(rng.choice(rows))
    names = tables[table]
    where = " AND ".join(f"{name} IS ?" for name in names)
    values = list(row)
    at = names.index(column)
    if table == "changes" and column == "body":
        body = mutated_bytes(rng, row[1][4:])
        values[at] = struct.pack("<I", zlib.crc32(body)) + body
    elif column == "payload" and rng.random() < 0.6:
        texts = ['{"k":1}', '{"k":[1]}', "1,2", "null],[1", "{", '{"k":1e999}', "[" * 2000, '"x"']
        values[at] = rng.choice(texts)
    else:
        values[at] = rng.choice([*SQL_VALUES, rng.choice(rows)[at]])
    if table == "items":
        if not isinstance(values[0], int):
            values[0] = row[0]
        try:
            values[4] = row_crc(*values[:4]) if column != "crc" else values[4]
            values[6] = payload_crc(values[0], values[5]) if column != "payload_crc" else values[6]
        except (UnicodeError, TypeError):
            pass
    if rng.random() < 0.1:
        db.execute(f"DELETE FROM {table} WHERE {where}", row)
        return
    for trigger in ("item_added", "item_removed"):  # as if a stranger had written it by hand
        db.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    sets = ", ".join(f"{name} = ?" for name in names)
    try:
        db.execute(f"UPDATE {table} SET {sets} WHERE {where}", [*values, *row])
    finally:
        for statement in TRIGGERS:
            db.execute(statement)


def read_table(folder):
    path = next(folder.iterdir())
    state, _ = load_state(path)
    table = HashTable.from_parts(None, state.index, state.catalog)
    try:
        catalog = table.catalog
        numbers = np.arange(14)
        catalog.ids_of(numbers), catalog.names_of(numbers), catalog.payload_of(numbers)
        filters = ({"k": 1}, {"k": {">": 0}}, {"label": "a"}, {"t": "x"}, {"not": {"k": None}})
        answers = [table.catalog.where(where).tolist() for where in filters]
        result = table.index.search(
            np.zeros((1, DIM)), bucket_ids=[list(range(16))], n_neighbors=20, threads=1
        )
        matches = table.matches(result)
        list(matches)
        table.index.verify()
        catalog.verify(table.index)
        compare_table(path, table, filters, answers)
        new = Encoded(np.zeros((1, DIM), np.float32), np.zeros((1, 1), int), None, by_path=False)
        ids = ["a new one"] if catalog.id_kind == "str" else None
        table.add(new, ids=ids, labels=["new"], payload=[{"k": 1}], new_labels=True)
        table.save(path)
    finally:
        table.close()
    state, _ = load_state(path)
    try:
        state.index.verify()
        state.catalog.verify(state.index)
    except CorruptIndexError as error:
        raise WrongAnswerError(f"after a change: {error}") from None
    finally:
        state.catalog.close()


def compare_table(path, table, filters, answers):
    """Answers of a table beside its rows, read by other code."""
    db = sqlite3.connect(f"file:{path / 'items.db'}?mode=ro", uri=True)
    rows = db.execute("SELECT number, id, label, name, payload FROM items").fetchall()
    classes = dict(db.execute("SELECT code, label FROM classes"))
    db.close()
    payload = {row[0]: json.loads(row[4]) if row[4] else {} for row in rows}
    of_label = {row[0]: None if row[2] is None else classes[row[2]] for row in rows}

    def is_number(value):
        return isinstance(value, int | float) and not isinstance(value, bool)

    tests = (
        lambda n: is_number(payload[n].get("k")) and payload[n]["k"] == 1,
        lambda n: is_number(payload[n].get("k")) and payload[n]["k"] > 0,
        lambda n: of_label[n] == "a",
        lambda n: payload[n].get("t") == "x",
        lambda n: payload[n].get("k") is not None,
    )
    for where, answer, test in zip(filters, answers, tests, strict=True):
        expected = sorted(n for n in payload if test(n))
        if answer != expected:
            raise WrongAnswerError(f"{where}: {answer}, must be {expected}")
    for number_, key, _, name, _ in rows:
        item = table[number_ if table.catalog.id_kind == "int" else key]
        given = (item.label, item.name, item.payload or {})
        if given != (of_label[number_], name, payload[number_]):
            raise WrongAnswerError(f"item {number_}: {given}")


def mutate_payload(rng, folder):
    """Bytes of the payload file, or its texts and entries, mostly with right checksums."""
    path = next(next(folder.iterdir()).glob("payload-*.bin"))
    data = path.read_bytes()
    if rng.random() < 0.4:
        path.write_bytes(mutated_bytes(rng, data))
        return
    n, n_words, _ = struct.unpack("<qqq", data[-24:])
    words = np.frombuffer(data, np.uint64, n_words).copy()
    entries = np.frombuffer(data, np.int64, 3 * n, 8 * n_words).copy().reshape(n, 3)
    mutate_array(rng, rng.choice([words.view(np.uint8), entries]))
    if rng.random() < 0.7:
        ends = [*entries[1:, 1].tolist(), n_words]
        for row, end in zip(entries, ends, strict=True):
            row[2] = forge.text_checksum(int(row[0]), words[max(row[1], 0) : max(end, 0)].tolist())
    path.write_bytes(words.tobytes() + entries.tobytes() + data[-24:])


# format: golden files, mutator, reader, share of all cases
FORMATS = {
    "items.db": (golden_table, mutate_database, read_table, 0.10),
    "payload": (golden_table, mutate_payload, read_table, 0.05),
}
