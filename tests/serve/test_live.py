"""The live index: what was acknowledged is there after any stop, and searches never wait."""

import contextlib
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services import DIM, N_ITEMS, SHAPE, make_index

from hashcade import CorruptIndexError, HashIndex, IndexLockedError, StorageError
from hashcade.index._lock import writer_lock
from hashcade.serve._live import BusyError, LiveIndex, ReadOnlyError, apply_again
from hashcade.serve._records import Add, Remove


def ids_of(index):
    found = index.search(
        np.zeros((1, DIM)), bucket_ids=[list(range(SHAPE.n_buckets))], n_neighbors=len(index) or 1
    ).ids
    return sorted(found[found >= 0].tolist())


def abandon(live):
    """Stop as kill -9 does: nothing is saved, only the lock goes with the process."""
    live._closing.set()
    live._queue.put(None)
    for thread in live._threads:
        thread.join()
    live._journal.close()


def vector(value):
    return np.full((1, DIM), value, dtype=np.float32)


def test_acknowledged_changes_survive_without_a_save(place):
    live = LiveIndex(place)
    assert live.add([3], vector(1), labels=[0]).result().tolist() == [N_ITEMS]
    assert live.add([3], vector(2), ids=[1000], labels=[0]).result().tolist() == [1000]
    assert live.remove([5, 7]).result().tolist() == [5, 7]
    expected = ids_of(live.index)
    abandon(live)
    assert N_ITEMS not in HashIndex.load(place)  # it is in the journal alone
    again = LiveIndex(place)
    assert ids_of(again.index) == expected
    assert again.index.item(1000)["vector"].tolist() == [2.0] * DIM
    again.close()
    assert ids_of(HashIndex.load(place)) == expected


def test_closing_saves_and_leaves_an_empty_journal(place):
    live = LiveIndex(place)
    live.add([3], vector(1), labels=[0]).result()
    live.close()
    index = HashIndex.load(place)
    index.verify()
    assert N_ITEMS in index
    assert LiveIndex(place).index._snapshot.next_id == N_ITEMS + 1


def test_ids_of_removed_items_are_not_given_again_after_a_stop(place):
    live = LiveIndex(place)
    live.add([3], vector(1), labels=[0]).result()
    live.remove([N_ITEMS]).result()
    abandon(live)
    again = LiveIndex(place)
    assert again.add([3], vector(1), labels=[0]).result().tolist() == [N_ITEMS + 1]
    again.close()


@pytest.mark.parametrize("stage", ["journal begun", "index saved"])
def test_a_stop_in_the_middle_of_a_save_loses_nothing(place, monkeypatch, stage):
    live = LiveIndex(place)
    live.add([3], vector(1), ids=[900], labels=[0]).result()
    live.remove([4]).result()

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stage == "journal begun":
            patch.setattr(HashIndex, "_save_as", stop)
        else:
            patch.setattr(live._journal, "drop_before", stop)
        with pytest.raises(KeyboardInterrupt):
            live.fold()
    live.add([3], vector(2), ids=[901], labels=[0]).result()
    expected = ids_of(live.index)
    abandon(live)
    again = LiveIndex(place)
    assert ids_of(again.index) == expected
    again.index.verify()
    again.close()


def test_folding_goes_on_while_changes_come(place):
    live = LiveIndex(place)
    for value in range(30):
        live.add([value % 16], vector(value), ids=[500 + value], labels=[0]).result()
        if value % 10 == 5:
            assert live.fold()
    assert live.unsaved == 4
    expected = ids_of(live.index)
    abandon(live)
    again = LiveIndex(place)
    assert ids_of(again.index) == expected
    again.close()


def test_the_index_is_saved_by_itself(place):
    live = LiveIndex(place, fold_seconds=0.05)
    live.add([3], vector(1), labels=[0]).result()
    saved = threading.Event()
    for _ in range(600):
        if live.unsaved == 0:
            break
        saved.wait(0.05)
    assert N_ITEMS in HashIndex.load(place)
    abandon(live)


def test_a_change_that_does_not_fit_leaves_the_others_alone(place):
    live = LiveIndex(place)
    with live._commit:  # all of these wait, and are committed as one group
        futures = [
            live.add([3], vector(1), ids=[900], labels=[0]),
            live.add([3], vector(1), ids=[900], labels=[0]),  # again
            live.add([99], vector(1), labels=[0]),  # no such bucket
            live.add([3], vector(np.nan), labels=[0]),
            live.add([3], vector(1)),  # no label
            live.remove([12345]),
            live.remove([900]),
            live.add([3], vector(5), ids=[900], labels=[0]),
        ]
    kinds = [type(future.exception()).__name__ for future in futures]
    bad = "ValueError"
    assert kinds == ["NoneType", bad, bad, bad, bad, bad, "NoneType", "NoneType"]
    assert live.index.item(900)["vector"].tolist() == [5.0] * DIM
    abandon(live)
    again = LiveIndex(place)
    assert again.index.item(900)["vector"].tolist() == [5.0] * DIM
    again.close()


def test_what_could_not_be_written_is_not_seen(place, monkeypatch):
    live = LiveIndex(place)
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    future = live.add([3], vector(1), ids=[900], labels=[0])
    with pytest.raises(StorageError, match="no space"):
        future.result()
    assert 900 not in live.index
    monkeypatch.undo()
    live.add([3], vector(1), ids=[900], labels=[0]).result()
    assert 900 in live.index
    live.close()


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", [MemoryError(), CorruptIndexError("damaged"), OSError(5, "I/O")])
def test_several_changes_that_cannot_be_merged_are_tried_one_by_one(place, monkeypatch, error):
    live = LiveIndex(place)
    real = HashIndex.add

    def add(index, buckets, *more):
        if len(buckets) > 1 or more[1].tolist() == [901]:
            raise error
        return real(index, buckets, *more)

    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "add", add)
        with live._commit:
            futures = [live.add([3], vector(1), ids=[item], labels=[0]) for item in range(900, 903)]
        told = [future.exception(60) for future in futures]
    assert told == [None, error, None]
    assert live.failure is None
    live.add([3], vector(1), ids=[901], labels=[0]).result(60)
    live.close()
    assert {900, 901, 902} <= set(ids_of(HashIndex.load(place)))


def test_the_writer_outlives_whatever_goes_wrong_with_a_group(place, monkeypatch):
    live = LiveIndex(place)
    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "copy", failing(MemoryError()))
        futures = [live.remove([item]) for item in (1, 2)]
        assert all(isinstance(future.exception(60), MemoryError) for future in futures)
    assert live.failure is None
    live.remove([2]).result(60)
    live.close()
    index = HashIndex.load(place)
    assert 1 in index
    assert 2 not in index


def test_a_commit_that_cannot_be_counted_is_made(place):
    live = LiveIndex(place)
    live.on_commit = failing(RuntimeError("no such figure"))
    assert live.remove([1]).result(60).tolist() == [1]
    assert 1 not in live.index
    abandon(live)
    again = LiveIndex(place)
    assert 1 not in again.index
    again.close()


@pytest.mark.parametrize("error", [MemoryError(), CorruptIndexError("damaged"), OSError(5, "I/O")])
def test_a_save_that_fails_is_tried_again(place, monkeypatch, error):
    monkeypatch.setattr("hashcade.serve._live._RETRY_SECONDS", 0.01)
    failed = threading.Event()

    def fail(*_, **__):
        failed.set()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "_save_as", fail)
        live = LiveIndex(place, fold_seconds=0.01)
        live.remove([1]).result(60)
        assert failed.wait(60)
        failed.clear()
        assert failed.wait(60)  # again
    for _ in range(600):
        if live.unsaved == 0:
            break
        threading.Event().wait(0.05)
    assert 1 not in HashIndex.load(place)
    assert live.failure is None
    live.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("name", "attribute"), [("writer", "_commit_group"), ("folder", "fold")])
def test_a_thread_that_ended_is_told(place, monkeypatch, name, attribute):
    live = LiveIndex(place, fold_seconds=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(live, attribute, failing(SystemExit()))  # ends a thread without a word
        change = live.remove([1])
        thread = next(t for t in live._threads if name in t.name)
        thread.join(60)
    assert f"hashcade-{name} has ended" in live.failure
    if name == "writer":
        assert isinstance(change.exception(60), SystemExit)
        with pytest.raises(StorageError, match="has ended"):
            live.remove([2])
    live.close()  # does not wait for a thread that is not there


def test_searches_hold_the_state_they_began_with(place):
    live = LiveIndex(place)
    before = live.index
    live.remove([0]).result()
    assert 0 in before
    assert 0 not in live.index
    live.close()


def test_too_many_waiting_changes_are_refused(place):
    live = LiveIndex(place, max_waiting=2)
    futures = []
    # The writer takes a group and waits; two more may wait behind it.
    with live._commit, contextlib.suppress(BusyError):
        for value in range(400):
            futures.append(live.add([3], vector(value), labels=[0]))  # noqa: PERF401
    assert 2 <= len(futures) < 400
    assert all(len(future.result()) == 1 for future in futures)
    live.close()


def test_reading_alone_applies_the_journal_and_writes_nothing(place):
    live = LiveIndex(place)
    live.add([3], vector(1), labels=[0]).result()
    abandon(live)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    reader = LiveIndex(place, read_only=True)
    assert N_ITEMS in reader.index
    with pytest.raises(ReadOnlyError):
        reader.remove([0])
    reader.close()
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


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


operations = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)),
    max_size=12,
)


@settings(max_examples=30)
@given(operations=operations, already=st.integers(0, 12))
def test_replaying_gives_the_same_whatever_is_there_already(tmp_path_factory, operations, already):
    """The oracle applies changes one by one to a dictionary."""
    folder = tmp_path_factory.mktemp("replay")
    make_index(folder / "index")
    index = HashIndex.load(folder / "index")
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
            apply_again(index, [change])
    apply_again(index, changes)
    assert {item: float(index.item(item)["vector"][0]) for item in ids_of(index)} == state


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
