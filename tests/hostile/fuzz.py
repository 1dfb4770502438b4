"""A fuzzer for every reader of files: golden files, changed at random, with right checksums.

``python -m tests.hostile.fuzz --cases 200000`` tries so many, and is resumed where it was stopped
(``--state FILE``). Each format has a maker of golden files, a mutator, and a reader that does all
that can be done with such a file. A case may be refused, by an error of this package, or accepted;
then what ``verify`` accepts must give the answers that brute force over the same content gives.
Anything else is a failure: another exception, a crash, more than a second of work, or more memory
than ten times the file. Cases are made by a seed and a number, so that each can be made again:
``--format index --first 123 --cases 1``.
"""

from __future__ import annotations

import argparse
import copy
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from hashcade import CodeShape, Hasher, HashIndex, HashTable
from hashcade.data import IMAGE_FORMATS, load_items, load_npz, read_image, read_npz
from hashcade.errors import CorruptIndexError, HashcadeError
from hashcade.index import Encoded, encode_int8
from hashcade.store import Catalog, load_state
from hashcade.store.changes import Add, Remove, apply_changes, from_record, to_records
from hashcade.store.database import SCHEMA
from hashcade.store.rows import payload_crc, row_crc
from tests.hostile import forge

SECONDS, WALL, MEMORY = 1.0, 30.0, 64 << 20  # of work; until it hangs; beyond ten times the file
GOLDEN_MODEL = Path(__file__).parents[1] / "learn" / "golden" / "model"
NUMBERS = [
    0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 255, 256, 257, 1000, 2**15, 2**16 - 1,
    2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, 1e-45, 1e-30, 1e19, 1e30, 3e38, np.inf, np.nan]
VALUES = [
    None, True, False, "", "x", "../x", "\x00", "é" * 50, [], {}, [0], {"a": 1}, 0.5, -0.5, 1e308,
    float("nan"), float("inf"), [[[]]], "9" * 30,
]  # fmt: skip


class WrongAnswerError(Exception):
    """What was accepted gave another answer than its content does."""


# -- mutators ----


def number(rng, near=None):
    kind = rng.random()
    if near is not None and kind < 0.4:
        return near + rng.choice([-2, -1, 1, 2, 64])
    return rng.choice(NUMBERS) * (1 if kind < 0.8 else -1)


def mutated_bytes(rng, data, least=1):
    """Bytes with a few changes."""
    data = bytearray(data)
    for _ in range(rng.choice([least, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if not data or kind == 0:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 8, 64]))
        elif kind <= 2:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            data[at % len(data)] = rng.choice([0, 1, 127, 128, 255])
        elif kind == 4:
            size, order = rng.choice([2, 4, 8]), rng.choice(["little", "big"])
            value = (number(rng) % (1 << 8 * size)).to_bytes(size, order)
            data[at : at + size] = value[: max(0, len(data) - at)]
        elif kind == 5:
            del data[at : at + rng.choice([1, 4, 100, 5000])]
        elif kind == 6:
            other, size = rng.randrange(len(data)), rng.choice([4, 8, 64, 512])
            data[at : at + size] = data[other : other + size]
        elif kind == 7:
            data[at : at + rng.choice([8, 64, 1000])] = bytes(rng.choice([8, 64, 1000]))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def places(value, path=()):
    """All places in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def mutate_json(rng, value):
    """Change a JSON value in place, at a few places."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        choices = list(places(value))
        if not choices:
            return
        *path, key = rng.choice(choices)
        holder = value
        for part in path:
            holder = holder[part]
        old, kind = holder[key], rng.random()
        if kind < 0.08:
            del holder[key]
        elif kind < 0.12 and isinstance(holder, list):
            holder.append(json.loads(json.dumps(old)))
        elif kind < 0.2:
            *other, other_key = rng.choice(choices)
            source = value
            for part in other:
                source = source[part] if isinstance(source, dict | list) else value
            if isinstance(source, dict | list):
                try:
                    holder[key] = json.loads(json.dumps(source[other_key]))
                except (LookupError, TypeError):
                    holder[key] = None
        elif isinstance(old, int) and not isinstance(old, bool) and kind < 0.85:
            holder[key] = number(rng, old)
        elif isinstance(old, float) and kind < 0.85:
            holder[key] = rng.choice([*FLOATS, -old, old / 2, old * 1.001])
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))  # it may be changed later


def mutate_array(rng, array):
    """Change a few values of an array in place."""
    flat = array.reshape(-1)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, other = rng.randrange(len(flat)), rng.randrange(len(flat))
        kind = rng.random()
        if kind < 0.25:
            flat[at] = flat[other]
        elif kind < 0.4:
            flat[at], flat[other] = flat[other], flat[at]
        elif array.dtype.kind == "f":
            flat[at] = rng.choice([*FLOATS, -flat[at], flat[at] * 2, rng.gauss(0, 1)])
        else:
            info = np.iinfo(array.dtype)
            flat[at] = min(max(number(rng, int(flat[at])), info.min), info.max)


# -- the index ----

SHAPES = (
    CodeShape(width=4, depth=2), CodeShape(width=4, depth=2, sparsity=2),
    CodeShape(width=16, depth=1),
)  # fmt: skip
DIM = 5


def make_index(path, kind):
    rng = np.random.default_rng(kind)
    shape = SHAPES[kind % 3]
    labels = kind % 2 == 0
    n = 40
    index = HashIndex.build(
        rng.integers(0, 16, (n, shape.sparsity)), rng.normal(size=(n, DIM)),
        labels=rng.integers(-1, 3, n) if labels else None, shape=shape, unit_length=kind >= 3,
        first_pass="int8" if kind % 2 else None, dtype="float16" if kind in (1, 2) else "float32",
    )  # fmt: skip
    index.add(
        rng.integers(0, 16, (6, shape.sparsity)), rng.normal(size=(6, DIM)),
        ids=[90, 80, 70, 60, 50, 95], labels=[1] * 6 if labels else None,
    )  # fmt: skip
    index.remove([3, 20, 80])
    index.save(path)


def golden_index(folder):
    for kind in range(6):
        make_index(folder / str(kind), kind)


def mutate_index(rng, folder):
    """Arrays of a segment, or its file, with sizes and checksums that are right."""
    path = next(folder.iterdir())
    body = forge.manifest_of(path)
    segment = rng.randrange(len(body["segments"]))
    record = body["segments"][segment]
    arrays = forge.arrays_of(path, record)
    kind = rng.random()
    if kind < 0.12 and record["removed"]:
        file = path / record["removed"]["file"]
        data = mutated_bytes(rng, file.read_bytes())
        file.write_bytes(data)
        record["removed"] |= {"crc32": zlib.crc32(data), "bytes": len(data)}
    elif kind < 0.25:  # the file itself
        file = path / record["file"]
        file.write_bytes(mutated_bytes(rng, file.read_bytes()))
        if rng.random() < 0.8:
            record["bytes"] = file.stat().st_size
            arrays = _as_they_are(file, record) or arrays
            if arrays is not None:
                forge.write_arrays(path, record, arrays)
    else:
        for _ in range(rng.choice([1, 1, 2])):
            mutate_array(rng, arrays[rng.choice([name for name in arrays if name != "blocks"])])
        if rng.random() < 0.6:  # what follows from the vectors is right again
            with np.errstate(all="ignore"):
                norms = np.sqrt((arrays["vectors"].astype(np.float64) ** 2).sum(axis=1))
            record["max_norm"] = float(norms.max()) * 1.001
            if body["unit_length"] and rng.random() < 0.7:
                scaled = arrays["vectors"] / np.maximum(norms, 1e-30)[:, None]
                arrays["vectors"] = scaled.astype(arrays["vectors"].dtype)
            if "codes" in arrays and rng.random() < 0.7:
                arrays["codes"], arrays["code_bounds"] = encode_int8(
                    arrays["vectors"].astype(np.float32)
                )
        if rng.random() < 0.5:
            body["next_id"] = max(body["next_id"], min(int(arrays["ids"].max()) + 1, 2**63))
        forge.write_arrays(path, record, arrays)
    if rng.random() < 0.15:
        mutate_json(rng, body)
    elif rng.random() < 0.5:
        with suppress(ValueError):  # a file that is too short
            _count_again(path, body)
    forge.write_manifest(path, body)


def _as_they_are(file, record):
    """The arrays of a file that was changed, if it is long enough."""
    try:
        return forge.arrays_of(file.parent, record)
    except ValueError:
        return None


def _count_again(path, body):
    """Counts of items as the content has them."""
    total = 0
    for record in body["segments"]:
        ids = forge.arrays_of(path, record)["ids"]
        live = _live(path, record, len(ids))
        record["n_items"] = len(np.unique(ids))
        if record["removed"]:
            record["removed"]["n_items"] = record["n_items"] - len(np.unique(ids[live]))
        total += len(np.unique(ids[live]))
    body["n_items"] = total


def _live(path, record, n):
    if not record["removed"]:
        return np.ones(n, bool)
    bits = np.frombuffer((path / record["removed"]["file"]).read_bytes(), np.uint8)
    if len(bits) * 8 < n:
        return np.ones(n, bool)
    return np.unpackbits(bits, count=n) == 0


def mutate_manifest(rng, folder):
    path = next(folder.iterdir())
    if rng.random() < 0.1:
        data = (path / "manifest.json").read_bytes()
        rest = mutated_bytes(rng, data[len(forge.HEAD) + 8 :])
        (path / "manifest.json").write_bytes(forge.HEAD + b"%08x" % zlib.crc32(rest) + rest)
        return
    body = forge.manifest_of(path)
    mutate_json(rng, body)
    forge.write_manifest(path, body)


def read_index(folder):
    path = next(folder.iterdir())
    index = HashIndex.load(path)
    dim, shape = index.dim, index.shape
    queries = np.ones((3, dim), np.float32) * np.float32([[1], [0.3], [-2]])
    some = np.unique(np.minimum([0, 1, 5, 7, 15], shape.n_buckets - 1))
    buckets = np.tile(some, (3, 1))
    for options in (
        {}, {"max_candidates": 5, "exclude_self": [1, 2, 3]}, {"filter_ids": [1, 2, 5, 7, 60]},
    ):  # fmt: skip
        index.search(queries, bucket_ids=buckets, n_neighbors=8, threads=1, **options)
    if shape.depth * shape.width < 1000:
        scores = np.linspace(0, 1, 3 * shape.depth * shape.width).reshape(3, shape.depth, -1)
        index.search(queries, scores=scores, n_probe=2, n_neighbors=60, threads=1)
        index.search(queries, scores=scores, n_neighbors=60, threads=1)
    index.verify()
    index.stats()
    compare_index(path, index, queries, buckets)
    if index.next_id >= 2**63:  # no id is left
        return
    other = index.copy()
    ids = other.add(np.zeros((1, shape.sparsity), int), queries[:1] / np.float32(dim**0.5),
                    labels=[0] if other.has_labels else None)  # fmt: skip
    if ids[0] in index:
        raise WrongAnswerError("a new id is one that was there")
    other.compact()
    other.save(folder / "copy")
    HashIndex.load(folder / "copy").verify()


def compare_index(path, index, queries, buckets):
    """Answers of an index beside those of its files, read by other code."""
    body = forge.manifest_of(path)
    found = {}  # id: vector and label, of the live entries in these buckets
    for record in body["segments"]:
        arrays = forge.arrays_of(path, record)
        live = _live(path, record, len(arrays["ids"]))
        of_entry = np.repeat(arrays["buckets"], np.diff(arrays["offsets"]))
        for entry in np.flatnonzero(live & np.isin(of_entry, buckets[0])).tolist():
            label = int(arrays["labels"][entry]) if "labels" in arrays else -1
            found[int(arrays["ids"][entry])] = (arrays["vectors"][entry].astype(np.float64), label)
    metrics = ["euclidean", "inner_product"] + ["cosine"] * bool(index.unit_length)
    n = len(found) + 2
    for metric in metrics:
        result = index.search(
            queries, bucket_ids=buckets, n_neighbors=n, fill="none", metric=metric, threads=1
        )
        few = index.search(
            queries, bucket_ids=buckets, n_neighbors=3, fill="none", metric=metric, threads=1
        )
        if not np.array_equal(few.ids, result.ids[:, :3]):
            raise WrongAnswerError(f"{metric}: the best three are not the first three")
        for q, query in enumerate(queries.astype(np.float64)):
            ids = result.ids[q][result.ids[q] >= 0].tolist()
            if sorted(ids) != sorted(found) or result.candidates[q] != len(found):
                raise WrongAnswerError(f"{metric}: found {sorted(ids)}, there are {sorted(found)}")
            for item, distance in zip(ids, result.distances[q].tolist(), strict=False):
                vector = found[item][0]
                if metric == "euclidean":
                    exact = float(np.sqrt(((vector - query) ** 2).sum()))
                elif metric == "inner_product":
                    exact = float(vector @ query)
                else:
                    exact = 1.0 - float(vector @ query) / float(np.sqrt(query @ query))
                scale = 1.0 + abs(exact) + float(np.abs(vector) @ np.abs(query))
                if abs(exact) < 3e38 and not abs(distance - exact) <= 1e-4 * scale:
                    raise WrongAnswerError(
                        f"{metric}: distance of {item} is {distance}, must be {exact}"
                    )
            order = result.distances[q][: len(ids)]
            ascending = -order if metric == "inner_product" else order
            if (np.diff(ascending) < 0).any():
                raise WrongAnswerError(f"{metric}: not in order")
    if index.has_labels and found:
        labels = index.labels_of(list(found)).tolist()
        if labels != [label for _, label in found.values()]:
            raise WrongAnswerError("labels differ")


# -- the database of a table ----


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


# -- models ----


def golden_model(folder):
    shutil.copytree(GOLDEN_MODEL, folder / "0")


def mutate_config(rng, folder):
    path = next(folder.iterdir()) / "config.json"
    config = json.loads(path.read_text())
    part = rng.choice([config["resolved"], config["resolved"], config["resolved"]["shape"], config])
    mutate_json(rng, part)
    path.write_text(json.dumps(config))


def mutate_weights(rng, folder):
    import hashlib

    from safetensors.numpy import load, save

    path = next(folder.iterdir())
    blob = (path / "model.safetensors").read_bytes()
    if rng.random() < 0.4:
        blob = mutated_bytes(rng, blob)
    else:
        arrays = {name: np.array(array) for name, array in load(blob).items()}
        name = rng.choice(list(arrays))
        kind = rng.random()
        if kind < 0.5 and arrays[name].size:
            mutate_array(rng, arrays[name])
        elif kind < 0.6:
            del arrays[name]
        elif kind < 0.7:
            arrays[name] = arrays[name].astype(rng.choice(["<f2", "<f8", "<i4", "u1", "?"]))
        elif kind < 0.85:
            arrays[name] = np.resize(arrays[name], rng.choice([(0,), (1,), (3, 3), (2, 0), (700,)]))
        else:
            arrays[name] = arrays[rng.choice(list(arrays))]
        blob = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    (path / "model.safetensors").write_bytes(blob)
    config = json.loads((path / "config.json").read_text())
    config |= {"model_bytes": len(blob), "model_sha256": hashlib.sha256(blob).hexdigest()}
    (path / "config.json").write_text(json.dumps(config))


def read_model(folder):
    hasher = Hasher.load(next(folder.iterdir()))
    if np.prod(hasher.item_shape) > 10**6:
        raise WrongAnswerError(f"items of shape {hasher.item_shape}")
    encoded = hasher.encode(np.linspace(-1, 1, 3 * hasher.n_features_in_, dtype=np.float32)
                            .reshape(3, *hasher.item_shape), n_probe=2)  # fmt: skip
    buckets = encoded.bucket_ids
    if buckets.min() < 0 or buckets.max() >= hasher.shape_.n_buckets:
        raise WrongAnswerError("a bucket that is not in the table")
    hasher.place(encoded, np.array([hasher.classes_.tolist()[0], None, "?"], dtype=object))
    repr(hasher)


# -- data ----


def golden_arrays(folder):
    rng = np.random.default_rng(0)
    for name, array in {
        "a": rng.normal(size=(20, 6)).astype(np.float32), "b": rng.normal(size=(7, 3)),
        "c": rng.integers(0, 255, (3, 4, 4, 3)).astype(np.uint8), "d": np.array(["x", "yy"]),
    }.items():  # fmt: skip
        (folder / name).mkdir()
        np.save(folder / name / "x.npy", array)


def golden_npz(folder):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3
    for name, save in (("plain", np.savez), ("packed", np.savez_compressed)):
        (folder / name).mkdir()
        save(folder / name / "x.npz", X=X, y=y)


def golden_parquet(folder):
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    columns = {
        "embedding": list(rng.normal(size=(30, 4)).astype(np.float32)), "label": [0, 1, 2] * 10,
        "t": [f"t{k}" for k in range(30)],
    }  # fmt: skip
    for name, how in {
        "a": {},
        "b": {"compression": "zstd"},
        "c": {"use_dictionary": False},
    }.items():
        (folder / name).mkdir()
        parquet.write_table(pa.table(columns), folder / name / "x.parquet", **how)


def golden_images(folder):
    from PIL import Image

    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (9, 11, 3)).astype(np.uint8))
    for name in IMAGE_FORMATS:
        (folder / name).mkdir()
        image.save(folder / name / "x.png", name)


def mutate_file(rng, folder):
    path = next(next(folder.iterdir()).iterdir())
    path.write_bytes(mutated_bytes(rng, path.read_bytes()))


def mutate_npz(rng, folder):
    """The archive, or an array in it, with a right checksum."""
    import io
    import zipfile

    path = next(next(folder.iterdir()).iterdir())
    if rng.random() < 0.5:
        mutate_file(rng, folder)
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    members[name] = mutated_bytes(rng, members[name])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as new:
        for key, content in members.items():
            new.writestr(key, content)
    path.write_bytes(data.getvalue())


def read_data(folder):
    load_items(next(next(folder.iterdir()).iterdir()))


def read_archive(folder):
    path = next(next(folder.iterdir()).iterdir())
    read_npz(path)
    load_npz(path)


def read_columns(folder):
    path = next(next(folder.iterdir()).iterdir())
    load_items(path, payload="all")


def read_picture(folder):
    pixels = read_image(next(next(folder.iterdir()).iterdir()), max_pixels=1_000_000)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise WrongAnswerError(f"{pixels.dtype}{pixels.shape}")


# -- records, the protocol of the service, and the cache of features ----


def golden_changes(folder):
    rng = np.random.default_rng(0)
    n = 5
    add = Add(np.arange(n) + 30, rng.integers(0, 16, (n, 2)),
              rng.normal(size=(n, DIM)).astype(np.float32), np.arange(n))  # fmt: skip
    for name, change in (("add", add), ("remove", Remove(np.arange(4)))):
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(next(to_records(change)))


_index = []


def read_change(folder):
    if not _index:
        _index.append(HashIndex.build(
            np.arange(20).reshape(10, 2) % 16, np.ones((10, DIM)), labels=np.arange(10),
            shape=SHAPES[1],
        ))  # fmt: skip
    path = next(next(folder.iterdir()).iterdir())
    change = from_record(path.read_bytes())
    index = _index[0].copy()
    for changes in ([change], [change, Remove(np.array([3])), change]):
        try:
            apply_changes(index, changes)
        except (ValueError, IndexError) as error:  # as load_state does
            raise CorruptIndexError(str(error)) from None
        index.verify()


def mutate_record(rng, folder):
    path = next(next(folder.iterdir()).iterdir())
    body = mutated_bytes(rng, path.read_bytes()[4:])
    path.write_bytes(struct.pack("<I", zlib.crc32(body)) + body)


def golden_protocol(folder):
    from hashcade.results import Matches
    from hashcade.serve.binary_format import write_matches

    rng = np.random.default_rng(0)
    matches = Matches(
        np.arange(6).reshape(2, 3), rng.normal(size=(2, 3)).astype(np.float32), np.array([5, 6]),
        np.array([True, False]), lambda: np.array([True, True]),
        lambda: np.array([["a", None, 3]] * 2, dtype=object),
        lambda: np.array([["n", None, None]] * 2, dtype=object),
        lambda: np.array([[{"a": 1}, None, None]] * 2, dtype=object),
    )  # fmt: skip
    vectors = rng.normal(size=10).astype("<f4").tobytes()
    for name, data in (
        ("buckets", vectors + np.arange(4, dtype="<i8").tobytes()),
        ("scores", rng.normal(size=10 + 16).astype("<f4").tobytes()),
        ("answer", write_matches(matches)),
    ):  # fmt: skip
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(data)


def read_protocol(folder):
    from hashcade.serve.binary_format import read_matches, read_query

    path = next(next(folder.iterdir()).iterdir())
    data = path.read_bytes()
    try:
        if path.parent.name == "answer":
            matches = read_matches(data, 2, 3)
            matches.labels, matches.names, matches.payload, matches.exact, list(matches)
            return
        by = "bucket_ids" if path.parent.name == "buckets" else "scores"
        vectors, buckets, scores = read_query(data, 2, by, DIM, SHAPES[0])
        if not _index:
            read_change_index()
        where = {"bucket_ids": buckets} if buckets is not None else {"scores": scores}
        _index[0].search(vectors, threads=1, **where)
    except ValueError as error:
        raise CorruptIndexError(str(error)) from None


def read_change_index():
    _index.append(HashIndex.build(
        np.arange(20).reshape(10, 2) % 16, np.ones((10, DIM)), labels=np.arange(10), shape=SHAPES[1]
    ))  # fmt: skip


class _Features:
    """As much of ``ImageFeatures`` as the cache looks at."""

    precision = "float32"

    class record:  # noqa: N801
        name, size = "x", 4

        def __repr__(self):
            return "x"


def golden_cache(folder):
    from hashcade.data.feature_cache import FeatureCache

    (folder / "0").mkdir()
    with FeatureCache(folder / "0", _Features()) as cache:
        cache.put({bytes([k]) * 32: np.arange(4, dtype=np.float32) + k for k in range(8)})


def mutate_cache(rng, folder):
    path = next(next(folder.iterdir()).glob("*.db"))
    if rng.random() < 0.6:
        path.write_bytes(mutated_bytes(rng, path.read_bytes()))
        return
    db = sqlite3.connect(path)
    try:
        with db:
            value = rng.choice([b"", b"\0" * 16, b"\xff" * 16, "x", 7, 0.5, "x" * 16])
            db.execute("UPDATE features SET vector = ? WHERE image < ?", (value, bytes([4])))
            if rng.random() < 0.3:
                db.execute(rng.choice(["CREATE TABLE t(x)", "CREATE VIEW v AS SELECT 1"]))
    except sqlite3.Error:
        pass
    finally:
        db.close()


def read_cache(folder):
    from hashcade.data.feature_cache import FeatureCache

    place = next(folder.iterdir())
    (file,) = place.glob("*.db")
    features = _Features()
    file.rename(place / _cache_name(features))
    with FeatureCache(place, features) as cache:
        for k in range(8):
            for vector in cache.get(bytes([k]) * 32).values():
                if vector.shape != (4,) or not np.isfinite(vector).all():
                    raise WrongAnswerError("features of another size, or NaN")


def _cache_name(features):
    import hashlib

    digest = hashlib.sha256(repr((features.record, features.precision)).encode()).hexdigest()
    return f"x-{digest[:16]}.db"


# format: golden files, mutator, reader, share of all cases
FORMATS = {
    "index": (golden_index, mutate_index, read_index, 0.25),
    "manifest": (golden_index, mutate_manifest, read_index, 0.15),
    "items.db": (golden_table, mutate_database, read_table, 0.10),
    "payload": (golden_table, mutate_payload, read_table, 0.05),
    "changes": (golden_changes, mutate_record, read_change, 0.05),
    "model config": (golden_model, mutate_config, read_model, 0.10),
    "model weights": (golden_model, mutate_weights, read_model, 0.08),
    "npy": (golden_arrays, mutate_file, read_data, 0.05),
    "npz": (golden_npz, mutate_npz, read_archive, 0.05),
    "parquet": (golden_parquet, mutate_file, read_columns, 0.05),
    "images": (golden_images, mutate_file, read_picture, 0.04),
    "protocol": (golden_protocol, mutate_file, read_protocol, 0.05),
    "feature cache": (golden_cache, mutate_cache, read_cache, 0.03),
}


# -- running ----


def run_case(name, case, golden, work):
    """Make a case and read it: ``"accepted"``, ``"refused"``, or what went wrong."""
    _, mutate, read, _ = FORMATS[name]
    rng = random.Random(f"{name} {case}")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    source = rng.choice(sorted(golden.iterdir()))
    shutil.copytree(source, work / source.name)
    try:
        with np.errstate(all="ignore"):
            mutate(rng, work)
    except Exception as error:
        return f"the mutator: {type(error).__name__}: {error}"
    size = sum(p.stat().st_size for p in work.rglob("*") if p.is_file())
    before = _reset_peak()
    try:
        with np.errstate(all="ignore"):
            read(work)
        outcome = "accepted"
    except HashcadeError:
        outcome = "refused"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"[:300]
    peak = _peak() - before
    if peak > 10 * size + MEMORY:
        outcome = f"memory: {peak >> 20} MB for a file of {size} bytes ({outcome})"
    return outcome


def _reset_peak():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return _status("VmRSS")


def _peak():
    return _status("VmHWM")


def _status(field):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) << 10
    return 0


def _worker(name, cases, golden, work, board, send):
    """Try cases one after the other; the board says which, should one end the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + (4 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for signal_ in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(signal_, signal.SIG_DFL)
    counts = {"accepted": 0, "refused": 0}
    for case in cases:
        board[:8] = struct.pack("<q", case)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL)
        outcome = run_case(name, case, golden, work)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if outcome in counts:
            counts[outcome] += 1
        else:
            os.write(send, json.dumps([case, outcome]).encode() + b"\n")
    os.write(send, json.dumps(counts).encode() + b"\n")


def run_batch(name, first, n, golden, work):
    """Try cases in a process of its own: how many were accepted and refused, and what failed."""
    counts, failures = {"accepted": 0, "refused": 0}, []
    board = mmap.mmap(-1, 8)
    at, end = first, first + n
    while at < end:
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            try:
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                _worker(name, range(at, end), golden, work, board, send)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(send)
        with os.fdopen(receive, "rb") as stream:
            lines = stream.read().splitlines()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, "the worker failed"
        for line in map(json.loads, lines):
            if isinstance(line, list):
                failures.append([name, *line])
            else:
                counts = {key: counts[key] + line[key] for key in counts}
        if os.WIFSIGNALED(status):
            case = struct.unpack("<q", board[:8])[0]
            what = signal.Signals(os.WTERMSIG(status)).name
            what = {"SIGPROF": "more than a second", "SIGALRM": "hangs"}.get(what, what)
            failures.append([name, case, what])
            counts["refused"] += case - at - sum(f[1] < case and f[1] >= at for f in failures)
            at = case + 1
        else:
            at = end
    return counts, failures


class Fuzzer:
    """Golden files in a directory of their own, with all that readers need loaded."""

    def __init__(self, folder, names=tuple(FORMATS)):
        self.folder = Path(folder)
        if "model config" in names:  # may name a network of torch: importing it takes seconds
            import torch

            import hashcade.learn.model  # noqa: F401

            torch.set_num_threads(1)
        for name in names:
            golden = self.golden(name)
            golden.mkdir(parents=True)
            FORMATS[name][0](golden)
        for name in names:  # loads and compiles, before processes are forked
            _, _, read, _ = FORMATS[name]
            for source in self.golden(name).iterdir():
                work = self.folder / "work"
                shutil.rmtree(work, ignore_errors=True)
                shutil.copytree(source, work / source.name)
                try:
                    read(work)
                except HashcadeError:
                    if name != "npy" or source.name != "d":  # text is not items
                        raise

    def golden(self, name):
        return self.folder / "golden" / name.replace(" ", "-")

    def run(self, name, first, n):
        return run_batch(name, first, n, self.golden(name), self.folder / "work")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="of all formats together")
    parser.add_argument("--format", choices=FORMATS, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--state", type=Path, help="file to resume from, and to write results to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--promises", type=Path, help="file to add the counts to, see conftest.py")
    options = parser.parse_args()
    names = [options.format] if options.format else list(FORMATS)
    state = {name: {"tried": 0, "accepted": 0, "refused": 0} for name in names}
    failures = []
    if options.state and options.state.exists():
        stored = json.loads(options.state.read_text())
        state |= {name: stored["formats"][name] for name in names if name in stored["formats"]}
        failures = stored["failures"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        fuzzer = Fuzzer(folder, names)
        total = sum(FORMATS[name][3] for name in names)
        wanted = {name: round(options.cases * FORMATS[name][3] / total) for name in names}
        while time.monotonic() - start < options.seconds:
            behind = [name for name in names if state[name]["tried"] < wanted[name]]
            if not behind:
                break
            name = min(behind, key=lambda name: state[name]["tried"] / wanted[name])
            row = state[name]
            n = min(500, wanted[name] - row["tried"])
            counts, failed = fuzzer.run(name, options.first + row["tried"], n)
            row["tried"] += n
            for key, value in counts.items():
                row[key] += value
            failures += failed
            for failure in failed:
                print(*failure, flush=True)
            if options.state:
                new = options.state.with_suffix(".new")
                new.write_text(json.dumps({"formats": state, "failures": failures}, indent=1))
                new.rename(options.state)
    for name, row in state.items():
        of_format = sum(failure[0] == name for failure in failures)
        print(f"{name:15} {row['tried']:>8,} tried {row['accepted']:>8,} accepted "
              f"{row['refused']:>8,} refused {of_format:>4} failed")  # fmt: skip
    if options.promises:
        with options.promises.open("a") as file:
            for name, row in state.items():
                attack = f"changed files with right checksums: {name}"
                failed = sum(failure[0] == name for failure in failures)
                counts = {"cases": row["tried"], "failed": failed}
                file.write(json.dumps({"id": "fuzz", "attack": attack} | counts) + "\n")
    print(f"{sum(row['tried'] for row in state.values()):,} cases, {len(failures)} failed, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
