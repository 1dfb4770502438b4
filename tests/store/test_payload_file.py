"""Payload from its file: the same as from the database, whatever changed since."""

import os
import shutil
import sqlite3
import struct
import tracemalloc

import numpy as np
import pytest

from hashcade import CorruptIndexError, HashTable, StorageError
from hashcade.index import Encoded
from hashcade.store import Catalog, DurableIndex, foreign_files, load_state
from hashcade.store.database import SCHEMA
from hashcade.store.payload_file import PayloadFile, write_payload
from tests.hostile import forge
from tests.store.factories import DIM, abandon, add, make_index

NAME = "a" * 32


def row(number):
    return {"n": number, "text": "é" * (number % 13)}


def encoded(n):
    return Encoded(np.ones((n, DIM), np.float32), np.zeros((n, 1), int), None, by_path=False)


def payload_table(path, n=40):
    """Items 0, 3, 6, ...; each fourth has no payload."""
    index = make_index()
    index.remove(np.arange(200))
    table = HashTable.from_parts(None, index, Catalog([0]))
    given = [row(k) if k % 4 else None for k in range(n)]
    table.add(encoded(n), ids=np.arange(n) * 3, payload=given)
    table.save(path)
    table.close()
    return {3 * k: value for k, value in enumerate(given)}


@pytest.fixture
def table(tmp_path):
    """The directory of a table, and the payload that its items have."""
    path = tmp_path / "table"
    return path, payload_table(path)


def files(path):
    return sorted(file.name for file in path.glob("payload-*"))


def file_of(path):
    (name,) = files(path)
    return path / name


def check(catalog, expected, *, verify=None):
    asked = np.array([[-1, *range(-2, 200)]])
    given = [expected.get(number) for number in asked[0].tolist()]
    assert catalog.payload_of(asked).tolist() == [given]
    assert [catalog.payload_of(np.array([n]))[0] for n in expected] == list(expected.values())
    if verify is not None:
        catalog.verify(verify)


def read(path, numbers):
    state, _ = load_state(path)
    try:
        return state.catalog.payload_of(np.array(numbers)).tolist()
    finally:
        state.catalog.close()


def unread(path):
    """What the database would answer is wrong from now on: answers come from the file."""
    with sqlite3.connect(path / "items.db") as db:
        db.execute("DROP TRIGGER item_added")
        db.execute("UPDATE items SET payload_crc = 0 WHERE payload IS NOT NULL")
        db.execute(next(sql for sql in SCHEMA if "TRIGGER item_added" in sql))
    db.close()


def test_payload_is_read_from_the_file(table):
    path, expected = table
    state, _ = load_state(path)
    check(state.catalog, expected, verify=state.index)
    state.catalog.close()
    assert foreign_files(path) == []
    unread(path)
    numbers = [number for number, value in expected.items() if value is not None]
    assert read(path, numbers) == [expected[number] for number in numbers]


def test_what_changed_is_read_from_the_database(table):
    path, expected = table
    name = files(path)
    for saved in (False, True):
        table = HashTable.load(path)
        table.upsert([3, 6], encoded(2), payload=[{"new": saved}, None])
        table.remove([9 + saved * 6])
        expected |= {3: {"new": saved}, 6: None, 9 + saved * 6: None}
        table.add(encoded(1), ids=[100 + saved], payload=[{"added": saved}])
        expected[100 + saved] = {"added": saved}
        check(table.catalog, expected)
        table.save(path)
        check(table.catalog, expected, verify=table.index)
        table.close()
        state, _ = load_state(path)
        check(state.catalog, expected, verify=state.index)
        state.catalog.close()
        assert files(path) == name  # few have changed


def test_after_many_changes_it_is_written_again(table):
    path, expected = table
    before = files(path)
    (path / f"payload-{NAME}.tmp").write_bytes(b"of a writer that was stopped")
    old, _ = load_state(path)
    table = HashTable.load(path)
    table.upsert(range(0, 60, 3), encoded(20), payload=[{"new": 1}] * 20)
    table.save(path)
    changed = {number: {"new": 1} for number in range(0, 60, 3)}
    check(table.catalog, expected | changed, verify=table.index)
    table.close()
    assert len(files(path)) == 1
    assert files(path) != before
    check(old.catalog, expected)  # its own commit, though the file has lost its name
    old.catalog.close()
    unread(path)
    assert read(path, [0, 57]) == [{"new": 1}] * 2


def test_each_state_of_an_open_table_shows_its_own_commit(table):
    path, expected = table
    durable = DurableIndex(path, fold_seconds=1000)
    states = [(durable.state, dict(expected))]
    for step in range(6):
        numbers = np.arange(step, step + 15) * 3
        given = [{"step": step, "n": int(n)} for n in numbers]
        add(
            durable, np.zeros((15, 1), int), np.ones((15, DIM)), numbers, payload=given,
            replace=True,
        ).result()  # fmt: skip
        durable.remove([3 * step + 3]).result()
        expected |= dict(zip(numbers.tolist(), given, strict=True)) | {3 * step + 3: None}
        states.append((durable.state, dict(expected)))
        if step % 2:
            durable.fold()
            states.append((durable.state, dict(expected)))
            other, _ = load_state(path, read_only=True)
            states.append((other, dict(expected)))
    for state, shown in states:
        check(state.catalog, shown)
    durable.state.catalog.verify(durable.index)
    abandon(durable)
    state, _ = load_state(path)
    check(state.catalog, expected, verify=state.index)
    state.catalog.close()


def test_a_change_while_the_file_is_written(table, monkeypatch):
    path, expected = table
    durable = DurableIndex(path, fold_seconds=1000)
    item = np.zeros((1, 1), int), np.ones((1, DIM))

    def upsert(number, value):
        add(durable, *item, [number], payload=[value], replace=True).result()
        expected[number] = value

    for number in range(0, 60, 3):
        upsert(number, {"before": number})
    original, seen = Catalog.write_payload, []

    def meanwhile(catalog, generation):
        upsert(3, {"while": 3})
        reader, _ = load_state(path, read_only=True)
        original(catalog, generation)
        seen.extend([(reader, dict(expected)), (load_state(path)[0], dict(expected))])
        upsert(6, {"after": 6})

    monkeypatch.setattr(Catalog, "write_payload", meanwhile)
    durable.fold()
    seen.append((durable.state, expected))
    for state, shown in seen:
        check(state.catalog, shown)
    durable.state.catalog.verify(durable.index)
    abandon(durable)


def test_without_the_file_the_database_answers(table):
    path, expected = table
    file_of(path).unlink()
    durable = DurableIndex(path, fold_seconds=1000)
    check(durable.state.catalog, expected, verify=durable.index)
    durable.remove([0]).result()
    durable.close()
    assert len(files(path)) == 1  # it is there again
    state, _ = load_state(path)
    check(state.catalog, expected | {0: None}, verify=state.index)
    state.catalog.close()


def test_there_is_no_file_without_payload(place):
    assert files(place) == []
    with HashTable.open(place) as table:
        table.add(encoded(2), payload=[{"a": 1}, None])
        assert files(place) == []
    assert len(files(place)) == 1


def test_items_that_repeat(table):
    path, expected = table
    state, _ = load_state(path)
    numbers = np.full((1 << 15, 3), 3 * 38)  # more words than are gathered
    assert (state.catalog.payload_of(numbers) == expected[3 * 38]).all()
    assert state.catalog.payload_of(np.empty((0, 5), np.int64)).shape == (0, 5)
    state.catalog.close()


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_counts(table, step):
    path, expected = table
    data = file_of(path).read_bytes()
    numbers = list(expected)
    refused = 0
    places = range(0, len(data), step)
    for at in places:
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        file_of(path).write_bytes(changed)
        try:
            assert read(path, numbers) == list(expected.values())
        except CorruptIndexError:
            refused += 1
    assert refused > 0.8 * len(places)  # others: numbers that are not found, and the database has


@pytest.mark.parametrize("size", [0, 7, 8, 16, 24, -8, -24])
def test_a_file_of_another_length_is_refused(table, size):
    path, _ = table
    data = file_of(path).read_bytes()
    file_of(path).write_bytes(data[:size])
    with pytest.raises(CorruptIndexError, match="payload-"):
        load_state(path)


def test_forged_counts_and_places_are_refused(tmp_path):
    assert write_payload(tmp_path, NAME, [(k, f'{{"k":{k}}}') for k in range(50)])
    path = tmp_path / f"payload-{NAME}.bin"
    data = path.read_bytes()
    n, n_words, _ = struct.unpack("<qqq", data[-24:])
    words = np.frombuffer(data, np.uint64, n_words)
    for begin, end in ((-1, 1), (0, 0), (2**62, 2**63 - 1), (-(2**63), 2**63 - 1), (n_words, 0)):
        entries = np.frombuffer(data, np.int64, 3 * n, 8 * n_words).copy().reshape(n, 3)
        entries[7, 1], entries[8, 1] = begin, end
        entries[7, 2] = forge.text_checksum(7, words[max(begin, 0) : max(end, 0)].tolist())
        path.write_bytes(data[: 8 * n_words] + entries.tobytes() + data[-24:])
        with pytest.raises(CorruptIndexError, match="item 7"):
            PayloadFile(path, set()).read(np.array([5, 7]))


def test_verify_compares_it_with_the_database(table):
    path, _ = table
    name = files(path)[0].removeprefix("payload-").removesuffix(".bin")
    right = [(3 * k, f'{{"n":{k},"text":"{"é" * (k % 13)}"}}') for k in range(40) if k % 4]
    wrong = {"same": right, "text": [(3, "{}"), *right[1:]], "lacks": right[1:]}
    wrong["more"] = [*right, (500, "{}")]
    for kind, rows in wrong.items():
        write_payload(path, name, rows)
        state, _ = load_state(path)
        if kind == "same":
            state.catalog.verify(state.index)
        else:
            with pytest.raises(CorruptIndexError, match=f"payload-{name}"):
                state.catalog.verify(state.index)
        state.catalog.close()


def test_texts_that_are_not_objects_are_refused(tmp_path):
    for texts in (["1", "{}"], ["{}, {}", "{}"], ["{", "}"], ["[" * 10**5, "{}"]):
        write_payload(tmp_path, NAME, enumerate(texts))
        with pytest.raises(CorruptIndexError, match="a payload is damaged"):
            PayloadFile(tmp_path / f"payload-{NAME}.bin", set()).read(np.array([0, 1]))


@pytest.mark.parametrize("name", ["../" + "a" * 29, "x", "", 5])
def test_a_name_that_leads_elsewhere_is_refused(table, name):
    path, _ = table
    with sqlite3.connect(path / "items.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'payload'", (name,))
    db.close()
    with pytest.raises(CorruptIndexError, match="the payload file is called"):
        load_state(path)


def test_a_link_is_refused(table, tmp_path):
    path, _ = table
    file = file_of(path)
    shutil.move(file, tmp_path / "other")
    os.symlink(tmp_path / "other", file)
    with pytest.raises(StorageError, match="link"):
        load_state(path)


def test_a_note_of_a_change_that_was_damaged_is_noticed(table):
    path, _ = table
    table = HashTable.load(path)
    table.upsert([3], encoded(1), payload=[{"new": 1}])
    table.save(path)
    table.close()
    with sqlite3.connect(path / "items.db") as db:
        db.execute("UPDATE unfiled SET number = 4")
    db.close()
    with pytest.raises(CorruptIndexError, match="checksum of item 4"):
        load_state(path)


def test_damaged_payload_gets_no_new_checksum(table, tmp_path):
    path, _ = table
    unread(path)
    state, _ = load_state(path)
    with pytest.raises(CorruptIndexError, match="checksum"):
        state.catalog.write(tmp_path, NAME)
    state.catalog.close()


def test_large_texts_are_written_a_few_at_a_time(tmp_path):
    """40 MB of texts, each made when it is asked for."""
    rows = ((number, f'{{"text":"{"x" * (1 << 20)}"}}') for number in range(40))
    tracemalloc.start()
    try:
        write_payload(tmp_path, NAME, rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    assert len(PayloadFile(file_of(tmp_path), set())) == 40
