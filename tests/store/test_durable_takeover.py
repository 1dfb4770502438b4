"""Who may write to the directory of a table, and how another index takes its place."""

import shutil
from pathlib import Path

import pytest

from hashcade import HashIndex, IndexLockedError, StorageError
from hashcade._io import writer_lock
from hashcade.store import DurableIndex
from tests.store.factories import N_ITEMS, SHAPE, abandon, ids_of, load_index, make_table, vector


def overwrite(place, removed):
    """Put another index over the one that is served, as a program that knows no locks does."""
    other = load_index(place)
    other.remove(removed)
    other.save(place.with_name("other"))
    shutil.copytree(place.with_name("other"), place / "index", dirs_exist_ok=True)


def test_nobody_else_saves_into_a_directory_that_is_served(place):
    durable = DurableIndex(place)
    durable.add([3], vector(1), ids=[900], labels=[0]).result()
    other = load_index(place)
    other.remove([1])
    for index in (other, other.copy(), HashIndex.build([0], vector(1), shape=SHAPE)):
        with pytest.raises(IndexLockedError, match="by a service"):
            index.save(place / "index")
    assert durable.fold()  # but the service does
    durable.add([3], vector(1), ids=[901], labels=[0]).result()
    durable.close()
    index = load_index(place)
    assert {1, 900, 901} <= set(ids_of(index))
    index.save(place / "index")


def test_who_only_reads_takes_over_what_is_saved_into_the_directory(place):
    durable = DurableIndex(place, read_only=True)
    other = load_index(place)
    other.remove([1])
    other.save(place / "index")
    assert durable.reload()
    assert 1 not in durable.index
    durable.close()


def test_who_only_reads_takes_over_what_a_service_has_acknowledged(place):
    reader = DurableIndex(place, read_only=True)
    writer = DurableIndex(place)
    assert not reader.reload()
    writer.add([3], vector(1), ids=[900], labels=["elk"]).result()
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


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "log removed"])
def test_a_change_to_a_directory_that_is_gone_is_never_acknowledged(place, how):
    durable = DurableIndex(place)
    kept = durable.add([3], vector(1), ids=[900], labels=[0]).result()
    assert kept.tolist() == [900]
    if how == "removed":
        shutil.rmtree(place)
    elif how == "log removed":
        shutil.rmtree(place / "index" / "changes")
    else:
        place.rename(place.with_name("moved"))
    if how == "replaced":
        make_table(place, seed=4)
        DurableIndex(place).close()  # has a log of its own
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    for item in (901, 902):
        with pytest.raises(StorageError, match="moved or removed"):
            durable.add([3], vector(1), ids=[item], labels=[0]).result()
        assert item not in durable.index
    assert "moved or removed" in durable.failure
    with pytest.raises(StorageError, match="moved or removed"):
        durable.fold()
    durable.close()
    # Nothing is written beside the index of somebody else.
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    if how == "moved":
        again = DurableIndex(place.with_name("moved"))
        assert 900 in again.index
        again.close()


def test_a_reload_without_a_directory_is_refused(place):
    durable = DurableIndex(place)
    place.rename(place.with_name("moved"))
    with pytest.raises(StorageError, match=r"manifest\.json"):
        durable.reload()
    assert len(durable.index) == N_ITEMS
    place.with_name("moved").rename(place)
    assert not durable.reload()
    durable.add([3], vector(1), labels=[0]).result()
    durable.close()


def test_what_was_saved_before_a_new_index_came_is_not_applied_to_it(place, monkeypatch):
    durable = DurableIndex(place)
    durable.remove([7]).result()
    with monkeypatch.context() as patch:  # the old files of the log stay
        patch.setattr(durable._log, "drop_before", lambda number: None)
        durable.fold()
    overwrite(place, [1])
    make_table(place.with_name("new"))
    shutil.copytree(place.with_name("new"), place, dirs_exist_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "I/O")))
        with pytest.raises(StorageError, match="cannot clear"):
            durable.reload()
    assert 7 not in durable.index
    with pytest.raises(StorageError, match="not there any more"):  # after a stop now
        DurableIndex(place, read_only=True)
    assert durable.reload()
    assert 7 in durable.index
    abandon(durable)
    again = DurableIndex(place)
    assert 7 in again.index
    again.close()


def test_a_new_index_is_taken_over(place):
    durable = DurableIndex(place)
    assert not durable.reload()
    overwrite(place, list(range(100)))
    assert durable.reload()
    assert len(durable.index) == N_ITEMS - 100
    durable.add([3], vector(1), labels=[0]).result()
    abandon(durable)
    again = DurableIndex(place)
    assert len(again.index) == N_ITEMS - 99
    again.close()


def test_a_new_index_does_not_swallow_unsaved_changes(place):
    durable = DurableIndex(place)
    durable.add([3], vector(1), labels=[0]).result()
    overwrite(place, [1])
    with pytest.raises(StorageError, match="1 changes were not saved"):
        durable.reload()
    assert N_ITEMS in durable.index
    with pytest.raises(StorageError, match="another writer"):
        durable.fold()
    abandon(durable)
    with pytest.raises(StorageError, match="not there any more"):
        DurableIndex(place)


@pytest.mark.parametrize("keep", [True, False])
def test_an_index_that_was_overwritten_has_the_ways_out_that_are_told(place, keep):
    durable = DurableIndex(place)
    shutil.copytree(place, place.with_name("copy"))
    durable.add([3], vector(1), ids=[900], labels=[0]).result()
    overwrite(place, [1])
    with pytest.raises(StorageError, match="1 changes were not saved") as caught:
        durable.reload()
    assert caught.value.hint.startswith("put the old index back to keep them, or stop")
    if keep:
        shutil.copy(place.with_name("copy") / "index" / "manifest.json", place / "index")
        assert not durable.reload()
        assert durable.fold()
        durable.close()
        assert {1, 900} <= set(ids_of(load_index(place)))
    else:
        durable.close()
        shutil.rmtree(place / "index" / "changes")
        again = DurableIndex(place)
        assert 1 not in again.index
        assert 900 not in again.index
        again.close()


def test_an_item_of_an_old_model_is_not_added_to_a_new_index(place):
    durable = DurableIndex(place)
    epoch = durable.epoch
    overwrite(place, [1])
    assert durable.reload()
    with pytest.raises(StorageError, match="replaced meanwhile"):
        durable.add([3], vector(1), labels=[0], epoch=epoch).result()
    assert len(durable.add([3], vector(1), labels=[0], epoch=durable.epoch).result()) == 1
    durable.close()


def test_an_index_that_is_not_accepted_is_not_taken_over(place):
    durable = DurableIndex(place)
    overwrite(place, [1])

    def refuse(state):
        raise StorageError(f"{len(state.index)} is not enough")

    with pytest.raises(StorageError, match="199 is not enough"):
        durable.reload(refuse)
    assert len(durable.index) == N_ITEMS
    assert durable.reload()
    durable.close()
