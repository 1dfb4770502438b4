"""The live index: what was acknowledged is there after any stop, and searches never wait."""

import contextlib
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_indexes import abandon, ids_of, vector
from services import DIM, N_ITEMS, make_index

from hashcade import HashIndex
from hashcade.serve._changes import apply_again
from hashcade.serve._live import BusyError, LiveIndex, ReadOnlyError
from hashcade.serve._records import Add, Remove


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
