"""What a table does before the index searches can be stopped as well: encoding, and filters."""

import numpy as np
import pytest

from hashcade import Cancel, Cancelled, CodeShape, HashIndex, HashTable
from hashcade.index import Encoded


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    items = np.repeat(np.eye(4), 50, axis=0) + 0.1 * rng.normal(size=(200, 4))
    labels = np.repeat(["ant", "bee", "cat", "dog"], 50)
    return HashTable(width=4, steps=5, verbose=False).fit(items, labels)


@pytest.mark.parametrize("n", [1, 200, 3000])
def test_encoding_stops(table, n):
    cancel = Cancel()
    cancel.set()
    items = np.zeros((n, 4), np.float32)
    with pytest.raises(Cancelled, match=rf"stopped after 0 of {n:,} items"):
        table.encode(items, cancel=cancel)
    with pytest.raises(Cancelled):
        table.search(items, cancel=cancel)
    assert len(table.search(items, cancel=Cancel())) == n


def test_a_filter_stops_and_no_other_statement_does():
    n = 30_000
    index = HashIndex.build(np.zeros(n, int), np.zeros((n, 2)), shape=CodeShape(width=2, depth=1))
    table = HashTable.from_parts(None, index)
    queries = Encoded(np.zeros((1, 2), np.float32), np.zeros((1, 1), np.int64), None, by_path=False)
    cancel = Cancel()
    cancel.set()
    where = {"any": [{"a": 1}, {"b": {">": 2}}, {"c": "x"}]}
    with pytest.raises(Cancelled, match="stopped while the items were looked up"):
        table.search(queries, where=where, cancel=cancel)
    assert table.count(where) == 0  # the thread may go on
