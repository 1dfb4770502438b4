"""Small sets of items, made by hypothesis or by a seed, and the slow answer to every search."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from oracles import reference_search

from hashcade import CodeShape, HashIndex


@dataclass
class World:
    """Items from id to (buckets, vector, label), in the order in which they came."""

    shape: CodeShape
    dim: int
    items: dict = field(default_factory=dict)

    def arrays(self):
        ids = list(self.items)
        buckets = [list(self.items[i][0]) for i in ids]
        vectors = np.array([self.items[i][1] for i in ids], np.float32).reshape(-1, self.dim)
        return ids, buckets, vectors

    def expected(self, queries, *, bucket_ids=None, scores=None, allowed=None, own=None, **options):
        """What ``search`` must return: distances, ids, candidates, truncated."""
        ids, buckets, vectors = self.arrays()
        rows = [
            reference_search(
                ids, buckets, vectors, self.shape, query,
                bucket_ids=None if bucket_ids is None else bucket_ids[q],
                scores=None if scores is None else scores[q],
                allowed=allowed, own=-1 if own is None else int(own[q]), **options,
            )[:4]
            for q, query in enumerate(queries)
        ]  # fmt: skip
        return tuple(map(list, zip(*rows, strict=True)))


def assert_same(result, expected):
    distances, ids, candidates, truncated = expected
    np.testing.assert_array_equal(result.ids, ids)
    np.testing.assert_array_equal(result.distances, np.array(distances, np.float32))
    np.testing.assert_array_equal(result.candidates, candidates)
    np.testing.assert_array_equal(result.truncated, truncated)
    assert result.ids.dtype == np.int64
    assert result.distances.dtype == np.float32
    for row in result.ids:  # never an item twice
        found = row[row >= 0]
        assert len(set(found.tolist())) == len(found)


def vectors_of(rng, n, dim, kind):
    """Vectors with many ties and duplicates (small integers), or with none to speak of."""
    if kind == "ties":
        return rng.integers(-1, 2, (n, dim)).astype(np.float32)
    if kind == "far":  # far from the origin: a difference of squares would lose everything
        return (1000 + rng.normal(size=(n, dim))).astype(np.float32)
    return rng.normal(size=(n, dim)).astype(np.float32)


KINDS = ["ties", "far", "plain"]


@st.composite
def worlds(draw, max_items=40):
    """Draw a world, its index (built in one or several steps, some removed) and a generator."""
    width = draw(st.integers(1, 5))
    shape = CodeShape(
        width=width, depth=draw(st.integers(1, 3)), sparsity=draw(st.integers(1, min(width, 3)))
    )
    dim = draw(st.sampled_from([1, 3, 8, 13, 20]))
    kind = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    world = World(shape, dim)
    few = draw(st.booleans())  # few buckets are occupied, or many
    names = iter(rng.permutation(4 * max_items + 4).tolist())
    index = None
    for n in draw(st.lists(st.integers(0, max_items), min_size=1, max_size=3)):
        vectors = vectors_of(rng, n, dim, kind)
        high = max(1, shape.n_buckets // 4) if few else shape.n_buckets
        buckets = rng.integers(0, high, (n, shape.sparsity))
        ids = [next(names) for _ in range(n)] if n <= max_items // 3 or index is None else None
        if index is None:
            index = HashIndex.build(buckets, vectors, ids, shape=shape)
        else:
            if ids is None:
                ids = list(range(index.next_id, index.next_id + n))
                index.add(buckets, vectors)
            else:
                ids = [i for i in ids if i not in world.items]
                buckets, vectors = buckets[: len(ids)], vectors[: len(ids)]
                index.add(buckets, vectors, ids)
        for i, b, v in zip(ids, buckets, vectors, strict=True):
            world.items[i] = (sorted(set(b.tolist())), v, 0)
        gone = [i for i in world.items if rng.random() < 0.2] if draw(st.booleans()) else []
        index.remove(gone)
        for i in gone:
            del world.items[i]
    if draw(st.booleans()):
        index.compact()
    return world, index, rng, kind
