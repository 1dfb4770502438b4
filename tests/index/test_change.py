"""Adding and removing: against a dictionary, and while others search."""

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from factories import World, assert_same
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hashcade import CodeShape, HashIndex


class Against(RuleBasedStateMachine):
    """A random sequence of everything that changes an index agrees with a dictionary."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.shape = CodeShape(width=4, depth=2, sparsity=2)
        self.world = World(self.shape, 3)
        self.index = HashIndex.build(
            np.empty((0, 2), int), np.empty((0, 3)), labels=np.empty(0, int), shape=self.shape
        )
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "index"
        self.saved = None

    def teardown(self):
        self.folder.cleanup()

    def _items(self, n):
        vectors = self.rng.integers(-2, 3, (n, 3)).astype(np.float32)
        return self.rng.integers(0, 16, (n, 2)), vectors, self.rng.integers(0, 3, n)

    def _note(self, ids, buckets, vectors, labels):
        for i, b, v, label in zip(ids, buckets, vectors, labels, strict=True):
            self.world.items[int(i)] = (sorted(set(b.tolist())), v, int(label))

    @rule(n=st.integers(0, 12), seed=st.integers(0, 2**16))
    def add_with_ids_of_its_own(self, n, seed):
        self.rng = np.random.default_rng(seed)
        buckets, vectors, labels = self._items(n)
        start = self.index.next_id
        self.index.add(buckets, vectors, labels=labels)
        self._note(range(start, start + n), buckets, vectors, labels)

    @rule(ids=st.sets(st.integers(0, 60), max_size=8), seed=st.integers(0, 2**16))
    def add_with_ids_given(self, ids, seed):
        self.rng = np.random.default_rng(seed)
        ids = sorted(ids, key=lambda i: (i * 7919) % 61)
        buckets, vectors, labels = self._items(len(ids))
        present = [i for i in ids if i in self.world.items]
        if present:
            with pytest.raises(ValueError, match=rf"\b{present[0]}\b.*already in the index"):
                self.index.add(buckets, vectors, ids, labels)
        else:
            self.index.add(buckets, vectors, ids, labels)
            self._note(ids, buckets, vectors, labels)

    @rule(share=st.sampled_from([0.1, 0.5, 1.0]), seed=st.integers(0, 2**16))
    def remove(self, share, seed):
        rng = np.random.default_rng(seed)
        gone = [i for i in self.world.items if rng.random() < share]
        self.index.remove(gone)
        for i in gone:
            del self.world.items[i]

    @rule(missing=st.integers(200, 300))
    def remove_what_is_not_there(self, missing):
        some = [*list(self.world.items)[:1], missing]
        if missing in self.world.items:
            return
        with pytest.raises(ValueError, match=f"id {missing} not in the index"):
            self.index.remove(some)

    @rule()
    def compact(self):
        self.index.compact()
        assert len(self.index._snapshot.views) <= 1

    @rule()
    def save(self):
        self.index.save(self.path)
        self.saved = dict(self.world.items)

    @rule(mmap=st.booleans())
    def load(self, mmap):
        if self.saved is not None:
            self.index = HashIndex.load(self.path, mmap=mmap)
            self.world.items = dict(self.saved)

    @rule()
    def verify(self):
        self.index.verify()

    @rule(seed=st.integers(0, 2**16), n=st.integers(1, 9), fill=st.sampled_from(["path", "none"]))
    def search(self, seed, n, fill):
        rng = np.random.default_rng(seed)
        queries = rng.integers(-2, 3, (3, 3)).astype(np.float32)
        buckets = rng.integers(0, 16, (3, 2))
        result = self.index.search(queries, bucket_ids=buckets, n_neighbors=n, fill=fill)
        assert_same(
            result, self.world.expected(queries, bucket_ids=buckets, n_neighbors=n, fill=fill)
        )

    @rule(item=st.integers(0, 70))
    def contains(self, item):
        assert (item in self.index) == (item in self.world.items)

    @invariant()
    def as_many(self):
        assert len(self.index) == len(self.world.items)


TestAgainstADictionary = Against.TestCase


def line(n):
    return np.arange(n, dtype=np.float32)[:, None]


SHAPE = CodeShape(width=4, depth=1)


def test_ids_that_nobody_chose_are_never_used_again():
    index = HashIndex.build([0, 0], line(2), shape=SHAPE)
    index.remove([1])
    index.add([0], line(1))
    assert 2 in index
    assert 1 not in index
    index.add([0], line(1), ids=[40])
    index.add([0], line(1))
    assert 41 in index


def test_adding_one_by_one_keeps_segments_few():
    index = HashIndex.build([0], line(1), shape=SHAPE)
    for i in range(500):
        index.add([i % 4], line(1) + i)
    assert len(index._snapshot.views) <= 10
    result = index.search([[250.2]], bucket_ids=[[0, 1, 2, 3]], n_neighbors=3)
    assert result.ids.tolist() == [[251, 252, 250]]


def test_what_is_refused_changes_nothing():
    index = HashIndex.build([0, 1], line(2), [5, 6], shape=SHAPE)
    before = index._snapshot
    for change in (
        lambda: index.add([0, 1], line(2), [7, 6]),
        lambda: index.add([0, 1], line(2), [7, 7]),
        lambda: index.add([0, 9], line(2)),
        lambda: index.add([0, 1], [[0.0], [np.nan]]),
        lambda: index.add([0], [[0.0, 1.0]]),
        lambda: index.add([0], line(1), labels=[1]),
        lambda: index.remove([5, 99]),
        lambda: index.remove([5, 5]),
    ):
        with pytest.raises(ValueError, match=r"\d|labels"):
            change()
        assert index._snapshot is before


def test_a_search_during_changes_sees_one_state():
    """A writer moves all items from label +1 to -1 and back; no search may see both."""
    n = 64
    shape = CodeShape(width=2, depth=1)
    index = HashIndex.build([0] * n, np.ones((n, 8)), shape=shape)
    stop = threading.Event()
    errors, searches = [], []

    def read():
        while not stop.is_set():
            result = index.search(np.zeros((1, 8)), bucket_ids=[0], n_neighbors=2 * n)
            found = result.ids[0][result.ids[0] >= 0]
            searches.append(1)
            low, high = (found < 10**6).sum(), (found >= 10**6).sum()
            if low != n or high not in (0, n):
                errors.append((low, high))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        index.add([0] * n, np.ones((n, 8)), ids=np.arange(n) + 10**6)
        index.remove(np.arange(n) + 10**6)
    stop.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert len(searches) > 10
