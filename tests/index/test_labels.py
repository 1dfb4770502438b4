"""Items without a label, labels by id, and replacing items in one change."""

import threading

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex
from hashcade.index import NO_LABEL, Items, checked_ids

SHAPE = CodeShape(width=3, depth=1)


def line(n):
    return np.arange(n, dtype=np.float32)[:, None]


def mixed():
    """Six items in two segments: labels 4, none, 4, 7, none, none; item 2 was removed."""
    index = HashIndex.build([0, 0, 1, 1], line(4), labels=[4, NO_LABEL, 4, 7], shape=SHAPE)
    index.add([1], [[4.0]])
    index.add([2], [[5.0]], labels=[-1])
    index.remove([2])
    return index


def test_labels_by_id_in_any_shape():
    index = mixed()
    assert index.labels_of([0, 1, 2, 3, 4, 5, 99, -1]).tolist() == [4, -1, -1, 7, -1, -1, -1, -1]
    found = index.search([[0.0], [3.0]], bucket_ids=[0, 1], n_neighbors=3, fill="none").ids
    assert index.labels_of(found).tolist() == [[4, -1, -1], [7, -1, -1]]
    assert index.contains(found).tolist() == [[True, True, False], [True, True, False]]
    assert index.labels_of(np.empty((0, 3), int)).shape == (0, 3)


def test_an_index_without_labels_stays_without():
    index = HashIndex.build([0], line(1), shape=SHAPE)
    with pytest.raises(ValueError, match="the index has no labels") as caught:
        index.add([0], line(1), labels=[1])
    assert "build the index with labels" in caught.value.hint
    assert len(index) == 1
    assert not index.has_labels
    assert index.labels_of([0]).tolist() == [NO_LABEL]


@pytest.mark.parametrize("labels", [[-2], [2**63]])
def test_labels_out_of_range_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels must be in -1\.\.2\*\*63-1, is not in row 0"):
        HashIndex.build([0], line(1), labels=np.array(labels), shape=SHAPE)


def test_items_without_a_label_do_not_count_as_a_class():
    index = mixed()
    stats = index.stats()
    assert stats["purity"] == 1.0  # of those that have a label
    assert {label: c["n_entries"] for label, c in stats["classes"].items()} == {4: 1, 7: 1}
    assert index.node([1])["classes"] == {7: 1}
    assert index.node([1])["n_entries"] == 2
    assert index.node([2])["classes"] == {}
    assert index.node([2])["purity"] is None
    assert index.item(1)["label"] is None
    assert index.bucket(1)[1].tolist() == [7, NO_LABEL]
    story = index.explain([3.0], bucket_ids=[1])
    assert [(r["id"], r["label"]) for r in story["results"][:2]] == [(3, 7), (4, None)]
    assert story["buckets"][0]["classes"] == {7: 1}


def test_all_items_may_be_without_a_label(tmp_path):
    index = HashIndex.build([0, 1], line(2), labels=[-1, -1], shape=SHAPE)
    index.save(tmp_path / "a")
    loaded = HashIndex.load(tmp_path / "a")
    assert loaded.has_labels
    assert loaded.stats()["classes"] == {}
    assert loaded.labels_of([0, 1]).tolist() == [-1, -1]
    loaded.verify()


def test_large_labels_beside_small_ones():
    index = HashIndex.build([0], line(1), labels=[2**40], shape=SHAPE)
    index.add([0], line(1), labels=[3])
    index.compact()
    assert index.labels_of([0, 1]).tolist() == [2**40, 3]


# -- upsert ----------------------------------------------------------------------------------------


def test_upsert_replaces_and_inserts():
    index = mixed()
    index.upsert([3, 50], [[2], [0]], [[9.0], [8.0]], labels=[1, 2])
    assert len(index) == 6
    assert index.item(3)["bucket_ids"].tolist() == [2]
    assert index.item(3)["vector"].tolist() == [9.0]
    assert index.labels_of([3, 50]).tolist() == [1, 2]
    assert index.next_id == 51
    index.upsert([3], [[0]], [[1.0]])
    assert index.labels_of([3]).tolist() == [NO_LABEL]
    index.verify()


def test_upsert_of_everything_leaves_nothing_of_the_old():
    index = HashIndex.build([0] * 9, line(9), shape=SHAPE)
    index.upsert(np.arange(9), [1] * 9, -line(9))
    assert len(index) == 9
    assert index.bucket(0)[0].tolist() == []
    assert index.bucket(1)[0].tolist() == list(range(9))


@pytest.mark.parametrize("bad", [{"ids": [0, 0]}, {"vectors": [[0.0], [np.nan]]}, {"ids": [1]}])
def test_a_bad_upsert_changes_nothing(bad):
    index = HashIndex.build([0, 1], line(2), shape=SHAPE)
    given = {"ids": [0, 5], "bucket_ids": [2, 2], "vectors": line(2), **bad}
    with pytest.raises(ValueError, match=r"ids|vectors"):
        index.upsert(**given)
    assert len(index) == 2
    assert index.bucket(2)[0].tolist() == []


def test_no_search_sees_an_item_twice_or_not_at_all():
    index = HashIndex.build([0] * 32, np.ones((32, 4)), shape=SHAPE)
    stop, errors = threading.Event(), []

    def read():
        while not stop.is_set():
            ids = index.search(np.zeros((1, 4)), bucket_ids=[0], n_neighbors=40).ids[0]
            if sorted(ids[ids >= 0]) != list(range(32)):
                errors.append(ids)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for k in range(60):
        index.upsert(np.arange(k % 7, 32), [0] * (32 - k % 7), np.full((32 - k % 7, 4), k))
    stop.set()
    for reader in readers:
        reader.join()
    assert errors == []


# -- what other layers build on --------------------------------------------------------------------


def test_items_are_checked_without_being_added():
    index = mixed()
    items = index.checked_items([[1], [2]], [[1.0], [2.0]])
    assert isinstance(items, Items)
    assert items.ids.tolist() == [6, 7]
    assert items.labels.tolist() == [NO_LABEL] * 2
    assert index.checked_items([1], [[1.0]], next_id=40).ids.tolist() == [40]
    assert index.checked_items([1], [[1.0]], ids=[0]).ids.tolist() == [0]  # even if it is taken
    with pytest.raises(ValueError, match="outside"):
        index.checked_items([3], [[1.0]])
    assert len(index) == 5


def test_add_returns_the_ids_and_reserved_ones_are_passed_over():
    index = HashIndex.build([0], line(1), shape=SHAPE)
    assert index.add([0, 0], line(2)).tolist() == [1, 2]
    index.reserve_ids(10)
    index.reserve_ids(5)
    assert index.next_id == 10
    assert index.add([0], line(1)).tolist() == [10]
    assert index.add([0], line(1), ids=[4]).tolist() == [4]


def test_entries_and_sizes():
    shape = CodeShape(width=3, depth=1, sparsity=2)
    index = HashIndex.build([[0, 1], [1, 1], [1, 2]], line(3), shape=shape)
    buckets, ids = index.entries()
    pairs = sorted(zip(buckets.tolist(), ids.tolist(), strict=True))
    assert pairs == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 2)]
    assert index.largest_buckets(limit=2).tolist() == [1, 0]
    index.remove([0])
    assert index.largest_buckets().tolist() == [1, 2]


def test_the_tree_is_made_of_its_nodes():
    index = HashIndex.build(
        [0, 1, 8, 8], line(4), labels=[1, 1, 2, 1], shape=CodeShape(width=3, depth=2)
    )
    index.remove([1])
    tree = index.tree()

    def check(node):
        below = index.node(node["path"])
        assert {k: v for k, v in node.items() if k != "children"} == {
            k: v for k, v in below.items() if k != "children"
        }
        slots = [child["path"][-1] for child in node.get("children", [])]
        assert slots == [child["slot"] for child in below["children"]]
        assert ("children" in node) == (len(node["path"]) < 2)
        for child in node.get("children", []):
            check(child)

    check(tree)
    assert tree["n_entries"] == 3
    assert [child["path"] for child in tree["children"]] == [[0], [2]]


def test_ids_are_checked_for_others():
    assert checked_ids("ids", [3, 1]).tolist() == [3, 1]
    with pytest.raises(ValueError, match="ids has id 3 more than once"):
        checked_ids("ids", [3, 3])
