"""When something fails, nobody waits in vain, and nothing acknowledged is lost."""

import threading

import pytest

from hashcade import CorruptIndexError, HashIndex, StorageError
from hashcade.store import Catalog, DurableIndex
from tests.store.factories import abandon, add, ids_of, load_index, vector


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("stage", ["announced", "index saved"])
def test_a_stop_in_the_middle_of_a_save_loses_nothing(place, monkeypatch, stage):
    durable = DurableIndex(place)
    add(durable, [3], vector(1), ids=[900], labels=[0]).result()
    durable.remove([4]).result()

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stage == "announced":
            patch.setattr(HashIndex, "save", stop)
        else:
            patch.setattr(Catalog, "forget_changes", stop)
        with pytest.raises(KeyboardInterrupt):
            durable.fold()
    add(durable, [3], vector(2), ids=[901], labels=[0]).result()
    expected = ids_of(durable.index)
    abandon(durable)
    again = DurableIndex(place)
    assert ids_of(again.index) == expected
    again.index.verify()
    again.close()


@pytest.mark.parametrize("error", [MemoryError(), CorruptIndexError("damaged"), OSError(5, "I/O")])
def test_several_changes_that_cannot_be_merged_are_tried_one_by_one(place, monkeypatch, error):
    durable = DurableIndex(place)
    real = HashIndex.upsert

    def upsert(index, ids, *more):
        if len(ids) > 1 or list(ids) == [901]:
            raise error
        return real(index, ids, *more)

    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "upsert", upsert)
        with durable._commit:
            futures = [
                add(durable, [3], vector(1), ids=[item], labels=[0]) for item in range(900, 903)
            ]
        told = [future.exception(60) for future in futures]
    assert told == [None, error, None]
    assert durable.failure is None
    add(durable, [3], vector(1), ids=[901], labels=[0]).result(60)
    durable.close()
    assert {900, 901, 902} <= set(ids_of(load_index(place)))


def test_the_writer_outlives_whatever_goes_wrong_with_a_group(place, monkeypatch):
    durable = DurableIndex(place)
    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "copy", failing(MemoryError()))
        futures = [durable.remove([item]) for item in (1, 2)]
        assert all(isinstance(future.exception(60), MemoryError) for future in futures)
    assert durable.failure is None
    durable.remove([2]).result(60)
    durable.close()
    index = load_index(place)
    assert 1 in index
    assert 2 not in index


def test_a_commit_that_cannot_be_counted_is_made(place):
    durable = DurableIndex(place)
    durable.on_commit = failing(RuntimeError("no such figure"))
    assert durable.remove([1]).result(60).numbers.tolist() == [1]
    assert 1 not in durable.index
    abandon(durable)
    again = DurableIndex(place)
    assert 1 not in again.index
    again.close()


@pytest.mark.parametrize("error", [MemoryError(), CorruptIndexError("damaged"), OSError(5, "I/O")])
def test_a_save_that_fails_is_tried_again(place, monkeypatch, error):
    monkeypatch.setattr("hashcade.store.saving._RETRY_SECONDS", 0.01)
    failed = threading.Event()

    def fail(*_, **__):
        failed.set()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "save", fail)
        durable = DurableIndex(place, fold_seconds=0.01)
        durable.remove([1]).result(60)
        assert failed.wait(60)
        failed.clear()
        assert failed.wait(60)  # again
    for _ in range(600):
        if durable.unsaved == 0:
            break
        threading.Event().wait(0.05)
    assert 1 not in load_index(place)
    assert durable.failure is None
    durable.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("name", "attribute"), [("writer", "_commit_group"), ("folder", "fold")])
def test_a_thread_that_ended_is_told(place, monkeypatch, name, attribute):
    durable = DurableIndex(place, fold_seconds=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(durable, attribute, failing(SystemExit()))  # ends a thread without a word
        change = durable.remove([1])
        thread = next(t for t in durable._threads if name in t.name)
        thread.join(60)
    assert f"hashcade-{name} has ended" in durable.failure
    if name == "writer":
        assert isinstance(change.exception(60), SystemExit)
        with pytest.raises(StorageError, match="has ended"):
            durable.remove([2])
    durable.close()  # does not wait for a thread that is not there
