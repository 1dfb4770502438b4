"""HashTable.open: a change is on disk when its call returns. Ids of text, payload, filters."""

import threading

import numpy as np
import pytest

from hashcade import HashTable, IndexLockedError, StorageError


@pytest.fixture
def place(hasher, items, tmp_path):
    table = HashTable.from_parts(hasher)
    n = len(items[0])
    payload = {"price": np.arange(n), "brand": np.array(["a", "b", "c"])[np.arange(n) % 3]}
    table.add(items[0], labels=items[1], ids=[f"key {k}" for k in range(n)], payload=payload)
    table.save(tmp_path / "table")
    table.close()
    return tmp_path / "table"


def test_a_change_is_on_disk_when_its_call_returns(place, items):
    with HashTable.open(place) as table:
        table.add(items[0][:2], ids=["x", "y"], labels=["ant", None], payload=[{"n": 1}, None])
        table.upsert(["key 0"], items[0][:1], payload=[{"n": 2}])
        assert table.remove(["key 1"]) == 1
        assert table.remove(where={"price": {">=": 200}}) == 40
        for other in (HashTable.load(place), HashTable.open(place, read_only=True)):
            assert (other["x"].label, other["x"].payload) == ("ant", {"n": 1})
            assert (other["key 0"].label, other["key 0"].payload) == (None, {"n": 2})
            assert "key 1" not in other
            assert len(other) == len(table) == len(items[0]) + 2 - 41
            other.close()
    files = sorted(path.name.partition("-")[0] for path in place.iterdir())
    assert files == ["index", "items.db", "model", "payload"]


def test_one_writer_and_readers_that_follow(place, items):
    reader = HashTable.open(place, read_only=True)
    with HashTable.open(place) as table:
        with pytest.raises(IndexLockedError):
            HashTable.open(place)
        with pytest.raises(StorageError, match="reading alone"):
            reader.remove(["key 1"])
        table.add(items[0][:1] + 9, ids=["x"], labels=["yak"], new_labels=True)
        assert "x" not in reader
        assert reader.refresh()
        assert not reader.refresh()
        assert reader["x"].label == "yak"
        assert "yak" in reader.hasher.classes_  # the model was saved too
        assert reader.search(items[0][:1] + 9, 1).ids.tolist() == [["x"]]
        with pytest.raises(ValueError, match="only a table from HashTable"):
            HashTable.load(place).refresh()
    reader.close()
    with pytest.raises(StorageError, match="closed"):
        print(reader["key 1"])


def test_threads_that_wait_together_share_a_commit(place, items):
    commits = []
    with HashTable.open(place) as table:
        table._live.on_commit = lambda seconds, n_changes: commits.append(n_changes)

        def add(number):
            for k in range(10):
                table.add(items[0][k : k + 1], ids=[f"{number} {k}"], payload=[{"by": number}])

        threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [table.count({"by": number}) for number in range(8)] == [10] * 8
    assert sum(commits) == 80
    assert len(commits) < 80


def test_a_search_shows_what_belonged_to_the_items_at_its_moment(place, items):
    with HashTable.open(place) as table:
        matches = table.search(items[0][:3], 1)
        table.upsert(["key 0"], items[0][:1], payload=[{"new": True}])
        table.remove(["key 1"])
        assert [row[0].payload["price"] for row in matches] == [0, 1, 2]
        assert matches.ids[:, 0].tolist() == ["key 0", "key 1", "key 2"]


def test_search_with_filters_and_text_ids(place, items):
    table = HashTable.load(place)
    X, n = items[0], len(items[0])
    table.create_index("brand")
    for where, inside in (
        ({"brand": "b"}, [k for k in range(n) if k % 3 == 1]),
        ({"price": {"<": 7}, "brand": ["a", "c"]}, [0, 2, 3, 5, 6]),
        ({"label": "ant", "not": {"brand": "a"}}, [
            k for k in range(n) if items[1][k] == "ant" and k % 3]),
        ({"id": ["key 5", "key 9", "nothing"]}, [5, 9]),
        ({"brand": "z"}, []),
    ):  # fmt: skip
        found = table.search(X[0], n, where=where)
        ids = [match.id for match in found[0]]
        assert sorted(ids) == sorted(f"key {k}" for k in inside)
        assert found.ids.shape == (1, n)
        assert found.ids[0, len(inside) :].tolist() == [None] * (n - len(inside))
        assert table.count(where) == len(inside)
        assert table.ids(where).tolist() == [f"key {k}" for k in inside]
    assert set(table.search(X[0], 3, filter_ids=["key 5", "key 6"]).ids[0]) == {
        "key 5", "key 6", None,
    }  # fmt: skip
    assert table.search(X[:2], 1, exclude_self=["key 0", "key 1"]).ids[0, 0] != "key 0"
    assert table.explain(X[0], n_neighbors=1)["results"][0]["id"] == "key 0"
    with pytest.raises(ValueError, match="both given"):
        table.search(X[0], 3, filter_ids=["key 5"], where={"brand": "a"})
    with pytest.raises(ValueError, match="one of ids and where"):
        table.remove()
    with pytest.raises(KeyError, match="'key 999' not in the table"):
        table["key 999"]
    with pytest.raises(KeyError):
        table[5]
    assert 5 not in table


def test_fit_takes_ids_and_payload(items):
    X, y = items
    settings = {"width": 4, "steps": 5, "hidden_size": 8, "verbose": False}
    ids, payload = [f"k{k}" for k in range(len(X))], [{"row": k} for k in range(len(X))]
    table = HashTable(**settings).fit(X, y, ids=ids, payload=payload)
    assert [match.payload["row"] for match in table.search(X[7], 1)[0]] == [7]
    assert table["k7"].payload == {"row": 7}
    with pytest.raises(ValueError, match="payload has 1 rows"):  # before anything is learned
        HashTable(**settings).fit(X, y, payload=[{}])
    with HashTable.from_parts(table.hasher) as empty, pytest.raises(ValueError, match="mixes"):
        empty.add(X[:2], ids=["a", 1])
