"""One rule where a query looks: table, service and client give the same ids and distances."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hashcade import HashTable
from hashcade.serve import Client
from hashcade.serve.responses import Call
from tests.serve.factories import process, serving


def make(assignment, sparsity, place="network"):
    """A model hardly trained, so that a code of the book is often not the path of best slots."""
    rng = np.random.default_rng(0)
    names = np.array(["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"])
    labels = np.repeat(np.arange(8), 25)
    items = (rng.normal(size=(8, 12))[labels] + 3.0 * rng.normal(size=(200, 12))).astype("f4")
    table = HashTable(
        width=4, depth=2, sparsity=sparsity, assignment=assignment, steps=3, joint_steps=0,
        place=place, verbose=False,
    ).fit(items, names[labels])  # fmt: skip
    return table, items


@pytest.fixture(scope="module", params=["prototype", "codebook", "path"])
def assignment(request):
    return request.param


@pytest.fixture(scope="module", params=[1, 2], ids=["sparsity 1", "sparsity 2"])
def case(request, assignment, tmp_path_factory):
    table, items = make(assignment, request.param)
    encoded = table.encode(items)
    by_path = table.hasher.shape_.scores_to_bucket_ids(encoded.scores)
    differing = (np.sort(by_path) != np.sort(encoded.bucket_ids)).any(axis=1).sum()
    assert differing == 0 if assignment == "path" else differing > 20
    place = tmp_path_factory.mktemp("rule") / "table"
    table.save(place)
    return place, items


@pytest.fixture(autouse=True)
def one_thread():
    """As the service under test: products of matrices round otherwise with more threads."""
    with threadpool_limits(limits=1):
        yield


def same(answer, expected, tolerance=0.0):
    rows = [[item for item in row if item >= 0] for row in expected.ids.tolist()]
    order = sorted if tolerance else list  # of equal items rounding decides which comes first
    assert [order(row) for row in answer["ids"]] == [order(row) for row in rows]
    flat = np.float32([value for row in answer["distances"] for value in row])
    np.testing.assert_allclose(flat, expected.distances[expected.ids >= 0], rtol=tolerance)
    assert answer["labels"] == [[m.label for m in row] for row in expected]
    assert answer["candidates"] == expected.candidates.tolist()


def test_service_and_client_find_what_the_table_finds(case, tmp_path):
    place, items = case
    queries = items[:24] + np.float32(0.5)
    HashTable.load(place).save(tmp_path / "table")
    with (
        process(tmp_path / "table", log=tmp_path / "log") as service,
        Client(service.url) as client,
    ):
        for sizes in ((), (60, 20, 5)):  # one segment, and several
            for size in sizes:
                client.add(items[:size] + np.float32(0.1), labels=["ibis"] * size, new_labels=True)
            table = HashTable.load(tmp_path / "table")
            assert (table.stats()["n_segments"] > 1) == bool(sizes)
            for n_probe in (1, 2, 3, 4, 20):
                for options in ({}, {"fill": False}, {"max_candidates": 9}):
                    expected = table.search(queries, 10, n_probe=n_probe, **options)
                    asked = {"n_probe": n_probe, **options}
                    answer = client.json(
                        "POST", "/v1/search", {"vectors": queries.tolist(), **asked}
                    )
                    same(answer, expected)
                    matches = client.search(queries, 10, **asked)
                    for name in ("ids", "distances", "labels", "names", "candidates", "truncated"):
                        np.testing.assert_array_equal(
                            getattr(matches, name), getattr(expected, name)
                        )
            # The vector of an item was learned among others, which may round otherwise.
            tolerance = 0.0 if table.hasher.config_.vectors_are_items else 1e-5
            for item, n_probe in ((0, 2), (17, 2), (3, 30)):
                answer = client.json("GET", f"/v1/search/item/{item}?n_probe={n_probe}")
                expected = table.search(items[item], n_probe=n_probe, exclude_self=[item])
                same(answer, expected, tolerance)


def test_with_a_filter_as_many_codes_are_ranked_as_the_table_ranks(case, monkeypatch):
    place, items = case
    monkeypatch.setattr("hashcade.index.filters.EXACT_MATCHES", 5)
    asked, encode = [], Call.encode

    def spy(self, vectors, n_probe=1):
        asked.append(n_probe)
        return encode(self, vectors, n_probe)

    monkeypatch.setattr(Call, "encode", spy)
    table, kept = HashTable.load(place), list(range(0, 200, 7))
    with serving(table=place, read_only=True) as client:
        for selection in ({"where": {"id": kept}}, {"filter_ids": kept}):
            body = {"vectors": items[:20].tolist(), "n_neighbors": 5, **selection}
            same(
                client.post("/v1/search", json=body).json(),
                table.search(items[:20], 5, **selection),
            )
            assert asked.pop() == table.n_ranked(1, **selection) == 13
    assert not asked


def test_every_item_finds_itself(case):
    place, items = case
    with serving(table=place, read_only=True) as client:
        ask = {"vectors": items.tolist(), "n_neighbors": 1, "fill": False}
        told = client.post("/v1/search", json=ask).json()
        assert told["ids"] == [[item] for item in range(200)]
        for item in (5, 60):
            ask = {"vector": items[item].tolist(), "n_neighbors": 1, "fill": False}
            results = client.post("/v1/explain", json=ask).json()["results"]
            assert [result["id"] for result in results] == [item]


def test_added_items_lie_in_the_buckets_of_the_model(case, tmp_path):
    place, items = case
    table = HashTable.load(place)
    table.save(tmp_path / "table")
    with serving(table=tmp_path / "table") as client:
        ask = {"vectors": items[:20].tolist(), "labels": ["ant"] * 20}
        added = client.post("/v1/items", json=ask).json()["ids"]
        for item, buckets in zip(added, table.encode(items[:20]).bucket_ids, strict=True):
            told = client.get(f"/v1/items/{item}").json()
            assert sorted(told["bucket_ids"]) == sorted(set(buckets.tolist()))


def test_an_explanation_shows_the_scores_of_the_buckets_that_were_visited(case):
    place, items = case
    table = HashTable.load(place)
    item = 3
    encoded = table.encode(items[item])
    scores, buckets = encoded.scores[0].astype(float), set(encoded.bucket_ids[0].tolist())
    with serving(table=place, read_only=True) as client:
        asked = client.post("/v1/explain", json={"vector": items[item].tolist()}).json()
        of_item = client.get(f"/v1/explain/item/{item}").json()
        if not table.hasher.config_.vectors_are_items:  # the item itself is not stored
            assert [level.pop("scores") for level in of_item["levels"]] == [None, None]
            assert [bucket["bucket"] for bucket in of_item["buckets"] if not bucket["fill"]] == [
                bucket["bucket"] for bucket in asked["buckets"] if not bucket["fill"]
            ]
            of_item = asked
        for told in (asked, of_item):
            visited = [bucket for bucket in told["buckets"] if not bucket["fill"]]
            # A bucket whose items were all seen in another one is not visited again.
            assert {bucket["bucket"] for bucket in visited} <= buckets
            assert visited
            for bucket in visited:
                total = sum(scores[level, slot] for level, slot in enumerate(bucket["path"]))
                assert bucket["score"] == pytest.approx(total, abs=1e-6)
            for level, row in zip(told["levels"], scores, strict=True):
                assert level["scores"] == pytest.approx(row.tolist(), abs=1e-6)
        probed = client.get(f"/v1/explain/item/{item}?n_probe=3&fill=false").json()
        n_buckets = 3 * table.hasher.shape_.sparsity if encoded.ranked is not None else 3
        assert 3 <= len(probed["buckets"]) <= n_buckets  # codes may share some


@pytest.mark.parametrize("assignment", ["prototype", "codebook"])
def test_labelled_items_lie_where_the_table_would_put_them(assignment, tmp_path):
    table, items = make(assignment, sparsity=1, place="label")
    table.save(tmp_path / "table")
    labels = ["ant", "hen", "ibis", None] * 5
    added = table.add(table.encode(items[:20]), labels=labels, new_labels=True)
    expected = [table[item].bucket_ids for item in added.tolist()]
    table.close()  # it was changed, and holds the directory
    by_network = table.encode(items[:20]).bucket_ids.tolist()
    assert expected[2::4] == by_network[2::4]  # of a label that was not learned
    assert sum(a != b for a, b in zip(expected, by_network, strict=True)) > 4
    with serving(table=tmp_path / "table") as client:
        body = {"vectors": items[:20].tolist(), "labels": labels, "new_labels": True}
        added = client.post("/v1/items", json=body).json()["ids"]
        bare = client.post("/v1/items", json={"vectors": items[:20].tolist()}).json()["ids"]
        for ids, buckets in ((added, expected), (bare, by_network)):
            told = [client.get(f"/v1/items/{item}").json()["bucket_ids"] for item in ids]
            assert told == buckets
        # An item looks first where it lies, and then on as the model ranks.
        found = client.get(f"/v1/explain/item/{added[0]}?n_probe=2&fill=false").json()
        visited = [bucket["bucket"] for bucket in found["buckets"]]
        assert len(visited) == 2
        if assignment == "prototype":
            assert visited[0] == expected[0][0]
