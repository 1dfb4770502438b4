"""Metric cosine: vectors are scaled once, and ranked by 1 - cosine."""

import numpy as np
import pytest
from factories import KINDS, World, assert_same, vectors_of
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, HashIndex


def unit(vectors):
    norms = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    norms[np.abs(norms - 1) < 1e-6] = 1
    return (vectors / norms).astype(np.float32)


def without_zeros(vectors):
    vectors[~vectors.any(axis=1), 0] = 1
    return vectors


@given(st.data())
def test_it_agrees_with_the_plain_twin(data):
    dim = data.draw(st.sampled_from([1, 3, 8, 20, 64]))
    kind = data.draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = CodeShape(width=3, depth=1, sparsity=data.draw(st.integers(1, 2)))
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=3))
    n = sum(sizes)
    scale = data.draw(st.sampled_from([1e-20, 1.0, 1e15]))
    vectors = without_zeros(vectors_of(rng, n, dim, kind)) * np.float32(scale)
    buckets = rng.integers(0, 3, (n, shape.sparsity))
    index = HashIndex.build(buckets[: sizes[0]], vectors[: sizes[0]], shape=shape, unit_length=True)
    index.add(buckets[sizes[0] :], vectors[sizes[0] :])
    world = World(shape, dim)
    for i, (b, v) in enumerate(zip(buckets, unit(vectors), strict=True)):
        world.items[i] = (sorted(set(b.tolist())), v, 0)
    queries = without_zeros(vectors_of(rng, 5, dim, kind))
    queries *= np.float32(data.draw(st.sampled_from([1e-30, 1e-3, 1.0, 1e30])))
    asked = rng.integers(0, 3, (5, 2))
    options = {"n_neighbors": data.draw(st.integers(1, 30)), "metric": "cosine"}
    result = index.search(queries, bucket_ids=asked, **options)
    assert_same(result, world.expected(queries, bucket_ids=asked, **options))


def test_distances_are_those_of_directions():
    index = HashIndex.build(
        [0, 0, 0, 0], [[5.0, 0.0], [0.0, 1e-3], [-2.0, 0.0], [3.0, 3.0]],
        shape=CodeShape(width=1, depth=1), unit_length=True,
    )  # fmt: skip
    assert index.unit_length
    result = index.search([[1e6, 0.0]], bucket_ids=[0], n_neighbors=5, metric="cosine")
    assert result.ids.tolist() == [[0, 3, 1, 2, -1]]
    np.testing.assert_allclose(result.distances, [[0, 1 - 0.5**0.5, 1, 2, np.inf]], rtol=1e-6)


def test_no_distance_is_negative_and_an_item_is_next_to_itself():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2000, 24)).astype(np.float32)
    index = HashIndex.build(
        np.zeros(2000, int), vectors, shape=CodeShape(width=1, depth=1), unit_length=True
    )
    result = index.search(vectors, bucket_ids=np.zeros((2000, 1), int), n_neighbors=1,
                          metric="cosine")  # fmt: skip
    assert (result.ids.ravel() == np.arange(2000)).all()
    assert ((result.distances >= 0) & (result.distances < 1e-6)).all()


def test_scaling_again_changes_nothing():
    rng = np.random.default_rng(1)
    shape = CodeShape(width=1, depth=1)
    vectors = (rng.normal(size=(5000, 7)) * 40).astype(np.float32)
    index = HashIndex.build(np.zeros(5000, int), vectors, shape=shape, unit_length=True)
    once = index.checked_items(np.zeros(5000, int), vectors)
    twice = index.checked_items(np.zeros(5000, int), once.vectors)
    np.testing.assert_array_equal(once.vectors, twice.vectors)
    np.testing.assert_array_equal(once.vectors, [index.item(i)["vector"] for i in range(5000)])
    np.testing.assert_array_equal(once.vectors, unit(vectors))


def test_a_vector_of_zeros_has_no_direction_and_is_named():
    shape = CodeShape(width=1, depth=1)
    with pytest.raises(ValueError, match="vectors has only zeros in row 1"):
        HashIndex.build([0, 0], [[1.0, 0.0], [0.0, 0.0]], shape=shape, unit_length=True)
    index = HashIndex.build([0], [[1.0, 0.0]], shape=shape, unit_length=True)
    for change in (index.add, lambda *given: index.upsert([0, 1], *given)):
        with pytest.raises(ValueError, match="vectors has only zeros in row 0"):
            change([0, 0], [[0.0, 0.0], [1.0, 0.0]])
    assert len(index) == 1
    with pytest.raises(ValueError, match="vectors has only zeros in row 2"):
        index.search([[1, 0], [0, 1], [0, 0]], bucket_ids=[0, 0, 0], metric="cosine")
    assert index.search([[0.0, 0.0]], bucket_ids=[0]).ids[0, 0] == 0  # other metrics do not mind


def test_it_is_stored_and_needs_an_index_that_was_built_for_it(tmp_path):
    shape = CodeShape(width=1, depth=1)
    plain = HashIndex.build([0], [[1.0, 0.0]], shape=shape)
    with pytest.raises(ValueError, match="needs vectors of unit length") as raised:
        plain.search([[1.0, 0.0]], bucket_ids=[0], metric="cosine")
    assert "unit_length=True" in raised.value.hint
    index = HashIndex.build([0], [[2.0, 0.0]], shape=shape, unit_length=True)
    index.save(tmp_path)
    loaded = HashIndex.load(tmp_path)
    loaded.add([0], [[0.0, 7.0]])
    loaded.compact()
    assert loaded.item(1)["vector"].tolist() == [0.0, 1.0]
    result = loaded.search([[0.0, 0.5]], bucket_ids=[0], n_neighbors=2, metric="cosine")
    assert result.ids.tolist() == [[1, 0]]
    assert result.distances.tolist() == [[0.0, 1.0]]
