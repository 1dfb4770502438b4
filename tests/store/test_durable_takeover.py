"""Who may write to the directory of a table, and how another index takes its place."""

import shutil

import pytest

from hashcade import HashIndex, HashTable, IndexLockedError, StorageError
from hashcade._io import writer_lock
from hashcade.store import DurableIndex
from tests.store.factories import (
    N_ITEMS,
    SHAPE,
    abandon,
    add,
    ids_of,
    load_index,
    make_table,
    vector,
)


def overwrite(place, removed):
    """Put another index over the one that is served, as a program that knows no locks does."""
    other = load_index(place)
    other.remove(removed)
    other.save(place.with_name("other"))
    shutil.copytree(place.with_name("other"), place / "index", dirs_exist_ok=True)


def test_nobody_else_saves_into_a_directory_that_is_served(place):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), ids=[900], labels=[0]).result()
    other = load_index(place)
    other.remove([1])
    for index in (other, other.copy(), HashIndex.build([0], vector(1), shape=SHAPE)):
        with pytest.raises(IndexLockedError, match="by a service"):
            index.save(place / "index")
    assert durable.fold()  # but the service does
    add(durable, [3], vector(1), ids=[901], labels=[0]).result()
    durable.close()
    index = load_index(place)
    assert {1, 900, 901} <= set(ids_of(index))


def test_who_only_reads_takes_over_what_is_saved_into_the_directory(place):
    durable = DurableIndex(place, read_only=True)
    other = HashTable.load(place)
    other.remove([1])
    other.save(place)
    assert durable.reload()
    assert 1 not in durable.index
    durable.close()


def test_who_only_reads_takes_over_what_a_service_has_acknowledged(place):
    reader = DurableIndex(place, read_only=True)
    writer = DurableIndex(place)
    assert not reader.reload()
    add(writer, [3], vector(1), ids=[900], labels=["elk"]).result()
    assert reader.reload()
    assert reader.state.catalog.label(reader.index.item(900)["label"]) == "elk"
    assert not reader.reload()
    writer.fold()
    assert reader.reload()
    assert 900 in reader.index
    writer.close()
    reader.close()


def test_a_directory_that_is_being_written_is_not_served(place):
    with writer_lock(place / "index"), pytest.raises(IndexLockedError, match="another writer"):
        DurableIndex(place)
    DurableIndex(place).close()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "database removed"])
def test_a_change_to_a_directory_that_is_gone_is_never_acknowledged(place, how):
    durable = DurableIndex(place)
    kept = add(durable, [3], vector(1), ids=[900], labels=[0]).result()
    assert kept.numbers.tolist() == [900]
    if how == "removed":
        shutil.rmtree(place)
    elif how == "database removed":
        (place / "items.db").unlink()
    else:
        place.rename(place.with_name("moved"))
    if how == "replaced":
        make_table(place, seed=4)
        other = DurableIndex(place)
        add(other, [3], vector(1), ids=[950], labels=[0]).result()
        abandon(other)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    for item in (901, 902):
        with pytest.raises(StorageError, match="moved or removed"):
            add(durable, [3], vector(1), ids=[item], labels=[0]).result()
        assert item not in durable.index
    assert "moved or removed" in durable.failure
    with pytest.raises(StorageError, match="moved or removed"):
        durable.fold()
    durable.close()
    # Nothing is written beside the index of somebody else.
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    if how == "replaced":
        assert 950 in HashTable.load(place)
    if how == "moved":
        again = DurableIndex(place.with_name("moved"))
        assert 900 in again.index
        again.close()


def test_a_reload_without_a_directory_is_refused(place):
    durable = DurableIndex(place)
    place.rename(place.with_name("moved"))
    with pytest.raises(StorageError, match="moved or removed"):
        durable.reload()
    assert len(durable.index) == N_ITEMS
    durable.close()


def test_an_index_that_somebody_else_put_there_is_refused(place):
    durable = DurableIndex(place)
    shutil.copytree(place / "index", place.with_name("copy"))
    add(durable, [3], vector(1), ids=[900], labels=[0]).result()
    assert not durable.reload()
    overwrite(place, [1])
    with pytest.raises(StorageError, match="1 changes were not saved") as caught:
        durable.reload()
    assert caught.value.hint == "put the old index back"
    with pytest.raises(StorageError, match="another writer"):
        durable.fold()
    assert {1, 900} <= set(ids_of(durable.index))
    abandon(durable)
    for _ in range(2):
        with pytest.raises(StorageError, match="is not the index that belongs to"):
            DurableIndex(place)
    with pytest.raises(StorageError, match="is not the index that belongs to") as caught:
        HashTable.load(place)
    assert "put the right index back" in caught.value.hint
    shutil.copytree(place.with_name("copy"), place / "index", dirs_exist_ok=True)
    again = DurableIndex(place)
    assert {1, 900} <= set(ids_of(again.index))
    again.close()


def test_an_item_of_an_old_model_is_not_added_to_a_new_index(place):
    durable = DurableIndex(place)
    epoch = durable.epoch
    durable.epoch += 1  # as a service does that has loaded another model
    with pytest.raises(StorageError, match="replaced meanwhile"):
        add(durable, [3], vector(1), labels=[0], epoch=epoch).result()
    add(durable, [3], vector(1), labels=[0], epoch=durable.epoch).result()
    durable.close()


def test_a_state_that_is_not_accepted_is_not_taken_over(place):
    reader = DurableIndex(place, read_only=True)
    table = HashTable.load(place)
    table.remove([1])
    table.save(place)

    def refuse(state):
        raise StorageError(f"{len(state.index)} is not enough")

    with pytest.raises(StorageError, match="199 is not enough"):
        reader.reload(refuse)
    assert len(reader.index) == N_ITEMS
    assert reader.reload()
    reader.close()
