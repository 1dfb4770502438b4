"""Looking at items, buckets and nodes: compared with what the index was built from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, HashIndex

SHAPE = CodeShape(width=3, depth=3, sparsity=2)


def world(seed, n=80, labels=True, stored=None):
    """An index with removed items and several segments, and its items as a dictionary."""
    rng = np.random.default_rng(seed)
    buckets = np.stack([rng.permutation(27)[:2] for _ in range(n)])
    vectors = rng.normal(size=(n, 4)).astype(np.float32)
    classes = rng.integers(0, 4, n)
    given_labels = (lambda part: classes[part]) if labels else (lambda part: None)
    index = HashIndex.build(buckets[:50], vectors[:50], labels=given_labels(slice(50)), shape=SHAPE)
    if stored is not None:
        index.save(stored)
        index = HashIndex.load(stored)
    for start in range(50, n, 10):
        part = slice(start, start + 10)
        index.add(buckets[part], vectors[part], labels=given_labels(part))
    gone = rng.permutation(n)[:15]
    index.remove(gone)
    items = {i: (buckets[i], vectors[i], classes[i]) for i in range(n) if i not in gone}
    return index, items


@given(st.integers(0, 1000))
def test_nodes_count_what_lies_below_them(seed):
    index, items = world(seed)
    paths = {i: SHAPE.paths(np.unique(buckets)) for i, (buckets, _, _) in items.items()}
    for prefix in [(), (1,), (2, 0), (0, 1, 2)]:
        entries = [
            (tuple(path), int(items[i][2]))
            for i, rows in paths.items()
            for path in rows.tolist()
            if tuple(path[: len(prefix)]) == prefix
        ]
        node = index.node(prefix)
        assert node["n_entries"] == len(entries)
        assert node["n_buckets"] == len({path for path, _ in entries})
        counted = {}
        for _, label in entries:
            counted[label] = counted.get(label, 0) + 1
        assert node["classes"] == counted
        assert list(node["classes"].values()) == sorted(counted.values(), reverse=True)
        pure = 0
        for path in {path for path, _ in entries}:
            own = [label for other, label in entries if other == path]
            pure += max(own.count(label) for label in own)
        assert node["purity"] == (pytest.approx(pure / len(entries)) if entries else None)
        slots = {path[len(prefix)] for path, _ in entries} if len(prefix) < 3 else set()
        assert [child["slot"] for child in node["children"]] == sorted(slots)
        for child in node["children"]:
            below = index.node([*prefix, child["slot"]])
            assert {k: child[k] for k in ("n_entries", "classes", "purity", "n_buckets")} == {
                k: below[k] for k in ("n_entries", "classes", "purity", "n_buckets")
            }


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_items_and_buckets_give_back_what_was_put_in(tmp_path, labels, mapped):
    index, items = world(3, labels=labels, stored=tmp_path / "index" if mapped else None)
    assert index.has_labels == labels
    inside = {bucket: [] for bucket in range(27)}
    for i, (buckets, vector, label) in items.items():
        item = index.item(i)
        assert item["bucket_ids"].tolist() == sorted(buckets.tolist())
        assert np.array_equal(item["vector"], vector)
        assert item["label"] == (label if labels else None)
        for bucket in buckets.tolist():
            inside[bucket].append(i)
    for bucket, members in inside.items():
        ids, classes = index.bucket(bucket, limit=1000)
        assert ids.tolist() == members  # in the order in which they came
        if labels:
            assert classes.tolist() == [items[i][2] for i in members]
        else:
            assert classes is None
        assert index.bucket(bucket, start=1, limit=2)[0].tolist() == members[1:3]
    with pytest.raises(ValueError, match="id 5000 not in the index"):
        index.item(5000)


def test_damage_is_seen_when_items_are_looked_at(tmp_path):
    from hashcade import CorruptIndexError

    index, items = world(1, stored=tmp_path / "index")
    del index
    for segment in (tmp_path / "index").glob("segment-*.bin"):
        data = bytearray(segment.read_bytes())
        data[3] ^= 8
        segment.write_bytes(data)
    index = HashIndex.load(tmp_path / "index")

    def everything():
        for bucket in range(27):
            index.bucket(bucket)

    with pytest.raises(CorruptIndexError):
        everything()
    assert items


@pytest.mark.parametrize("n", [1, 10, 64, 65, 100])
def test_samples_are_different_items_that_are_there(n):
    index, items = world(2)
    drawn = index.sample(n, random_state=7)
    assert len(drawn) == min(n, len(items))
    assert len(set(drawn.tolist())) == len(drawn)
    assert set(drawn.tolist()) <= set(items)
    assert drawn.tolist() == index.sample(n, random_state=7).tolist()
    if n == 10:
        assert drawn.tolist() != index.sample(n, random_state=8).tolist()


def test_a_copy_goes_its_own_way():
    index, items = world(4)
    copy = index.copy()
    copy.remove([next(iter(items))])
    assert len(index) == len(items) == len(copy) + 1


@pytest.mark.parametrize("path", [[0, 0, 0, 0], [3], [-1], [0.5], [[0]]])
def test_a_path_that_leads_nowhere_is_refused(path):
    index, _ = world(0)
    with pytest.raises(ValueError, match="path"):
        index.node(path)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda index: index.bucket(27), "bucket_ids"),
        (lambda index: index.bucket(0, start=-1), "start=-1"),
        (lambda index: index.bucket(0, limit=0), "limit=0"),
        (lambda index: index.sample(0), "n=0"),
        (lambda index: index.sample(3, random_state=-1), "random_state=-1"),
        (lambda index: index.item(-3), "ids"),
    ],
)
def test_bad_arguments_are_named(call, words):
    index, _ = world(0)
    with pytest.raises(ValueError, match=words):
        call(index)
