"""Evaluation looks where the table looks, with the function that the experiments use."""

import numpy as np
import pytest
from table_factories import make_items

from hashcade import Hasher, HashIndex, HashTable
from hashcade.evaluate import evaluate_hasher
from hashcade.store import Catalog


@pytest.fixture(scope="module", params=["prototype", "codebook", "path"])
def assignment(request):
    return request.param


@pytest.fixture(scope="module", params=[1, 2], ids=["sparsity 1", "sparsity 2"])
def fitted(request, assignment):
    settings = {"width": 4, "steps": 12, "hidden_size": 16, "verbose": False}
    hasher = Hasher(sparsity=request.param, assignment=assignment, **settings)
    return hasher.fit(*make_items(noise=1.5))


@pytest.mark.parametrize("n_probe", [1, 2, 3, 4])
def test_ids_and_distances_are_the_same(fitted, n_probe, monkeypatch):
    X, y = make_items(noise=1.5)
    queries, labels = make_items(60, seed=1, noise=1.5)
    results = []
    search = HashIndex.search

    def recording(self, *arguments, **options):
        result = search(self, *arguments, **options)
        if len(self) == len(X):  # not the index of the prototypes
            results.append(result)
        return result

    table = HashTable.from_parts(fitted, catalog=Catalog(place="network"))  # as in the paper
    table.add(X, labels=y)
    expected = table.search(queries, 5, n_probe=n_probe, fill=False)
    monkeypatch.setattr(HashIndex, "search", recording)
    evaluation = evaluate_hasher(
        fitted, queries, labels, X, y, n_neighbors=5, n_probe=n_probe, protocol="plain"
    )
    [result] = results
    assert np.array_equal(result.ids, expected.ids)
    assert np.array_equal(result.distances, expected.distances)
    correct = (expected.labels == labels[:, None]).mean()
    assert evaluation.precision[5] == pytest.approx(100 * correct)


def test_more_probes_than_a_model_ranks_at_first():
    X, _ = make_items(noise=1.5)
    numbers = np.arange(len(X)) % 30  # 30 classes: more than are ranked for one probe
    hasher = Hasher(width=8, steps=2, hidden_size=16, verbose=False).fit(X, numbers)
    table = HashTable.from_parts(hasher, catalog=Catalog(place="network"))
    table.add(X, labels=numbers)
    for n_probe in (20, 30, 99):
        evaluation = evaluate_hasher(
            hasher, X, numbers, X, numbers, n_neighbors=5, n_probe=n_probe, protocol="plain"
        )
        matches = table.search(X, 5, n_probe=n_probe, fill=False)
        assert evaluation.speedup[5] == pytest.approx(len(X) / matches.candidates.mean())
        assert table.evaluate(X, numbers, n_probe=n_probe, protocol="plain").speedup[1] == (
            pytest.approx(evaluation.speedup[5])
        )
    assert (matches.candidates == len(X)).all()
