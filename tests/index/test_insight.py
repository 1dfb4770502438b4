"""Numbers about the table, and the story of one query."""

import json
from itertools import combinations

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex
from hashcade.index.inspect import gini

SHAPE = CodeShape(width=3, depth=2)
#           cat cat dog dog dog bird
LABELS = [0, 0, 1, 1, 1, 2]
BUCKETS = [0, 1, 1, 1, 8, 8]
VECTORS = np.arange(6, dtype=np.float32)[:, None]


def zoo():
    index = HashIndex.build(BUCKETS[:5], VECTORS[:5], labels=LABELS[:5], shape=SHAPE)
    index.add([BUCKETS[5], 4], [[5.0], [6.0]], labels=[LABELS[5], 9])
    index.remove([6])  # bucket 4 is empty again
    return index


def test_stats_by_hand():
    stats = zoo().stats()
    assert (stats["n_items"], stats["n_entries"], stats["n_buckets"]) == (6, 6, 9)
    assert (stats["n_occupied"], stats["largest_bucket"], stats["mean_bucket"]) == (3, 3, 2.0)
    assert stats["empty_share"] == pytest.approx(6 / 9)
    assert stats["expected_candidates"] == pytest.approx((1 + 9 + 4) / 6)
    assert stats["expected_speedup"] == pytest.approx(36 / 14)
    assert stats["purity"] == pytest.approx((1 + 2 + 1) / 6)
    assert stats["classes"] == {
        0: {"n_entries": 2, "n_buckets": 2, "purity": pytest.approx((1 + 1 / 3) / 2)},
        1: {"n_entries": 3, "n_buckets": 2, "purity": pytest.approx((2 / 3 + 2 / 3 + 1 / 2) / 3)},
        2: {"n_entries": 1, "n_buckets": 1, "purity": pytest.approx(1 / 2)},
    }
    assert stats["n_removed_entries"] == 1
    json.dumps(stats)


def test_stats_survive_storing_and_compacting(tmp_path):
    index = zoo()
    before = index.stats()
    index.save(tmp_path / "a")
    loaded = HashIndex.load(tmp_path / "a")
    # A table of ids is made when ids are first asked for; a fresh copy has none.
    assert {**loaded.stats(), "bytes_other": 0} == {**before, "bytes_other": 0}
    loaded.compact()
    after = loaded.stats()
    changed = {"n_segments", "n_removed_entries", "bytes_vectors", "bytes_other"}
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    assert after["n_removed_entries"] == 0


def test_gini_against_its_definition():
    rng = np.random.default_rng(0)
    for n_buckets in (1, 5, 40):
        sizes = np.zeros(n_buckets, dtype=int)
        sizes[: (n_buckets + 1) // 2] = rng.integers(1, 9, (n_buckets + 1) // 2)
        apart = sum(abs(int(a) - int(b)) for a, b in combinations(sizes, 2))
        expected = apart / (n_buckets**2 * sizes.mean())
        assert gini(sizes[sizes > 0], n_buckets) == pytest.approx(expected)
    assert gini(np.array([3, 3, 3]), 3) == pytest.approx(0)


def test_expected_candidates_of_several_buckets_count_each_item_once():
    shape = CodeShape(width=4, depth=1, sparsity=2)
    rng = np.random.default_rng(1)
    buckets = np.array([rng.permutation(4)[:2] for _ in range(50)])
    index = HashIndex.build(buckets, rng.normal(size=(50, 2)), shape=shape)
    members = [set(row) for row in buckets.tolist()]
    expected = np.mean([sum(bool(a & b) for b in members) for a in members])
    assert index.stats()["expected_candidates"] == pytest.approx(expected)


def test_stats_of_an_empty_index():
    stats = HashIndex.build([], np.empty((0, 2)), labels=[], shape=SHAPE).stats()
    assert stats["n_items"] == stats["n_occupied"] == stats["expected_candidates"] == 0
    assert stats["classes"] == {}


def test_memory_beside_the_vectors_is_at_most_24_bytes_an_entry():
    rng = np.random.default_rng(0)
    for sparsity in (1, 3):
        n = 50_000
        shape = CodeShape(width=100, depth=1, sparsity=sparsity)
        buckets = np.array([rng.permutation(100)[:sparsity] for _ in range(n)])
        index = HashIndex.build(
            buckets, np.zeros((n, 4)), labels=rng.integers(0, 10, n), shape=shape
        )
        index.add(buckets[:1], np.zeros((1, 4)), ids=[n + 7], labels=[1])
        index.remove([3])  # a list of ids and a removal mask are there now
        stats = index.stats()
        assert stats["bytes_other"] <= 24 * stats["n_entries"]


# -- explain --------------------------------------------------------------------------------------


def test_explain_tells_the_path_the_buckets_and_the_sources():
    story = zoo().explain([2.2], bucket_ids=[0], n_neighbors=3)
    assert [[node["slot"] for node in level["nodes"]] for level in story["levels"]] == [[0], [0]]
    assert [level["nodes"][0]["n_entries"] for level in story["levels"]] == [4, 1]
    assert [level["nodes"][0]["n_buckets"] for level in story["levels"]] == [2, 1]
    assert [(b["bucket"], b["path"], b["size"], b["fill"]) for b in story["buckets"]] == [
        (0, [0, 0], 1, False),
        (1, [0, 1], 3, True),
    ]
    assert [b["classes"] for b in story["buckets"]] == [{0: 1}, {1: 2, 0: 1}]
    assert [(r["id"], r["label"], r["buckets"]) for r in story["results"]] == [
        (2, 1, [1]),
        (3, 1, [1]),
        (1, 0, [1]),
    ]
    assert (story["candidates"], story["n_items"], story["truncated"]) == (4, 6, False)
    json.dumps(story)


def test_explain_with_scores_gives_sums_and_ranks():
    scores = [[0.1, 0.2, 0.3], [0.5, 0.9, 0.1]]
    story = zoo().explain([0.0], scores=[scores], n_probe=2, n_neighbors=1)
    assert [b["bucket"] for b in story["buckets"]] == [1, 0]
    assert [b["score"] for b in story["buckets"]] == pytest.approx([1.0, 0.6])
    assert [(n["slot"], n["rank"]) for n in story["levels"][0]["nodes"]] == [(0, 2)]
    assert [(n["slot"], n["rank"]) for n in story["levels"][1]["nodes"]] == [(1, 0), (0, 1)]
    walk = zoo().explain([0.0], scores=scores, n_neighbors=6)
    # the hash bucket 7 is empty, then in order of the sorted slots
    assert [b["bucket"] for b in walk["buckets"]] == [8, 1, 0]
    assert all(b["fill"] for b in walk["buckets"])


def test_explain_tells_named_buckets_that_fill_from_those_that_are_probed():
    story = zoo().explain([0.0], bucket_ids=[1, 7, 8], n_probe=2, n_neighbors=4)
    assert [(b["bucket"], b["fill"]) for b in story["buckets"]] == [(1, False), (8, True)]
    enough = zoo().explain([0.0], bucket_ids=[1, 7, 8], n_probe=2, n_neighbors=3)
    assert [(b["bucket"], b["fill"]) for b in enough["buckets"]] == [(1, False)]


def test_explain_agrees_with_search_and_refuses_what_it_does_not_know():
    index = zoo()
    result = index.search([[3.0]], bucket_ids=[[1, 8]], n_neighbors=4, max_candidates=4)
    story = index.explain([3.0], [1, 8], n_neighbors=4, max_candidates=4)
    assert [r["id"] for r in story["results"]] == result.ids[0].tolist()
    assert (story["candidates"], story["truncated"]) == (4, True)
    assert [b["candidates"] for b in story["buckets"]] == [3, 1]
    with pytest.raises(ValueError, match="unknown option 'n_neighbours'"):
        index.explain([3.0], [1], n_neighbours=4)
    with pytest.raises(ValueError, match="vector has 2 rows"):
        index.explain([[3.0], [2.0]], [[1], [1]])


def test_an_explanation_joins_the_segments_of_a_bucket():
    index = HashIndex.build(np.arange(64), np.zeros((64, 1)), shape=CodeShape(width=8, depth=2))
    index.add([3, 5], [[1.0], [1.0]])  # two buckets have parts in two segments
    story = index.explain([0.0], bucket_ids=np.arange(64)[None], n_neighbors=66)
    sizes = [2 if bucket in (3, 5) else 1 for bucket in range(64)]
    assert [bucket["candidates"] for bucket in story["buckets"]] == sizes
    assert len(story["results"]) == 66


@pytest.mark.parametrize("options", [{}, {"exclude_self": [7]}, {"max_candidates": 21}])
def test_an_explanation_counts_an_item_once_in_one_segment_and_in_several(options):
    rng = np.random.default_rng(0)
    shape = CodeShape(width=3, depth=2, sparsity=2)
    buckets = rng.integers(0, 9, (60, 2))
    several = HashIndex.build(buckets[:40], rng.normal(size=(40, 2)), shape=shape)
    for start, stop in ((40, 55), (55, 60)):
        several.add(buckets[start:stop], rng.normal(size=(stop - start, 2)))
    several.remove([3, 44])
    one = several.copy()
    one.compact()
    assert several.stats()["n_segments"] == 3
    for _ in range(60):
        vector, where = rng.normal(size=2), rng.permutation(9)[None, :4]
        story = several.explain(vector, where, n_neighbors=30, **options)
        assert story == one.explain(vector, where, n_neighbors=30, **options)
        assert sum(bucket["candidates"] for bucket in story["buckets"]) == story["candidates"]
        for result in story["results"]:
            own = [b for b in where[0].tolist() if b in buckets[result["id"]]]
            looked_into = [bucket["bucket"] for bucket in story["buckets"]]
            assert result["buckets"] == [b for b in own if b in looked_into]


def test_scores_can_be_shown_that_do_not_say_where_to_look():
    scores = [[0.1, 0.2, 0.3], [0.5, 0.9, 0.1]]
    story = zoo().explain([0.0], bucket_ids=[1], shown_scores=scores, n_neighbors=1)
    assert [b["bucket"] for b in story["buckets"]] == [1]
    assert story["buckets"][0]["score"] == pytest.approx(1.0)
    assert [level["nodes"][0]["rank"] for level in story["levels"]] == [2, 0]
