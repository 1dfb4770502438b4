"""Vectors stored as float16: rounded once, and exact for what they were rounded to."""

import tempfile

import numpy as np
import pytest
from factories import vectors_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hashcade import CodeShape, HashIndex

SHAPE = CodeShape(width=4, depth=1)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 130), st.sampled_from(["plain", "ties", "small"]),
    st.sampled_from([None, "int8"]), st.sampled_from([1, 2, 9]), st.booleans(),
)  # fmt: skip
def test_answers_are_those_of_the_rounded_vectors(seed, dim, kind, first_pass, n, filtered):
    rng = np.random.default_rng(seed)
    kinds = {"small": lambda: rng.normal(size=(1500, dim)) * 1e-7}  # below what float16 has in full
    vectors = kinds[kind]() if kind in kinds else vectors_of(rng, 1500, dim, kind)
    rounded = vectors.astype(np.float16)
    buckets = rng.integers(0, 4, 1500)
    halved = HashIndex.build(
        buckets[:1400], vectors[:1400], shape=SHAPE, dtype="float16", first_pass=first_pass
    )
    full = HashIndex.build(buckets[:1400], rounded[:1400], shape=SHAPE)
    for index, more in ((halved, vectors), (full, rounded)):
        index.add(buckets[1400:], more[1400:])
        index.remove(np.arange(0, 1500, 7))
    with tempfile.TemporaryDirectory() as folder:  # mapped, where codes are always used
        halved.save(folder)
        stored = HashIndex.load(folder)
        stored.verify()
    queries = rng.normal(size=(n, dim)).astype(np.float32)
    where = rng.integers(0, 4, (n, 2))
    allowed = np.arange(0, 1500, 2) if filtered else None
    for metric in ("euclidean", "inner_product"):
        options = {"bucket_ids": where, "metric": metric, "filter_ids": allowed, "fill": "none"}
        a, b, c = (index.search(queries, **options) for index in (halved, full, stored))
        for field in ("ids", "distances", "candidates", "truncated"):
            assert getattr(a, field).tobytes() == getattr(b, field).tobytes(), (metric, field)
            assert getattr(c, field).tobytes() == getattr(b, field).tobytes(), (metric, field)


@pytest.mark.parametrize("mmap", [True, False])
def test_it_is_stored(tmp_path, mmap):
    vectors = np.random.default_rng(0).normal(size=(300, 6))
    index = HashIndex.build(np.arange(300) % 4, vectors, shape=SHAPE, dtype="float16")
    index.save(tmp_path / "a")
    loaded = HashIndex.load(tmp_path / "a", mmap=mmap)
    assert loaded.dtype == "float16"
    assert loaded.stats()["bytes_vectors"] == 300 * 6 * 2
    expected = vectors[7].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(loaded.item(7)["vector"], expected)
    loaded.add([1], vectors[:1])
    loaded.compact()
    loaded.save(tmp_path / "a")
    HashIndex.load(tmp_path / "a", mmap=mmap).verify()


def test_what_does_not_fit_is_refused():
    index = HashIndex.build([0], [[1.0, 2.0]], shape=SHAPE, dtype="float16")
    with pytest.raises(ValueError, match=r"beyond float16 \(65504\) in row 1"):
        index.add([0, 0], [[1.0, 2.0], [70000.0, 0.0]])
    with pytest.raises(ValueError, match="float16 is not for vectors of unit length"):
        HashIndex.build([0], [[1.0, 2.0]], shape=SHAPE, dtype="float16", unit_length=True)
    with pytest.raises(ValueError, match="dtype='float64' must be one of"):
        HashIndex.build([0], [[1.0, 2.0]], shape=SHAPE, dtype="float64")
