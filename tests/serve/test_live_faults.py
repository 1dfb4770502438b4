"""The live index when something fails: nobody waits in vain, and nothing told is lost."""

import threading

import pytest
from live_indexes import abandon, ids_of, vector

from hashcade import CorruptIndexError, HashIndex, StorageError
from hashcade.serve._live import LiveIndex


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


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
