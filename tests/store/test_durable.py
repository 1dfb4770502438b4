"""What was acknowledged is there after any stop, and searches never wait."""

import contextlib
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashcade import HashTable, IndexLockedError, StorageError
from hashcade.store import Add, BusyError, DurableIndex, ReadOnlyError, Remove, load_state
from hashcade.store.changes import apply_changes
from tests.store.factories import (
    DIM,
    N_ITEMS,
    abandon,
    add,
    ids_of,
    load_index,
    make_index,
    make_table,
    vector,
)


def test_acknowledged_changes_survive_without_a_save(place):
    durable = DurableIndex(place)
    assert add(durable, [3], vector(1), labels=[0]).result().numbers.tolist() == [N_ITEMS]
    assert add(durable, [3], vector(2), ids=[1000], labels=[0]).result().numbers.tolist() == [1000]
    assert durable.remove([5, 7]).result().numbers.tolist() == [5, 7]
    expected = ids_of(durable.index)
    abandon(durable)
    assert N_ITEMS not in load_index(place)  # it is in the log alone
    again = DurableIndex(place)
    assert ids_of(again.index) == expected
    assert again.index.item(1000)["vector"].tolist() == [2.0] * DIM
    again.close()
    assert ids_of(load_index(place)) == expected


def test_closing_saves_and_leaves_an_empty_log(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), labels=[0]).result()
    durable.close()
    index = load_index(place)
    index.verify()
    assert N_ITEMS in index
    assert load_index(place).next_id == N_ITEMS + 1


def test_ids_of_removed_items_are_not_given_again_after_a_stop(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), labels=[0]).result()
    durable.remove([N_ITEMS]).result()
    abandon(durable)
    again = DurableIndex(place)
    assert add(again, [3], vector(1), labels=[0]).result().numbers.tolist() == [N_ITEMS + 1]
    again.close()


def test_folding_goes_on_while_changes_come(place):
    durable = DurableIndex(place)
    for value in range(30):
        add(durable, [value % 16], vector(value), ids=[500 + value], labels=[0]).result()
        if value % 10 == 5:
            assert durable.fold()
    assert durable.unsaved == 4
    expected = ids_of(durable.index)
    abandon(durable)
    again = DurableIndex(place)
    assert ids_of(again.index) == expected
    again.close()


def test_the_index_is_saved_by_itself(place):
    durable = DurableIndex(place, fold_seconds=0.05)
    add(durable, [3], vector(1), labels=[0]).result()
    saved = threading.Event()
    for _ in range(600):
        if durable.unsaved == 0:
            break
        saved.wait(0.05)
    assert N_ITEMS in load_index(place)
    abandon(durable)


def test_a_change_that_does_not_fit_leaves_the_others_alone(place):
    durable = DurableIndex(place)
    with durable._commit:  # all of these wait, and are committed as one group
        futures = [
            add(durable, [3], vector(1), ids=[900], labels=[0]),
            add(durable, [3], vector(1), ids=[900], labels=[0]),  # again
            add(durable, [99], vector(1), labels=[0]),  # no such bucket
            add(durable, [3], vector(np.nan), labels=[0]),
            add(durable, [3], vector(1), labels=[1.5]),
            durable.remove([12345]),
            durable.remove([900]),
            add(durable, [3], vector(5), ids=[900], labels=[0]),
        ]
    kinds = [type(future.exception()).__name__ for future in futures]
    bad = "ValueError"
    assert kinds == ["NoneType", bad, bad, bad, bad, bad, "NoneType", "NoneType"]
    assert durable.index.item(900)["vector"].tolist() == [5.0] * DIM
    abandon(durable)
    again = DurableIndex(place)
    assert again.index.item(900)["vector"].tolist() == [5.0] * DIM
    again.close()


def test_searches_hold_the_state_they_began_with(place):
    durable = DurableIndex(place)
    before = durable.index
    durable.remove([0]).result()
    assert 0 in before
    assert 0 not in durable.index
    durable.close()


def test_too_many_waiting_changes_are_refused(place):
    durable = DurableIndex(place, max_waiting=2)
    futures = []
    # The writer takes a group and waits; two more may wait behind it.
    with durable._commit, contextlib.suppress(BusyError):
        for value in range(400):
            futures.append(add(durable, [3], vector(value), labels=[0]))  # noqa: PERF401
    assert 2 <= len(futures) < 400
    assert all(len(future.result().numbers) == 1 for future in futures)
    durable.close()


def pending_changes(place):
    state, n_changes = load_state(place)
    state.catalog.close()
    return n_changes


def test_reading_alone_shows_what_was_acknowledged_and_changes_no_file(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), labels=[0]).result()
    abandon(durable)

    def files():
        return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}

    before = files()
    reader = DurableIndex(place, read_only=True)
    assert N_ITEMS in reader.index
    with pytest.raises(ReadOnlyError):
        reader.remove([0])
    reader.close()
    changed = {path.name for path, content in files().items() if before.get(path) != content}
    assert changed <= {"items.db-wal", "items.db-shm"}  # the bookkeeping of SQLite


operations = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)),
    max_size=12,
)


@settings(max_examples=30)
@given(operations=operations, already=st.integers(0, 12))
def test_replaying_gives_the_same_whatever_is_there_already(operations, already):
    """The oracle applies changes one by one to a dictionary."""
    index = make_index()
    index.remove(list(range(N_ITEMS)))
    state, changes = {}, []
    for number, (adding, ids) in enumerate(operations):
        new = [item for item in ids if (item in state) != adding]
        if not new:
            continue
        names = np.array(new)
        if adding:
            vectors = np.full((len(new), DIM), number, dtype=np.float32)
            change = Add(names, names[:, None] % 16, vectors, names)
            state.update(dict.fromkeys(new, float(number)))
        else:
            change = Remove(names)
            for item in new:
                del state[item]
        changes.append(change)
        if number < already:
            apply_changes(index, [change])
    apply_changes(index, changes)
    assert {item: float(index.item(item)["vector"][0]) for item in ids_of(index)} == state


# -- labels and names ----


def test_a_new_label_is_on_disk_before_its_item_is_acknowledged(place):
    durable = DurableIndex(place)
    for label in ("elk", 7, None, "elk"):
        labels = np.array([label], dtype=object)
        item = add(durable, [3], vector(1), labels=labels).result().numbers[0]
        assert HashTable.load(place)[int(item)].label == label
    assert HashTable.load(place).catalog.classes == [0, 1, 2, 3, 4, "elk", 7]
    abandon(durable)
    again = DurableIndex(place)
    assert again.state.catalog.classes == [0, 1, 2, 3, 4, "elk", 7]
    again.close()


def test_a_search_never_sees_a_code_that_its_catalog_lacks(place):
    durable = DurableIndex(place)
    before = durable.state
    add(durable, [3], vector(1), ids=[900], labels=["elk"]).result()
    assert "elk" not in before.catalog.classes
    assert 900 not in before.index
    index, catalog = durable.state.index, durable.state.catalog
    assert catalog.label(index.item(900)["label"]) == "elk"
    durable.close()


def test_without_labels_an_item_has_none(tmp_path):
    place = make_table(tmp_path / "plain", labels=False)
    durable = DurableIndex(place)
    with pytest.raises(ValueError, match="has no labels"):
        add(durable, [3], vector(1), labels=["elk"]).result()
    add(durable, [3], vector(1), ids=[900]).result()
    durable.close()
    assert HashTable.load(place)[900].label is None


def test_an_id_that_is_used_again_does_not_inherit_a_name(tmp_path):
    place = make_table(tmp_path / "named", names={3: "three.png", 4: "four.png"})
    durable = DurableIndex(place)
    durable.remove([3]).result()
    add(durable, [1], vector(1), ids=[3], labels=[0]).result()
    assert HashTable.load(place)[3].name is None
    abandon(durable)
    assert HashTable.load(place)[3].name is None
    DurableIndex(place).close()
    table = HashTable.load(place)
    assert [table[item].name for item in (2, 3, 4)] == [None, None, "four.png"]


# -- the table without a service ----


def test_a_table_is_loaded_with_all_acknowledged_changes(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), ids=[900], labels=["elk"]).result()
    durable.remove([5]).result()
    assert pending_changes(place) == 2
    for _ in range(2):  # while it is served, and after a kill
        table = HashTable.load(place)
        assert table[900].label == "elk"
        assert 5 not in table
        if not durable._closing.is_set():
            abandon(durable)
    table.remove([6])
    table.save(place)
    assert pending_changes(place) == 0
    index = load_index(place)
    index.verify()
    assert 900 in index
    assert 6 not in index
    durable = DurableIndex(place)
    assert 5 not in durable.index
    durable.close()


def test_a_table_that_others_changed_is_not_overwritten(place):
    table, idle = HashTable.load(place), HashTable.load(place)
    table.remove([1])
    with pytest.raises(IndexLockedError, match="by a service"):
        DurableIndex(place)
    table.close()  # what was not saved is dropped, and others may write
    durable = DurableIndex(place)
    assert 1 in durable.index
    add(durable, [3], vector(1), ids=[900], labels=["elk"]).result()
    with pytest.raises(IndexLockedError, match="by a service"):
        idle.remove([1])
    abandon(durable)
    with pytest.raises(StorageError, match="changed since it was loaded"):
        idle.remove([1])
    with pytest.raises(StorageError, match="changed since it was loaded"):
        idle.save(place)
    assert 900 not in idle  # it still sees what it was loaded with
    assert HashTable.load(place)[900].label == "elk"


def test_a_stop_between_saving_and_dropping_the_changes_loses_nothing(place, monkeypatch):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), ids=[900], labels=["elk"]).result()
    abandon(durable)
    table = HashTable.load(place)
    table.remove([7])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hashcade.store.Catalog.forget_changes", stop)
        with pytest.raises(KeyboardInterrupt):
            table.save(place)
    assert pending_changes(place) == 0  # the index has them
    for again in (table, HashTable.load(place)):
        assert again[900].label == "elk"
        assert 7 not in again
    table.remove([8])
    table.save(place)
    assert 8 not in HashTable.load(place)


# -- what belongs to the items ----


def test_the_state_that_was_searched_keeps_what_belonged_to_it(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), ids=[900], labels=[0], payload=[{"n": 1}], names=["one"]).result()
    before = durable.state
    new = {"payload": [{"n": 2}], "names": ["two"], "replace": True}
    add(durable, [3], vector(2), ids=[900], labels=[0], **new).result()
    durable.fold()
    numbers = np.array([900])
    states = [(before, 1, "one"), (durable.state, 2, "two")]
    for state, n, name in states:
        assert state.catalog.payload_of(numbers)[0] == {"n": n}
        assert state.catalog.names_of(numbers)[0] == name
        assert state.catalog.where({"n": n}).tolist() == [900]
        assert state.catalog.where({"n": 3 - n}).tolist() == []
    durable.close()


def test_the_log_of_sqlite_does_not_grow_for_ever(place, monkeypatch):
    monkeypatch.setattr("hashcade.store.durable._CHECKPOINT_BYTES", 1 << 12)
    durable = DurableIndex(place, fold_seconds=1e9)
    sizes = []
    for value in range(300):
        add(durable, [3], vector(value), labels=[0], payload=[{"text": "x" * 500}]).result()
        sizes.append((place / "items.db-wal").stat().st_size)
    assert max(sizes) < 4 << 20
    assert max(sizes[:200]) == max(sizes)  # it begins again and again
    durable.close()


def test_both_kinds_of_ids(tmp_path):
    place = make_table(tmp_path / "text")
    durable = DurableIndex(place)
    with pytest.raises(ValueError, match="ids are text, those of the table are integers"):
        add(durable, [3], vector(1), ids=["a"], labels=[0]).result()
    durable.close()


def test_a_table_on_a_medium_for_reading_alone(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), ids=[900], labels=[0]).result()
    durable.close()
    import os

    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    place.chmod(0o555)
    try:
        assert 900 in HashTable.load(place)
    finally:
        place.chmod(0o755)
