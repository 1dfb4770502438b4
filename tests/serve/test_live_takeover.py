"""Whose the directory of a live index is, and how another index takes its place."""

import shutil
from pathlib import Path

import pytest
from live_indexes import abandon, ids_of, vector
from services import N_ITEMS, SHAPE, make_index

from hashcade import HashIndex, IndexLockedError, StorageError
from hashcade.index._lock import writer_lock
from hashcade.serve._live import LiveIndex


def overwrite(place, removed):
    """Put another index over the one that is served, as a program that knows no locks does."""
    other = HashIndex.load(place)
    other.remove(removed)
    other.save(place.with_name("other"))
    shutil.copytree(place.with_name("other"), place, dirs_exist_ok=True)


def test_nobody_else_saves_into_a_directory_that_is_served(place):
    live = LiveIndex(place)
    live.add([3], vector(1), ids=[900], labels=[0]).result()
    other = HashIndex.load(place)
    other.remove([1])
    for index in (other, other.copy(), HashIndex.build([0], vector(1), shape=SHAPE)):
        with pytest.raises(IndexLockedError, match="by a service"):
            index.save(place)
    assert live.fold()  # but the service does
    live.add([3], vector(1), ids=[901], labels=[0]).result()
    live.close()
    index = HashIndex.load(place)
    assert {1, 900, 901} <= set(ids_of(index))
    index.save(place)


def test_who_only_reads_takes_over_what_is_saved_into_the_directory(place):
    live = LiveIndex(place, read_only=True)
    other = HashIndex.load(place)
    other.remove([1])
    other.save(place)
    assert live.reload()
    assert 1 not in live.index
    live.close()


def test_a_directory_that_is_being_written_is_not_served(place):
    with writer_lock(place), pytest.raises(IndexLockedError, match="another writer"):
        LiveIndex(place)
    LiveIndex(place).close()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "journal removed"])
def test_a_change_to_a_directory_that_is_gone_is_never_acknowledged(place, how):
    live = LiveIndex(place)
    kept = live.add([3], vector(1), ids=[900], labels=[0]).result()
    assert kept.tolist() == [900]
    if how == "removed":
        shutil.rmtree(place)
    elif how == "journal removed":
        shutil.rmtree(place / "journal")
    else:
        place.rename(place.with_name("moved"))
    if how == "replaced":
        make_index(place, seed=4)
        LiveIndex(place).close()  # has a journal of its own
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    for item in (901, 902):
        with pytest.raises(StorageError, match="moved or removed"):
            live.add([3], vector(1), ids=[item], labels=[0]).result()
        assert item not in live.index
    assert "moved or removed" in live.failure
    with pytest.raises(StorageError, match="moved or removed"):
        live.fold()
    live.close()
    # Nothing is written beside the index of somebody else.
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    if how == "moved":
        again = LiveIndex(place.with_name("moved"))
        assert 900 in again.index
        again.close()


def test_a_reload_without_a_directory_is_refused(place):
    live = LiveIndex(place)
    place.rename(place.with_name("moved"))
    with pytest.raises(StorageError, match=r"cannot read .*manifest\.json"):
        live.reload()
    assert len(live.index) == N_ITEMS
    place.with_name("moved").rename(place)
    assert not live.reload()
    live.add([3], vector(1), labels=[0]).result()
    live.close()


def test_what_was_saved_before_a_new_index_came_is_not_applied_to_it(place, monkeypatch):
    live = LiveIndex(place)
    live.remove([7]).result()
    with monkeypatch.context() as patch:  # the old files of the journal stay
        patch.setattr(live._journal, "drop_before", lambda number: None)
        live.fold()
    overwrite(place, [1])
    make_index(place.with_name("new"))
    shutil.copytree(place.with_name("new"), place, dirs_exist_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "I/O")))
        with pytest.raises(StorageError, match="cannot clear"):
            live.reload()
    assert 7 not in live.index
    with pytest.raises(StorageError, match="not there any more"):  # after a stop now
        LiveIndex(place, read_only=True)
    assert live.reload()
    assert 7 in live.index
    abandon(live)
    again = LiveIndex(place)
    assert 7 in again.index
    again.close()


def test_a_new_index_is_taken_over(place):
    live = LiveIndex(place)
    assert not live.reload()
    overwrite(place, list(range(100)))
    assert live.reload()
    assert len(live.index) == N_ITEMS - 100
    live.add([3], vector(1), labels=[0]).result()
    abandon(live)
    again = LiveIndex(place)
    assert len(again.index) == N_ITEMS - 99
    again.close()


def test_a_new_index_does_not_swallow_unsaved_changes(place):
    live = LiveIndex(place)
    live.add([3], vector(1), labels=[0]).result()
    overwrite(place, [1])
    with pytest.raises(StorageError, match="1 changes were not saved"):
        live.reload()
    assert N_ITEMS in live.index
    with pytest.raises(StorageError, match="another writer"):
        live.fold()
    abandon(live)
    with pytest.raises(StorageError, match="not there any more"):
        LiveIndex(place)


@pytest.mark.parametrize("keep", [True, False])
def test_an_index_that_was_overwritten_has_the_ways_out_that_are_told(place, keep):
    live = LiveIndex(place)
    shutil.copytree(place, place.with_name("copy"))
    live.add([3], vector(1), ids=[900], labels=[0]).result()
    overwrite(place, [1])
    with pytest.raises(StorageError, match=r"put the old index back .* or stop and remove"):
        live.reload()
    if keep:
        shutil.copy(place.with_name("copy") / "manifest.json", place)
        assert not live.reload()
        assert live.fold()
        live.close()
        assert {1, 900} <= set(ids_of(HashIndex.load(place)))
    else:
        live.close()
        shutil.rmtree(place / "journal")
        again = LiveIndex(place)
        assert 1 not in again.index
        assert 900 not in again.index
        again.close()


def test_an_item_of_an_old_model_is_not_added_to_a_new_index(place):
    live = LiveIndex(place)
    epoch = live.epoch
    overwrite(place, [1])
    assert live.reload()
    with pytest.raises(StorageError, match="replaced meanwhile"):
        live.add([3], vector(1), labels=[0], epoch=epoch).result()
    assert len(live.add([3], vector(1), labels=[0], epoch=live.epoch).result()) == 1
    live.close()


def test_an_index_that_is_not_accepted_is_not_taken_over(place):
    live = LiveIndex(place)
    overwrite(place, [1])

    def refuse(index):
        raise StorageError(f"{len(index)} is not enough")

    with pytest.raises(StorageError, match="199 is not enough"):
        live.reload(refuse)
    assert len(live.index) == N_ITEMS
    assert live.reload()
    live.close()
