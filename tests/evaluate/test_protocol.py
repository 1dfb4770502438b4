"""The protocols against a slow version of them, over all options."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape
from hashcade.evaluate import evaluate_hasher, evaluate_index, protocol
from hashcade.index import Encoded, HashIndex
from tests.evaluate import oracles


class Given:
    """A hasher that is given what it makes of items; these are row numbers."""

    def __init__(self, encoded, shape):
        self._encoded, self.shape_ = encoded, shape

    def encode(self, X, n_probe=1):
        return self._encoded[X.astype(int).ravel()]


def evaluate_arrays(
    queries, wanted, items, labels, *, item_bucket_ids, shape, query_scores=None,
    query_bucket_ids=None, same_set=False, **settings,
):  # fmt: skip
    """Evaluate what a hasher might have made: of queries scores, or buckets, of items buckets."""
    n, buckets = len(queries), np.reshape(item_bucket_ids, (len(items), -1))
    vectors, rows = np.asarray(items, np.float32), np.arange(len(items))
    scores = None if query_scores is None else np.asarray(query_scores, np.float32)
    if not same_set:
        own = np.zeros((n, buckets.shape[1]), int) if query_bucket_ids is None else query_bucket_ids
        buckets = np.concatenate([np.reshape(own, (n, -1)), buckets])
        vectors = np.concatenate([np.asarray(queries, np.float32), vectors])
        if scores is not None:
            scores = np.concatenate([scores, np.zeros((len(items), *scores.shape[1:]))])
    hasher = Given(Encoded(vectors, buckets, scores, query_bucket_ids is None), shape)
    stored = () if same_set else (n + rows[:, None], labels)
    return evaluate_hasher(hasher, np.arange(n)[:, None], wanted, *stored, **settings)


def world(seed, width, depth, sparsity, same_set):
    """Few items in many buckets, with ties in scores and distances: filling has work to do."""
    rng = np.random.default_rng(seed)
    shape = CodeShape(width=width, depth=depth, sparsity=sparsity)
    n = int(rng.integers(2, 25))
    q = n if same_set else int(rng.integers(1, 8))

    def scores(count):
        return rng.integers(0, 4, (count, depth, width)).astype(np.float32)

    item_scores = scores(n)
    buckets = shape.scores_to_bucket_ids(item_scores)
    items = rng.integers(-3, 4, (n, 2)).astype(np.float32)
    labels = rng.integers(0, 3, n)
    if same_set:
        return shape, item_scores, items, labels, buckets, items, labels
    queries = rng.integers(-3, 4, (q, 2)).astype(np.float32)
    return shape, scores(q), queries, rng.integers(0, 3, q), buckets, items, labels


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([(1, 1), (2, 1), (5, 1), (3, 2), (2, 3)]),
    sparsity=st.integers(1, 3),
    same_set=st.booleans(),
    name=st.sampled_from(["paper", "plain"]),
    fill=st.sampled_from([None, "path", "sum", "none"]),
    n_probe=st.sampled_from([1, 2, 50]),
)
def test_agrees_with_the_slow_version(seed, size, sparsity, same_set, name, fill, n_probe):
    width, depth = size
    sparsity = min(sparsity, width)
    shape, scores, queries, wanted, buckets, items, labels = world(
        seed, width, depth, sparsity, same_set
    )
    numbers = (1, 3, 5)
    ours = evaluate_arrays(
        queries, wanted, items, labels, item_bucket_ids=buckets, shape=shape, query_scores=scores,
        n_neighbors=numbers, same_set=same_set, protocol=name, fill=fill, n_probe=n_probe,
        recall=True,
    )  # fmt: skip
    speedup, precision, results = oracles.protocol(
        scores.tolist(), queries, wanted, buckets.tolist(), items, labels, shape=shape,
        numbers=numbers, same_set=same_set, n_probe=n_probe,
        fill=fill or {"paper": "path", "plain": "none"}[name],
    )  # fmt: skip
    assert ours.speedup == pytest.approx(speedup)
    assert ours.precision == pytest.approx(precision)
    for k in numbers:
        exact = [
            oracles.nearest(
                query, items, [i for i in range(len(items)) if not same_set or i != at], k
            )
            for at, query in enumerate(queries)
        ]
        assert ours.recall[k] == pytest.approx(oracles.recall(results[k], exact, k))
    assert ours.mean_average_precision == pytest.approx(
        oracles.average_precision(results[5], wanted, labels, 5, same_set)
    )
    assert ours.nmi == pytest.approx(oracles.nmi(buckets[:, 0].tolist(), labels.tolist()), abs=1e-6)
    assert ours.n_items == len(items) - same_set
    assert ours.n_occupied == len(np.unique(buckets))


def test_fill_and_speedup_by_hand():
    """Two levels of two slots; the query prefers slot 1, then slot 0, at both levels."""
    shape = CodeShape(width=2, depth=2)
    buckets = [3, 2, 2, 1, 0, 0, 0, 0]  # in the query's order: 3 (1 item), 2 (2), 1 (1), 0 (4)
    vectors = np.array([[9], [8], [7], [6], [5], [4], [3], [2]], dtype=np.float32)
    labels = ["a", "a", "b", "a", "b", "b", "b", "b"]
    common = {"item_bucket_ids": buckets, "shape": shape, "query_scores": [[[0, 1], [0, 1]]]}
    ours = evaluate_arrays([[0.0]], ["a"], vectors, labels, n_neighbors=(1, 2, 4), **common)
    # 1 wanted: bucket 3. 2 wanted: buckets 3, 2 (3 items: 7 b, 8 a). 4 wanted: 3, 2, 1.
    assert ours.speedup == {1: 8.0, 2: 8 / 3, 4: 2.0}
    assert ours.precision == {1: 100.0, 2: 50.0, 4: 75.0}
    plain = evaluate_arrays(
        [[0.0]], ["a"], vectors, labels, n_neighbors=(1, 2, 4), protocol="plain", **common
    )
    assert plain.speedup == {1: 8.0, 2: 8.0, 4: 8.0}
    assert plain.precision == {1: 100.0, 2: 50.0, 4: 25.0}  # one result; the others are missing
    assert (plain.fill, ours.fill) == ("none", "path")


def test_a_query_among_the_items_counts_for_nothing():
    ours = evaluate_arrays(
        [[0.0], [1.0], [5.0]], [0, 0, 0], [[0.0], [1.0], [5.0]], [0, 0, 0],
        item_bucket_ids=[0, 0, 1], shape=CodeShape(width=2, depth=1),
        query_bucket_ids=[0, 0, 1], n_neighbors=1, same_set=True, protocol="plain",
    )  # fmt: skip
    assert ours.n_items == 2
    assert ours.speedup == {1: 3.0}  # 1, 1 and 0 candidates of 2 others
    assert ours.precision == {1: pytest.approx(200 / 3)}  # the third finds nobody


def test_bucket_ids_fill_through_the_parents():
    ours = evaluate_arrays(
        [[0.0]], [1], [[1.0], [2.0], [3.0]], [1, 1, 2],
        item_bucket_ids=[1, 2, 0], shape=CodeShape(width=2, depth=2),
        query_bucket_ids=[[0]], n_neighbors=(1, 2, 3),
    )  # fmt: skip
    assert ours.speedup == {1: 3.0, 2: 1.5, 3: 1.0}
    assert ours.precision == {1: 0.0, 2: 50.0, 3: pytest.approx(200 / 3)}


def test_parts_of_the_queries_give_the_same(monkeypatch):
    shape, scores, queries, wanted, buckets, items, labels = world(5, 3, 2, 2, True)
    settings = {"item_bucket_ids": buckets, "shape": shape, "query_scores": scores}
    for fill in ("path", "sum", "none"):
        settings["fill"] = fill
        whole = evaluate_arrays(queries, wanted, items, labels, same_set=True, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(
                protocol,
                "_chunks",
                lambda n, _: [slice(i, min(i + 2, n)) for i in range(0, n, 2)],
            )
            parts = evaluate_arrays(queries, wanted, items, labels, same_set=True, **settings)
        assert (parts.speedup, parts.precision) == (whole.speedup, whole.precision)


# -- hashers ---------------------------------------------------------------------------------------


class Sign:
    """The least that a hasher can be: no scores."""

    shape_ = CodeShape(width=2, depth=1)

    def encode(self, X, n_probe=1):
        vectors = np.asarray(X, dtype=np.float32)
        return Encoded(vectors, (vectors[:, :1] > 0).astype(np.int64), None, by_path=True)


class ScoredSign(Sign):
    by_path = True

    def encode(self, X, n_probe=1):
        encoded = super().encode(X)
        first = encoded.vectors[:, :1]
        scores = np.concatenate([-first, first], axis=1)[:, None]
        return dataclasses.replace(encoded, scores=scores, by_path=self.by_path)


class CodeBookSign(ScoredSign):
    by_path = False


ITEMS = np.array([[-2.0], [-1.0], [1.0], [2.0], [3.0]])
LABELS = ["a", "a", "b", "b", "b"]


@pytest.mark.parametrize("hasher", [Sign(), ScoredSign()])
def test_any_object_with_the_contract_is_evaluated(hasher):
    ours = evaluate_hasher(hasher, ITEMS, LABELS, n_neighbors=1)
    assert ours.same_set
    assert ours.speedup == {1: 4 / 1.6}  # 1 1 2 2 2 others in the bucket
    assert ours.precision == {1: 100.0}
    assert ours.nmi == 100.0
    other = evaluate_hasher(hasher, [[-3.0], [0.5]], ["a", "a"], ITEMS, LABELS, n_neighbors=(1, 2))
    assert other.precision == {1: 50.0, 2: 50.0}
    assert other.n_items == 5
    assert other.seconds.keys() == {"hash", "build", "search"}


def test_vectors_for_reranking_may_come_from_elsewhere():
    far = [[0.0], [9.0], [0.0], [9.0], [9.1]]  # item 4 is nearest to 3 now, not to 2
    ours = evaluate_hasher(Sign(), ITEMS, [0, 1, 2, 3, 3], query_vectors=far, n_neighbors=1)
    assert ours.precision == {1: 40.0}
    again = evaluate_hasher(
        Sign(), ITEMS, [0, 1, 2, 3, 3], ITEMS, [0, 1, 2, 3, 3],
        query_vectors=far, item_vectors=far, n_neighbors=1,
    )  # fmt: skip
    assert again.precision == {1: 100.0}  # everyone finds itself


def test_code_book_hashers_fill_by_sums():
    ours = evaluate_hasher(CodeBookSign(), ITEMS, LABELS, n_neighbors=1)
    assert (ours.fill, ours.n_probe) == ("sum", 1)
    assert evaluate_hasher(CodeBookSign(), ITEMS, LABELS, protocol="plain").fill == "none"
    assert evaluate_hasher(CodeBookSign(), ITEMS, LABELS, n_probe=2).n_probe == 2
    assert evaluate_hasher(ScoredSign(), ITEMS, LABELS).fill == "path"


@pytest.mark.parametrize("hasher", [Sign(), ScoredSign(), CodeBookSign()])
def test_large_sets_are_encoded_part_by_part(monkeypatch, hasher):
    whole = evaluate_hasher(hasher, ITEMS, LABELS, n_neighbors=(1, 3))
    monkeypatch.setattr(protocol, "_SCORES", 1)
    monkeypatch.setattr(
        protocol, "_chunks", lambda n, _: [slice(i, min(i + 2, n)) for i in range(0, n, 2)]
    )
    parts = evaluate_hasher(hasher, ITEMS, LABELS, n_neighbors=(1, 3))
    assert (parts.speedup, parts.precision) == (whole.speedup, whole.precision)


# -- an index --------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([(1, 1), (5, 1), (3, 2)]),
    same_set=st.booleans(),
    n_probe=st.sampled_from([1, 2]),
)
def test_an_index_gives_what_its_arrays_give(seed, size, same_set, n_probe):
    shape, scores, queries, wanted, buckets, items, labels = world(seed, *size, 1, same_set)
    settings = {"n_neighbors": (1, 3, 5), "n_probe": n_probe, "recall": True}
    expected = evaluate_arrays(
        queries, wanted, items, labels, item_bucket_ids=buckets, shape=shape, query_scores=scores,
        same_set=same_set, **settings,
    )  # fmt: skip
    names = 7 + 3 * np.arange(len(items))
    half = len(items) // 2
    index = HashIndex.build(buckets[:half], items[:half], names[:half], labels[:half], shape=shape)
    index.add(buckets[half:], items[half:], names[half:], labels[half:])
    encoded = Encoded(queries, shape.scores_to_bucket_ids(scores), scores, by_path=True)
    ours = evaluate_index(index, encoded, wanted, exclude=names if same_set else None, **settings)
    theirs = {**expected.to_dict(classes=True)}
    for timed in ("seconds", "milliseconds_per_query"):
        theirs.pop(timed)
    assert {key: ours.to_dict(classes=True)[key] for key in theirs} == theirs


def test_items_of_an_index_may_have_labels_of_any_kind_or_none():
    shape = CodeShape(width=2, depth=1)
    index = HashIndex.build([0, 0, 1], [[0.0], [1.0], [2.0]], [5, 7, 9], shape=shape)
    encoded = Encoded(np.zeros((1, 1), np.float32), np.zeros((1, 1), int), None, by_path=False)
    names = {5: "cat", 7: "dog", 9: "cat"}
    ours = evaluate_index(index, encoded, ["cat"], lambda ids: [names[i] for i in ids],
                          n_neighbors=(1, 2, 3))  # fmt: skip
    assert ours.precision == {1: 100.0, 2: 50.0, 3: pytest.approx(200 / 3)}
    assert ours.classes[1].labels.tolist() == ["cat"]
    some = evaluate_index(index, encoded, [4], lambda ids: [4, -1, 4], n_neighbors=2)
    assert (some.precision, some.nmi) == ({2: 50.0}, pytest.approx(0.0))
    with pytest.raises(ValueError, match="no item of the index has a label") as caught:
        evaluate_index(index, encoded, [0], lambda ids: [-1] * len(ids))
    assert caught.value.hint
    with pytest.raises(ValueError, match="exclude must be the ids of 1 items of the index"):
        evaluate_index(index, encoded, [0], lambda ids: [0] * len(ids), exclude=[8])


def test_result_is_frozen_and_can_be_written_as_json():
    ours = evaluate_hasher(Sign(), ITEMS, LABELS, n_neighbors=(2, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        ours.nmi = 1.0
    stored = json.loads(json.dumps(ours.to_dict(classes=True)))
    assert stored["precision"]["1"] == ours.precision[1]
    assert stored["classes"]["1"]["labels"] == ["a", "b"]
    assert "classes" not in ours.to_dict()
    assert str(ours).startswith("SUF@1 2.50, SUF@2 ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "own"}, "protocol='own' must be one of 'paper', 'plain'"),
        ({"fill": "all"}, "fill='all' must be one of 'path', 'sum', 'none'"),
        ({"n_neighbors": 0}, "n_neighbors=0 must be >= 1"),
        ({"n_neighbors": ()}, "n_neighbors is empty"),
        ({"n_probe": 0}, "n_probe=0 must be >= 1"),
        (
            {"query_scores": None, "query_bucket_ids": [0], "n_probe": 2},
            "n_probe=2 needs slot scores",
        ),
        ({"query_scores": None, "query_bucket_ids": [0], "fill": "sum"}, "fill='sum' needs scores"),
        ({"item_bucket_ids": [0, 2]}, "outside 0..1"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    settings = {
        "item_bucket_ids": [0, 1], "shape": CodeShape(width=2, depth=1),
        "query_scores": np.zeros((1, 1, 2)), **change,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message) as caught:
        evaluate_arrays([[0.0]], [0], [[0.0], [1.0]], [0, 1], **settings)
    assert "\n" not in str(caught.value)


def test_items_and_their_labels_belong_together():
    with pytest.raises(ValueError, match="item_labels must be given as well"):
        evaluate_hasher(Sign(), ITEMS, LABELS, ITEMS)
    with pytest.raises(ValueError, match="items must be given as well"):
        evaluate_hasher(Sign(), ITEMS, LABELS, None, LABELS)
    with pytest.raises(ValueError, match="query_vectors has 1 rows, must have 5"):
        evaluate_hasher(Sign(), ITEMS, LABELS, query_vectors=[[1.0]])
