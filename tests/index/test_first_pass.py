"""The first pass over int8 codes: it never drops a neighbour, so results are the same with it."""

import tempfile
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from factories import assert_same, vectors_of, worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from hashcade import CodeShape, HashIndex
from hashcade.index import METRICS, NoCheck, encode_int8, survivors

SIZES = ["plain", "ties", "far", "tiny", "huge", "denormal", "mixed", "zero", "close"]


def make_vectors(rng, n, dim, kind):
    """Vectors of every size that float32 has."""
    if kind in ("plain", "ties", "far"):
        return vectors_of(rng, n, dim, kind)
    plain = rng.normal(size=(n, dim))
    if kind == "mixed":
        plain *= 10.0 ** rng.integers(-44, 37, (n, 1))
    elif kind == "close":  # nearer to each other than codes can tell
        plain = 1.0 + 1e-6 * plain
    else:
        plain *= {"tiny": 1e-30, "huge": 1e37, "denormal": 1e-44, "zero": 0.0}[kind]
    return plain.astype(np.float32)


def as_fractions(vectors):
    return [[Fraction(float(value)) for value in row] for row in vectors]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from(SIZES))
def test_a_bound_is_never_less_than_the_error(seed, dim, kind):
    vectors = make_vectors(np.random.default_rng(seed), 5, dim, kind)
    codes, bounds = encode_int8(vectors)
    for vector, code, (scale, error, square) in zip(
        as_fractions(vectors), codes.tolist(), as_fractions(bounds), strict=True
    ):
        rest = sum((x - scale * c) ** 2 for x, c in zip(vector, code, strict=True))
        assert rest <= error**2
        assert square == sum(c * c for c in code)
        assert error**2 <= sum(x * x for x in vector) * 2 + Fraction(1e-40)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 200), st.integers(1, 60), st.sampled_from(SIZES),
    st.sampled_from(sorted(METRICS)), st.integers(1, 12),
)  # fmt: skip
def test_the_nearest_are_among_the_survivors(seed, dim, n, kind, metric, n_neighbors):
    rng = np.random.default_rng(seed)
    vectors = make_vectors(rng, n, dim, kind)
    query = make_vectors(rng, 1, dim, kind)[0]
    if metric == "cosine":
        if not (np.abs(vectors).max(axis=1) > 1e-30).all() or not query.any():
            return
        wide = vectors.astype(np.float64)
        vectors = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    rows = survivors(*encode_int8(vectors), query, n_neighbors, metric)
    assert (np.diff(rows) > 0).all()
    wide, exact = as_fractions(vectors), as_fractions([query])[0]
    if metric == "euclidean":
        keys = [sum((x - q) ** 2 for x, q in zip(row, exact, strict=True)) for row in wide]
    else:
        keys = [-sum(x * q for x, q in zip(row, exact, strict=True)) for row in wide]
    limit = sorted(keys)[min(n_neighbors, n) - 1]
    assert {row for row, key in enumerate(keys) if key <= limit} <= set(rows.tolist())


def test_few_survive():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(1000, 64)).astype(np.float32)
    coded = encode_int8(vectors)
    counts = [len(survivors(*coded, query, 10)) for query in vectors[:50]]
    assert 10 <= np.mean(counts) < 40


def from_disk(index):
    """The same in a mapped file, where codes are always used."""
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        return HashIndex.load(folder)


class Elsewhere(NoCheck):
    """Vectors are NaN here until they are asked for."""

    stays_apart = True

    def __init__(self, segment):
        self._all = segment.vectors
        self.here = np.full_like(segment.vectors, np.nan)
        self.vectors_here = np.zeros(segment.n_entries, dtype=bool)

    def vectors(self, entries):
        assert (np.diff(entries) > 0).all()
        self.here[entries] = self._all[entries]
        self.vectors_here[entries] = True


def elsewhere(index):
    """The same without its vectors."""
    (view,) = index._snapshot.views
    check = Elsewhere(view.segment)
    segment = replace(view.segment, vectors=check.here.view(), check=check)
    return HashIndex.from_segment(
        segment, shape=index.shape, next_id=index.next_id, unit_length=index.unit_length
    )


def test_few_vectors_are_asked_for():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2000, 64)).astype(np.float32)
    shape = CodeShape(width=2, depth=1)
    index = HashIndex.build(np.arange(2000) % 2, vectors, shape=shape, first_pass="int8")
    remote = elsewhere(index)
    query = {"vectors": vectors[:1], "bucket_ids": [[0, 1]]}
    assert remote.search(**query).ids.tolist() == index.search(**query).ids.tolist()
    check = remote._snapshot.views[0].segment.check
    # Both buckets, the second bounded by the first.
    assert 10 <= check.vectors_here.sum() < 80
    before = check.vectors_here.sum()
    remote.search(**query)
    remote.item(3)
    assert check.vectors_here.sum() <= before + 1


@settings(max_examples=40, deadline=None)
@given(worlds(), st.data())
def test_results_are_those_without_it(drawn, data):
    world, index, rng, kind = drawn
    index.set_first_pass("int8")
    index = from_disk(index)
    n = data.draw(st.integers(1, 9))
    queries = vectors_of(rng, n, world.dim, kind)
    where = rng.integers(0, world.shape.n_buckets, (n, data.draw(st.integers(1, 3))))
    options = {
        "n_neighbors": data.draw(st.integers(1, 12)),
        "metric": data.draw(st.sampled_from(["euclidean", "inner_product"])),
        "fill": data.draw(st.sampled_from(["path", "none"])),
    }
    own = rng.integers(0, 60, n) if data.draw(st.booleans()) else None
    exclude = False if own is None else own
    result = index.search(queries, bucket_ids=where, exclude_self=exclude, **options)
    assert_same(result, world.expected(queries, bucket_ids=where, own=own, **options))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 200), st.sampled_from(SIZES), st.integers(1, 3),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_same_bits_with_and_without(seed, dim, kind, sparsity, filtered, unit):
    """Buckets of a hundred entries, several segments, removals and filters, all metrics."""
    rng = np.random.default_rng(seed)
    shape = CodeShape(width=4, depth=1, sparsity=sparsity)
    vectors = make_vectors(rng, 400, dim, kind)
    if unit and not (np.abs(vectors).max(axis=1) > 0).all():
        return
    buckets = rng.integers(0, shape.n_buckets, (400, sparsity))
    plain = HashIndex.build(buckets[:300], vectors[:300], shape=shape, unit_length=unit)
    coded = HashIndex.build(
        buckets[:300], vectors[:300], shape=shape, unit_length=unit, first_pass="int8"
    )
    remote = elsewhere(coded)
    for index in (plain, coded, remote):
        index.add(buckets[300:], vectors[300:])
        index.remove(np.arange(0, 400, 7))
    stored = from_disk(coded)
    queries = np.concatenate([make_vectors(rng, 4, dim, kind), vectors[1:6]])
    if unit:
        queries = queries[np.abs(queries).max(axis=1) > 0]
    where = rng.integers(0, shape.n_buckets, (len(queries), 2))
    allowed = rng.permutation(400)[:300] if filtered else None
    for metric in METRICS:
        if metric == "cosine" and not unit:
            continue
        for limit in (None, 60):
            options = {
                "bucket_ids": where, "metric": metric, "filter_ids": allowed,
                "max_candidates": limit, "fill": "none" if filtered else "path",
            }  # fmt: skip
            a = plain.search(queries, **options)
            for index in (coded, stored, remote):
                b = index.search(queries, **options)
                for field in ("ids", "distances", "candidates", "truncated"):
                    one, other = getattr(a, field), getattr(b, field)
                    np.testing.assert_array_equal(one, other, err_msg=f"{metric} {field}")
                    assert one.tobytes() == other.tobytes()


def saved(tmp_path, n=500, dim=24):
    rng = np.random.default_rng(3)
    index = HashIndex.build(
        rng.integers(0, 4, n), rng.normal(size=(n, dim)),
        shape=CodeShape(width=4, depth=1), first_pass="int8",
    )  # fmt: skip
    index.save(tmp_path / "index")
    return index, rng.normal(size=(20, dim)).astype(np.float32)


@pytest.mark.parametrize("mmap", [True, False])
def test_it_is_stored(tmp_path, mmap):
    index, queries = saved(tmp_path)
    loaded = HashIndex.load(tmp_path / "index", mmap=mmap)
    assert loaded.first_pass == "int8"
    where = np.tile(np.arange(4), (20, 1))
    a, b = (i.search(queries, bucket_ids=where, n_neighbors=30) for i in (index, loaded))
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.distances, b.distances)
    loaded.add([1], np.ones((1, 24)))
    loaded.remove([7])
    loaded.save(tmp_path / "index")
    again = HashIndex.load(tmp_path / "index", mmap=mmap)
    again.verify()
    again.set_first_pass(None)
    again.save(tmp_path / "index")
    smaller = HashIndex.load(tmp_path / "index", mmap=mmap)
    smaller.verify()
    assert smaller.first_pass is None
    c, d = (i.search(queries, bucket_ids=where, n_neighbors=30) for i in (loaded, smaller))
    np.testing.assert_array_equal(c.ids, d.ids)
    np.testing.assert_array_equal(c.distances, d.distances)


def test_an_unknown_first_pass_is_refused():
    index = HashIndex.build([0], [[1.0]], shape=CodeShape(width=2, depth=1))
    with pytest.raises(ValueError, match="first_pass='int4' must be one of 'int8'"):
        index.set_first_pass("int4")
