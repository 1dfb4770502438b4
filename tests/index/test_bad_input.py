"""Bad input: what this index does, as a specification, and what its peers do, as a table.

Ours gives a typed error that names the rows, or a documented answer; never a wrong one. The
peers run in processes of their own, because some of them crash.
"""

import importlib.util
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hashcade import CodeShape, CorruptIndexError, HashIndex
from hashcade.index.storage import read_manifest

SHAPE = CodeShape(width=4, depth=1)
RNG = np.random.default_rng(0)
N, DIM = 200, 8
VECTORS = RNG.normal(size=(N, DIM)).astype(np.float32)
BUCKETS = np.arange(N) % 4
ALL = [[0, 1, 2, 3]]
PEERS = ("faiss", "hnswlib", "usearch")


def build(**changes):
    given = {"bucket_ids": BUCKETS, "vectors": VECTORS, **changes}
    return HashIndex.build(**given, shape=SHAPE)


def with_value(array, row, value):
    array = np.array(array, dtype=np.float64)
    array[row, 3] = value
    return array


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_values_that_are_no_numbers_are_refused_by_row(value):
    bad = with_value(VECTORS, [3, 17], value)
    with pytest.raises(ValueError, match="vectors has NaN or values beyond float32 in rows 3, 17"):
        build(vectors=bad)
    with pytest.raises(ValueError, match="vectors has NaN or values beyond float32 in rows 3, 17"):
        build().search(bad, bucket_ids=BUCKETS)
    with pytest.raises(ValueError, match="row 0"):
        build().search(bad[3], bucket_ids=[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": VECTORS[:5]}, "bucket_ids has 200 rows, vectors has 5"),
        ({"vectors": VECTORS[0]}, r"vectors has shape \(8,\), must be \(n, dim\)"),
        ({"vectors": np.empty((N, 0))}, "dim >= 1"),
        ({"vectors": VECTORS.astype(str)}, "vectors has dtype <U32, must be real numbers"),
        ({"vectors": VECTORS.astype(complex)}, "complex128, must be real"),
        ({"vectors": VECTORS.astype(object)}, "object, must be real"),
        ({"vectors": [[1.0], [1.0, 2.0]]}, "not a rectangular array"),
        ({"bucket_ids": BUCKETS + 1}, "outside 0..3 in rows 3, 7, 11, .* and 40 more"),
        ({"bucket_ids": BUCKETS - 1}, "outside 0..3 in rows 0, 4"),
        ({"bucket_ids": BUCKETS * 1.0}, "bucket_ids has dtype float64, must be integers"),
        ({"bucket_ids": np.stack([BUCKETS] * 2, 1)}, "2 columns, shape.sparsity=1"),
        ({"bucket_ids": np.empty((N, 0), int)}, "at least one bucket"),
        ({"ids": [7, 8, 7, 8, *range(9, N + 5)]}, "ids has ids 7, 8 more than once"),
        ({"ids": range(-1, N - 1)}, "0..2.*63-1, is not in row 0"),
        ({"ids": range(3)}, "ids has 3 entries, vectors has 200 rows"),
        ({"ids": np.arange(N) / 2}, "ids has dtype float64"),
        ({"labels": range(3)}, "labels has 3 entries, vectors has 200 rows"),
        ({"labels": ["cat"] * N}, "labels has dtype <U3, must be integers"),
    ],
)
def test_a_bad_build_says_why(change, message):
    with pytest.raises(ValueError, match=message):
        build(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": np.zeros((1, 9))}, "vectors has dim 9, the index has dim 8"),
        ({"vectors": np.zeros((1, 1, 8))}, r"shape \(1, 1, 8\)"),
        ({"vectors": [["a"] * 8]}, "must be real numbers"),
        ({"bucket_ids": [[4]]}, "outside 0..3 in row 0"),
        ({"bucket_ids": [[0.5]]}, "must be integers"),
        ({"bucket_ids": [[0], [1]]}, "bucket_ids has 2 rows, vectors has 1"),
        ({"bucket_ids": None}, "one of bucket_ids and scores says where to look, got neither"),
        ({"scores": np.zeros((1, 1, 4))}, "got both"),
        ({"bucket_ids": None, "scores": np.zeros((1, 2, 4))}, r"\(n=1, depth=1, width=4\)"),
        ({"bucket_ids": None, "scores": [[[0, 0, np.nan, 0]]]}, r"NaN or \+inf in row 0"),
        ({"bucket_ids": None, "scores": [[[0, 0, np.inf, 0]]]}, r"NaN or \+inf in row 0"),
        ({"n_neighbors": 0}, "n_neighbors=0 must be >= 1"),
        ({"n_neighbors": -1}, "n_neighbors=-1 must be >= 1"),
        ({"n_neighbors": 2.5}, "n_neighbors=2.5 must be an integer"),
        ({"n_probe": 0}, "n_probe=0 must be >= 1"),
        ({"max_candidates": 0}, "max_candidates=0 must be >= 1"),
        ({"fill": "up"}, "fill='up' must be one of 'path', 'none'"),
        ({"metric": "cosine"}, "metric='cosine' needs vectors of unit length"),
        ({"metric": "l1"}, "metric='l1' must be one of 'euclidean', 'inner_product', 'cosine'"),
        ({"filter_ids": [1], "filter_budget": 0}, "filter_budget=0 must be >= 1"),
        ({"metric": ["euclidean"]}, "metric=.* must be one of"),
        ({"filter_ids": [0.5]}, "filter_ids has dtype float64, must be bool or integers"),
        ({"filter_ids": [[1]]}, r"filter_ids has shape \(1, 1\)"),
        ({"exclude_self": [1, 2]}, "exclude_self has 2 entries, vectors has 1 rows"),
        ({"threads": 0}, "threads=0 must be >= 1"),
    ],
)
def test_a_bad_search_says_why(change, message):
    index = build()
    given = {"vectors": VECTORS[:1], "bucket_ids": ALL, **change}
    with pytest.raises(ValueError, match=message):
        index.search(given.pop("vectors"), **given)


def test_more_neighbours_than_items_are_padded():
    result = build().search(VECTORS[:1], bucket_ids=ALL, n_neighbors=N + 5)
    assert sorted(result.ids[0][:N]) == list(range(N))
    assert result.ids[0][N:].tolist() == [-1] * 5
    assert np.isposinf(result.distances[0][N:]).all()


def test_an_empty_index_answers_with_nothing():
    index = HashIndex.build([], np.empty((0, DIM)), shape=SHAPE)
    result = index.search(VECTORS[:2], bucket_ids=[0, 1], n_neighbors=3)
    assert (result.ids == -1).all()
    assert result.candidates.tolist() == [0, 0]
    scores = np.zeros((2, 1, 4))
    assert (index.search(VECTORS[:2], scores=scores, n_probe=2).ids == -1).all()


def test_many_kinds_of_arrays_are_the_same_to_it():
    index = build()
    good = index.search(VECTORS[:9], bucket_ids=BUCKETS[:9])
    frozen = VECTORS[:9].copy()
    frozen.flags.writeable = False
    wide = np.zeros((9, 2 * DIM), np.float32)
    wide[:, ::2] = VECTORS[:9]
    for queries in (
        VECTORS[:9].astype(np.float64), VECTORS[:9].tolist(), np.asfortranarray(VECTORS[:9]),
        VECTORS[:9].astype(">f4"), frozen, wide[:, ::2],
    ):  # fmt: skip
        for buckets in (BUCKETS[:9].astype(np.uint8), BUCKETS[:9].tolist()):
            np.testing.assert_array_equal(index.search(queries, bucket_ids=buckets).ids, good.ids)
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = torch.tensor(VECTORS[:9])
        np.testing.assert_array_equal(index.search(tensor, bucket_ids=BUCKETS[:9]).ids, good.ids)


# -- the table ------------------------------------------------------------------------------------

CASES = [
    "NaN in items", "inf in items", "NaN in queries", "inf in queries", "wrong dimension",
    "n > size", "empty index", "duplicate id", "truncated file", "50 flipped bytes",
    "wrong dtype", "n = 0",
]  # fmt: skip

PEER = textwrap.dedent(
    """
    import json, sys
    import numpy as np
    peer, case, path = sys.argv[1:]
    rng = np.random.default_rng(0)
    n, dim = 200, 8
    vectors = rng.normal(size=(n, dim)).astype(np.float32)
    ids = np.arange(n)

    class Faiss:
        def __init__(self):
            import faiss
            self.faiss = faiss
            self.index = faiss.IndexIDMap2(faiss.IndexFlatL2(dim))
        def add(self, v, i): self.index.add_with_ids(v, i)
        def search(self, q, k): return self.index.search(q, k)[1]
        def save(self): self.faiss.write_index(self.index, path)
        def load(self): self.index = self.faiss.read_index(path)

    class Hnswlib:
        def __init__(self):
            import hnswlib
            self.hnswlib = hnswlib
            self.index = hnswlib.Index("l2", dim)
            self.index.init_index(1000, random_seed=0)
            self.index.set_ef(400)
        def add(self, v, i): self.index.add_items(v, i)
        def search(self, q, k): return self.index.knn_query(q, k)[0]
        def save(self): self.index.save_index(path)
        def load(self):
            self.index = self.hnswlib.Index("l2", dim)
            self.index.load_index(path)
            self.index.set_ef(400)

    class Usearch:
        def __init__(self):
            from usearch.index import Index
            self.kind = Index
            self.index = Index(ndim=dim, metric="l2sq", dtype="f32")
        def add(self, v, i): self.index.add(i, v)
        def search(self, q, k): return self.index.search(q, k).keys
        def save(self): self.index.save(path)
        def load(self): self.index = self.kind.restore(path)

    def made():
        index = {"faiss": Faiss, "hnswlib": Hnswlib, "usearch": Usearch}[peer]()
        if case != "empty index":
            v = vectors.copy()
            if case == "NaN in items": v[3, 3] = np.nan
            if case == "inf in items": v[3, 3] = np.inf
            index.add(v, ids)
        return index

    def run():
        index = made()
        q, k = vectors[:2].copy(), 3
        if case == "NaN in queries": q[0, 3] = np.nan
        if case == "inf in queries": q[0, 3] = np.inf
        if case == "wrong dimension": q = rng.normal(size=(2, dim + 3)).astype(np.float32)
        if case == "wrong dtype": q = np.array([["a"] * dim] * 2)
        if case == "n > size": k = n + 50
        if case == "n = 0": k = 0
        if case == "duplicate id":
            index.add(vectors[5:6] + 100, ids[5:6])
        if case in ("truncated file", "50 flipped bytes"):
            index.save()
            data = bytearray(open(path, "rb").read())
            if case == "truncated file":
                data = data[: len(data) * 2 // 3]
            else:
                for at in rng.integers(0, len(data), 50):
                    data[at] ^= int(rng.integers(1, 256))
            open(path, "wb").write(data)
            index.load()
            whole = made().search(vectors, 3)
            return "loads and answers " + (
                "as before" if np.array_equal(index.search(vectors, 3), whole) else "wrongly"
            )
        if case == "duplicate id":
            found = index.search(vectors[5:6], 1)[0, 0], index.search(vectors[5:6] + 100, 1)[0, 0]
            return "accepts it, then finds " + ("both" if found == (5, 5) else "one of them")
        found = np.asarray(index.search(q, k))
        if case == "NaN in items":
            return "accepts it; the item is " + (
                "found" if (index.search(vectors[3:4], 1) == 3).any() else "lost")
        shape = list(found.shape)
        return f"answers {shape}" + ("" if found.size == 0 else f", first {int(found.flat[0])}")

    try:
        print(json.dumps(run()))
    except BaseException as error:
        print(json.dumps(f"{type(error).__name__}"))
    """
)


def peer_answer(peer, case, path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEER, peer, case, str(path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if done.returncode < 0:
        return f"crashes (signal {-done.returncode})"
    if not done.stdout.strip():
        return f"exits with {done.returncode}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def our_answer(case, path):
    """What ours does; everything that is not an error is checked to be the documented answer."""
    try:
        if case.endswith("in items"):
            build(vectors=with_value(VECTORS, 3, np.nan if "NaN" in case else np.inf))
        elif case.endswith("in queries"):
            bad = with_value(VECTORS[:2], 0, np.nan if "NaN" in case else np.inf)
            build().search(bad, bucket_ids=ALL * 2)
        elif case == "wrong dimension":
            build().search(np.zeros((2, DIM + 3)), bucket_ids=ALL * 2)
        elif case == "wrong dtype":
            build().search([["a"] * DIM] * 2, bucket_ids=ALL * 2)
        elif case == "n = 0":
            build().search(VECTORS[:2], bucket_ids=ALL * 2, n_neighbors=0)
        elif case == "n > size":
            result = build().search(VECTORS[:2], bucket_ids=ALL * 2, n_neighbors=N + 50)
            assert (np.sort(result.ids, axis=1)[:, 50:] == np.arange(N)).all()
            assert (result.ids[:, N:] == -1).all()
            return "all items, then -1"
        elif case == "empty index":
            index = HashIndex.build([], np.empty((0, DIM)), shape=SHAPE)
            assert (index.search(VECTORS[:2], bucket_ids=ALL * 2).ids == -1).all()
            return "-1 only"
        elif case == "duplicate id":
            build().add([0], VECTORS[:1], ids=[5])
        else:
            index = build()
            index.save(path)
            (name,) = read_manifest(path).files()
            data = bytearray((path / name).read_bytes())
            rng = np.random.default_rng(0)
            if case == "truncated file":
                data = data[: len(data) * 2 // 3]
            else:
                for at in rng.integers(0, len(data), 50):
                    data[at] ^= int(rng.integers(1, 256))
            (path / name).write_bytes(data)
            HashIndex.load(path).search(VECTORS, bucket_ids=ALL * N)
    except (ValueError, CorruptIndexError) as error:
        return f"{type(error).__name__}: {str(error).replace(str(path), 'index')}"
    return "NO ERROR"


@pytest.mark.parametrize("peers", [(), pytest.param(PEERS, marks=pytest.mark.slow)], ids=str)
def test_the_table(peers, tmp_path):
    """Written to be read: run with -s. Ours must be an error or the documented answer."""
    peers = [p for p in peers if importlib.util.find_spec(p)]
    rows = []
    for number, case in enumerate(CASES):
        ours = our_answer(case, tmp_path / f"ours{number}")
        assert ours != "NO ERROR", case
        theirs = [peer_answer(p, case, tmp_path / f"{p}{number}") for p in peers]
        rows.append([case, ours, *theirs])
    print()
    for row in [["case", "ours", *peers], *rows]:
        print(" | ".join(row))
    by_case = {row[0]: row[1] for row in rows}
    assert by_case["NaN in items"].endswith("in row 3")
    assert by_case["duplicate id"].startswith("ValueError: id 5 already in the index")


@pytest.mark.parametrize("largest", [2**63 - 1, 2**63 - 2])
def test_ids_that_nobody_chose_do_not_run_over(largest):
    index = HashIndex.build([0], [[0.0]], [largest], shape=CodeShape(width=4, depth=1))
    said = rf"the next free id is {largest + 1}, with 2 items ids would go beyond 2\*\*63-1"
    with pytest.raises(ValueError, match=said):
        index.add([0, 0], [[1.0], [2.0]])
    assert len(index) == 1
    if largest + 1 < 2**63:
        index.add([0], [[1.0]])
        assert largest + 1 in index
    index.add([0, 0], [[1.0], [2.0]], [3, 4])
    assert 4 in index
