"""Models with a code book: the service goes to the buckets that ``Hasher.transform`` gives."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from services import serving

from hashcade import HashIndex
from hashcade.cli._app import make_app
from hashcade.cli._errors import run
from hashcade.learn import Hasher

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module", params=[1, 2], ids=["sparsity 1", "sparsity 2"])
def world(request, tmp_path_factory):
    """A model hardly trained, so that a code of the book is often no path of best slots."""
    place = tmp_path_factory.mktemp("codebook")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 25)
    items = (rng.normal(size=(8, 12))[labels] + 3.0 * rng.normal(size=(200, 12))).astype("f4")
    hasher = Hasher(
        width=4, depth=2, sparsity=request.param, assignment="codebook", steps=3, joint_steps=0,
        verbose=False,
    ).fit(items, labels)  # fmt: skip
    hasher.save(place / "model")
    np.save(place / "items.npy", items)
    buckets = hasher.transform(items)
    index = HashIndex.build(buckets, hasher.embed(items), labels=labels, shape=hasher.shape_)
    index.save(place / "index")
    by_path = hasher.shape_.scores_to_bucket_ids(hasher.scores(items))
    differing = np.flatnonzero((np.sort(by_path) != np.sort(buckets)).any(axis=1))
    assert len(differing) > 20  # else the tests below could not fail
    return SimpleNamespace(
        place=place, hasher=hasher, index=index, items=items, buckets=buckets, differing=differing
    )


@pytest.fixture
def client(world, tmp_path):
    HashIndex.load(world.place / "index").save(tmp_path / "index")
    with serving(index=tmp_path / "index", model=world.place / "model") as made:
        yield made


def test_every_item_finds_itself(world, client):
    ask = {"vectors": world.items.tolist(), "n_neighbors": 1, "fill": "none"}
    told = client.post("/v1/search", json=ask).json()
    assert told["ids"] == [[item] for item in range(200)]
    for item in world.differing[:5].tolist():
        ask = {"vector": world.items[item].tolist(), "n_neighbors": 1, "fill": "none"}
        found = client.post("/v1/explain", json=ask).json()["results"]
        assert [result["id"] for result in found] == [item]


@pytest.mark.parametrize("options", [{}, {"fill": "none"}, {"n_probe": 3}, {"n_neighbors": 60}])
def test_the_service_finds_what_library_and_command_line_find(world, client, capsys, options):
    queries = world.items[world.differing[:20]]
    np.save(world.place / "queries.npy", queries)
    told = client.post("/v1/search", json={"vectors": queries.tolist(), **options}).json()
    where = {"bucket_ids": world.hasher.transform(queries)}
    if "n_probe" in options:
        where = {"scores": world.hasher.scores(queries)}
    expected = world.index.search(queries, **where, **options)
    rows = [[item for item in row if item >= 0] for row in expected.ids.tolist()]
    assert told["ids"] == rows
    assert told["candidates"] == expected.candidates.tolist()

    asked = "&".join(f"{name}={value}" for name, value in options.items())
    path = f"/v1/search/binary?n_queries=20&where=model&{asked}".rstrip("&")
    answer = client.post(path, content=queries.astype("<f4").tobytes(), headers=BYTES)
    ids = np.frombuffer(answer.content, "<i8", count=expected.ids.size)
    assert np.array_equal(ids.reshape(expected.ids.shape), expected.ids)

    arguments = [str(world.place / "index"), str(world.place / "queries.npy"), "--json", "--quiet"]
    arguments += ["--model", str(world.place / "model")]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        arguments += ["--no-fill"] if value == "none" else [flag, str(value)]
    capsys.readouterr()
    assert run(make_app(), ["search", *arguments]) == 0
    by_command = json.loads(capsys.readouterr().out)["queries"]
    assert [[result["id"] for result in query["results"]] for query in by_command] == rows


def test_added_items_lie_in_the_buckets_of_transform(world, client):
    some = world.differing[:20]
    ask = {"vectors": world.items[some].tolist(), "labels": [0] * 20}
    added = client.post("/v1/items", json=ask).json()["ids"]
    for item, row in zip(added, some, strict=True):
        told = client.get(f"/v1/items/{item}").json()
        assert sorted(told["bucket_ids"]) == sorted(world.buckets[row].tolist())


def test_an_explanation_shows_the_scores_of_the_buckets_that_were_visited(world, client):
    item = int(world.differing[0])
    scores = world.hasher.scores(world.items[[item]])[0].astype(float)
    own = set(world.buckets[item].tolist())
    asked = client.post("/v1/explain", json={"vector": world.items[item].tolist()}).json()
    for told in (asked, client.get(f"/v1/explain/item/{item}").json()):
        visited = [bucket for bucket in told["buckets"] if not bucket["fill"]]
        # A bucket whose items were all seen in another one is not visited again.
        assert {bucket["bucket"] for bucket in visited} <= own
        assert visited
        for bucket in visited:
            total = sum(scores[level, slot] for level, slot in enumerate(bucket["path"]))
            assert bucket["score"] == pytest.approx(total, abs=1e-6)
        assert any(node["rank"] > 0 for level in told["levels"] for node in level["nodes"])
        for level, row in zip(told["levels"], scores, strict=True):
            assert level["scores"] == pytest.approx(row.tolist(), abs=1e-6)
    probed = client.get(f"/v1/explain/item/{item}?n_probe=3&fill=none").json()
    assert len(probed["buckets"]) == 3
