"""Library, command line and scikit-learn adapter look into the same buckets."""

import json

import numpy as np
import pytest
from cli_factories import make_embeddings

from hashcade import Hasher, HashTable
from hashcade.learn.encoder import Encoder
from hashcade.sklearn import HashNeighborsTransformer

N_NEIGHBORS = 7


@pytest.fixture(
    scope="module",
    params=[
        (assignment, sparsity, several)
        for assignment in ("prototype", "codebook", "path")
        for sparsity in (1, 2)
        for several in (False, True)
    ],
    ids=lambda param: f"{param[0]}-{param[1]}-{'segments' if param[2] else 'segment'}",
)
def stored(request, tmp_path_factory):
    """An adapter with a fitted table, the same table on disk, and queries."""
    assignment, sparsity, several = request.param
    folder = tmp_path_factory.mktemp("rule")
    X, y = make_embeddings(220, n_classes=8)
    # Noisy queries: some of them go to other buckets than the items of their class.
    queries = X[:40] + 2 * np.random.default_rng(5).normal(size=(40, 16)).astype(np.float32)
    hasher = Hasher(
        width=4, sparsity=sparsity, assignment=assignment, steps=12, hidden_size=16, verbose=False
    )
    adapter = HashNeighborsTransformer(hasher=hasher, n_neighbors=N_NEIGHBORS).fit(X, y)
    if several:
        adapter.table_.add(X[:30] + 0.01)
    adapter.table_.save(folder / "table")
    assert adapter.table_.index.stats()["n_segments"] == (2 if several else 1)
    np.save(folder / "queries.npy", queries)
    return adapter, folder, queries


@pytest.mark.parametrize("n_probe", [1, 2, 3, 4])
def test_ids_and_distances_are_the_same(stored, command, n_probe):
    adapter, folder, queries = stored
    expected = HashTable.load(folder / "table").search(queries, N_NEIGHBORS, n_probe=n_probe)
    assert (expected.ids[:, 0] >= 0).all()

    adapter.set_params(n_probe=n_probe)
    distances, ids = adapter.kneighbors(queries)
    assert (ids == expected.ids).all()
    assert (distances == expected.distances).all()

    options = ["-n", N_NEIGHBORS, "--n-probe", n_probe, "--json", "--quiet"]
    done = command("search", folder / "table", folder / "queries.npy", *options)
    for row, answer in enumerate(json.loads(done.out)["queries"]):
        real = expected.ids[row] >= 0
        assert [result["id"] for result in answer["results"]] == expected.ids[row][real].tolist()
        found = [result["distance"] for result in answer["results"]]
        assert found == expected.distances[row][real].tolist()
        assert answer["candidates"] == expected.candidates[row]


def test_the_network_runs_once_per_query(stored, command, monkeypatch):
    _, folder, queries = stored
    sizes = []
    outputs = Encoder.outputs

    def counting(self, items, *args, **options):
        sizes.append(len(items))
        return outputs(self, items, *args, **options)

    monkeypatch.setattr(Encoder, "outputs", counting)
    assert command("search", folder / "table", folder / "queries.npy", "--quiet").code == 0
    assert sizes == [len(queries)]
