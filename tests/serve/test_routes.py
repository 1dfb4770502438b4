"""Every route answers what the library says."""

import json
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pytest

from hashcade import HashIndex, HashTable
from hashcade.index import Encoded
from hashcade.results import Matches
from hashcade.serve.binary_format import read_matches, read_query, write_matches
from hashcade.store import Catalog
from tests.serve.factories import DIM, N_ITEMS, SHAPE, load_index, make_table, serving


@pytest.fixture
def queries(place):
    rng = np.random.default_rng(5)
    index = load_index(place)
    vectors = rng.normal(size=(7, DIM)).astype(np.float32)
    return index, vectors, rng.integers(0, 16, (7, 2)), rng.normal(size=(7, 2, 4)).astype("f4")


def listed(result):
    return [row[row >= 0].tolist() for row in result.ids]


def test_search_by_bucket_ids_as_json(client, queries):
    index, vectors, buckets, _ = queries
    body = {"vectors": vectors.tolist(), "bucket_ids": buckets.tolist(), "n_neighbors": 5}
    told = client.post("/v1/search", json=body).json()
    expected = index.search(vectors, bucket_ids=buckets, n_neighbors=5)
    assert told["ids"] == listed(expected)
    assert np.allclose(told["distances"], expected.distances)
    assert told["candidates"] == expected.candidates.tolist()
    assert told["n_items"] == N_ITEMS


@pytest.mark.parametrize(
    "options",
    [
        {"n_probe": 3},
        {"max_candidates": 4},
        {"fill": False},
        {"filter_ids": list(range(0, 200, 3))},
        {"exclude_ids": list(range(7))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_of_a_search_arrives(client, queries, options):
    index, vectors, _, scores = queries
    body = {"vectors": vectors.tolist(), "scores": scores.tolist(), "n_neighbors": 50, **options}
    told = client.post("/v1/search", json=body).json()
    given = {"exclude_self" if k == "exclude_ids" else k: v for k, v in options.items()}
    if "fill" in given:
        given["fill"] = "none"
    expected = index.search(vectors, scores=scores, n_neighbors=50, **given)
    assert told["ids"] == listed(expected)
    assert told["truncated"] == expected.truncated.tolist()
    plain = index.search(vectors, scores=scores, n_neighbors=50)
    same = plain.ids.tolist() == expected.ids.tolist()
    assert not (same and plain.candidates.tolist() == expected.candidates.tolist())


@pytest.mark.parametrize("where", ["bucket_ids", "scores"])
def test_search_with_plain_arrays_gives_the_library_bit_for_bit(client, queries, where):
    index, vectors, buckets, scores = queries
    rest = buckets.astype("<i8") if where == "bucket_ids" else scores.astype("<f4")
    answer = client.post(
        f"/v1/search/binary?n_queries=7&by={where}&n_neighbors=6",
        content=vectors.tobytes() + rest.tobytes(),
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer.status_code == 200
    told = read_matches(answer.content, 7, 6)
    expected = index.search(vectors, n_neighbors=6, **{where: rest})
    for name in ("ids", "distances", "candidates", "truncated"):
        assert np.array_equal(getattr(told, name), getattr(expected, name))


def test_plain_arrays_of_another_length_are_refused_with_both_sides():
    body = bytes(3 * DIM * 4 + 5)
    with pytest.raises(ValueError, match=r"101 bytes, must have 96 for float32\[3, 8\]"):
        read_query(body, 3, "bucket_ids", DIM, SHAPE)
    with pytest.raises(ValueError, match="and 96 for scores"):
        read_query(body, 3, "scores", DIM, SHAPE)
    with pytest.raises(ValueError, match="must have"):
        read_matches(b"123", 1, 1)


@pytest.mark.parametrize(("n", "n_neighbors"), [(1, 1), (3, 5), (7, 10)])
def test_arrays_come_back_as_they_were_and_may_be_written_to(place, queries, n, n_neighbors):
    _, vectors, buckets, _ = queries
    table = HashTable.load(
        make_table(place.with_name("named"), names={k: f"{k}" for k in range(99)})
    )
    result = table.index.search(vectors[:n], bucket_ids=buckets[:n], n_neighbors=n_neighbors)
    sent = table.matches(result)
    read = read_matches(write_matches(sent), n, n_neighbors)
    for name in ("ids", "distances", "labels", "names", "payload", "candidates", "truncated"):
        array = getattr(read, name)
        np.testing.assert_array_equal(array, getattr(sent, name))
        assert array.dtype == getattr(sent, name).dtype
        assert array.flags.carray


def test_texts_of_an_answer_are_read_when_they_are_asked_for():
    none = np.array([[None, None]], dtype=object)
    matches = Matches(
        np.array([[7, -1]]), np.zeros((1, 2), np.float32), np.array([3]), np.array([False]),
        {"exact": np.array([True]), "labels": none, "names": none, "payload": none}.__getitem__,
    )  # fmt: skip
    read = read_matches(write_matches(matches)[:-1], 1, 2)  # the JSON at the end is cut off
    assert read.ids.tolist() == [[7, -1]]
    with pytest.raises(ValueError, match="delimiter"):
        _ = read.labels
    with pytest.raises(ValueError, match="delimiter"):  # nothing found: ids may be among the texts
        read_matches(write_matches(replace(matches, ids=np.array([[-1, -1]])))[:-1], 1, 2)


def test_search_by_item_leaves_the_item_out(client, queries):
    index = queries[0]
    told = client.get("/v1/search/item/17?n_neighbors=4").json()
    item = index.item(17)
    expected = index.search(
        item["vector"], bucket_ids=item["bucket_ids"], n_neighbors=4, exclude_self=[17]
    )
    assert told["ids"] == expected.ids.tolist()
    assert 17 not in told["ids"][0]
    assert client.get("/v1/search/item/99999").status_code == 404


def test_explain_tells_what_the_library_tells(client, queries):
    index, vectors, buckets, scores = queries
    body = {"vector": vectors[0].tolist(), "scores": scores[0].tolist(), "n_neighbors": 3}
    told = client.post("/v1/explain", json=body).json()
    expected = index.explain(vectors[0], scores=scores[0], n_neighbors=3)
    assert [r["id"] for r in told["results"]] == [r["id"] for r in expected["results"]]
    assert [b["path"] for b in told["buckets"]] == [b["path"] for b in expected["buckets"]]
    assert told["levels"][0]["scores"] == pytest.approx(scores[0][0].tolist())
    assert told["candidates"] == expected["candidates"]
    first = told["buckets"][0]
    ids, _ = index.bucket(first["bucket"], limit=12)
    assert [item["id"] for item in first["items"]] == ids.tolist()
    by_buckets = {"vector": vectors[0].tolist(), "bucket_ids": buckets[0].tolist()}
    assert client.post("/v1/explain", json=by_buckets).json()["levels"][0]["scores"] is None
    assert client.get("/v1/explain/item/3").json()["n_items"] == N_ITEMS


def test_explained_results_have_names_and_payload(client, queries):
    _, vectors, buckets, _ = queries
    place = {"vectors": vectors[:1].tolist(), "bucket_ids": buckets[:1, :1].tolist()}
    more = {"ids": [9000], "names": ["near"], "payload": [{"price": 5}]}
    assert client.post("/v1/items", json=place | more).status_code == 200
    asked = {"vector": vectors[0].tolist(), "bucket_ids": buckets[0, :1].tolist()}
    first, second, *_ = client.post("/v1/explain", json=asked).json()["results"]
    assert (first["id"], first["name"], first["payload"]) == (9000, "near", {"price": 5})
    assert second["payload"] is None


def test_the_tree_adds_up_from_the_root_to_the_buckets(client, queries):
    index = queries[0]
    root = client.get("/v1/tree").json()
    assert root["n_entries"] == N_ITEMS
    assert root["purity"] == pytest.approx(index.stats()["purity"])
    assert sum(entry["count"] for entry in root["classes"]) == N_ITEMS
    seen = 0
    for child in root["children"]:
        node = client.get(f"/v1/tree?path={child['slot']}").json()
        assert node["n_entries"] == child["n_entries"]
        assert node["purity"] == child["purity"]
        for leaf in node["children"]:
            path = f"{child['slot']}.{leaf['slot']}"
            end = client.get(f"/v1/tree?path={path}").json()
            bucket = client.get(f"/v1/buckets/{end['bucket']}?limit=1000").json()
            assert len(bucket["items"]) == leaf["n_entries"] == end["n_entries"]
            assert bucket["path"] == [child["slot"], leaf["slot"]]
            counted = {}
            for item in bucket["items"]:
                counted[item["label"]] = counted.get(item["label"], 0) + 1
            assert counted == {entry["label"]: entry["count"] for entry in leaf["classes"]}
            counts = [entry["count"] for entry in leaf["classes"]]
            assert counts == sorted(counts, reverse=True)
            seen += leaf["n_entries"]
    assert seen == N_ITEMS


def test_a_bucket_can_be_read_in_parts(client):
    whole = client.get("/v1/buckets/3?limit=1000").json()["items"]
    parts = [client.get(f"/v1/buckets/3?start={k}&limit=4").json()["items"] for k in (0, 4, 8)]
    assert [item for part in parts for item in part] == whole[:12]


def test_items_are_described_and_drawn(client, queries):
    index = queries[0]
    item = client.get("/v1/items/9?vector=true").json()
    assert item["vector"] == pytest.approx(index.item(9)["vector"].tolist())
    assert item["paths"] == [index.shape.paths(index.item(9)["bucket_ids"][0]).tolist()]
    drawn = client.get("/v1/items?limit=30&seed=4").json()["items"]
    assert len({entry["id"] for entry in drawn}) == 30
    assert drawn == client.get("/v1/items?limit=30&seed=4").json()["items"]
    assert drawn != client.get("/v1/items?limit=30&seed=5").json()["items"]
    assert len(client.get("/v1/items?limit=1000").json()["items"]) == N_ITEMS


def test_changes_are_made_and_can_be_found(client, place):
    body = {"vectors": [[0.5] * DIM], "bucket_ids": [[3]], "labels": [1]}
    added = client.post("/v1/items", json=body).json()
    assert added == {"ids": [N_ITEMS], "n_items": N_ITEMS + 1}
    query = {"vectors": [[0.5] * DIM], "bucket_ids": [[3]], "n_neighbors": 1}
    assert client.post("/v1/search", json=query).json()["ids"] == [[N_ITEMS]]
    assert client.delete(f"/v1/items/{N_ITEMS}").json()["n_items"] == N_ITEMS
    assert client.delete(f"/v1/items/{N_ITEMS}").status_code == 404
    removed = client.post("/v1/items/remove", json={"ids": [1, 2]}).json()
    assert removed == {"ids": [1, 2], "n_items": N_ITEMS - 2}
    again = client.post("/v1/items/remove", json={"ids": [3, 2]})
    assert again.status_code == 422
    assert again.json()["error"] == "id 2 not in the table"
    assert client.get("/v1/items/3").status_code == 200  # all or nothing
    assert client.post("/v1/save").json()["done"]
    assert len(load_index(place)) == N_ITEMS - 2
    assert not client.post("/v1/save").json()["done"]


def test_stats_metrics_health_and_readiness(client):
    told = client.get("/v1/stats").json()
    assert told["index"]["n_items"] == N_ITEMS
    assert told["shape"] == {"width": 4, "depth": 2, "sparsity": 1}
    assert told["limits"]["max_batch"] == 1024
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready", "writes": "ok", "saves": "ok"}
    metrics = client.get("/metrics").text
    assert 'hashcade_requests_total{route="/v1/stats",status="200"} 1.0' in metrics
    assert f"hashcade_items {N_ITEMS}.0" in metrics


def test_an_index_without_labels_can_be_looked_at(tmp_path):
    with serving(table=make_table(tmp_path / "table", labels=False)) as client:
        assert client.get("/v1/tree").json()["purity"] is None
        assert client.get("/v1/items/3").json()["label"] is None
        assert client.get("/v1/explain/item/3").json()["buckets"][0]["classes"] is None


def test_without_a_model_what_needs_one_is_refused(client):
    png = {"Content-Type": "image/png"}
    assert client.post("/v1/search/image", content=b"x", headers=png).status_code == 409
    answer = client.post("/v1/search", json={"vectors": [[0.0] * DIM]})
    assert answer.status_code == 422
    assert "no model" in answer.json()["error"]
    path = "/v1/search/item/3?n_probe=2"
    assert client.get(path).status_code == 422


def test_an_option_that_is_not_known_is_a_mistake(client):
    answer = client.get("/v1/items?limits=3")
    assert answer.status_code == 422
    assert "Unknown parameter 'limits' (allowed: limit, seed, where)" in answer.json()["error"]
    assert client.get("/v1/stats?x=").status_code == 422
    assert client.get("/health?x=").status_code == 422


@pytest.mark.parametrize("more", ["", "&where=%7B%22id%22%3A" + 300 * "1" + "%7D"])
def test_what_one_route_takes_is_still_unknown_to_another(client, more):
    for _ in range(2):  # the parameters of short addresses are remembered
        assert "Unknown" not in client.get(f"/v1/items?limit=3{more}").text
        assert "Unknown parameter 'limit'" in client.get(f"/v1/stats?limit=3{more}").text


@pytest.mark.parametrize(
    ("path", "headers", "error"),
    [
        ("/v1/search/item/3?n_probe=+2", {}, "n_probe: "),
        ("/v1/search/item/3?n_neighbors=0", {}, "n_neighbors: "),
        ("/v1/explain/item/3?fill=perhaps", {}, "fill: "),
        ("/v1/search/item/3?x=1", {}, "Unknown parameter 'x' (allowed: fill, max_candidates"),
        ("/v1/search/item/3", {"X-Hashcade-Min-Sequence": "one"}, "X-Hashcade-Min-Sequence: "),
    ],
)
def test_what_a_search_is_asked_for_must_fit(client, path, headers, error):
    answer = client.get(path, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(error)
    assert "\n" not in answer.json()["error"]


def test_what_a_search_is_asked_for_is_described(client):
    operation = client.app.openapi()["paths"]["/v1/search/binary"]["post"]
    parameters = {part["name"]: part for part in operation["parameters"]}
    assert parameters["n_queries"]["required"]
    assert parameters["by"]["schema"]["enum"] == ["bucket_ids", "scores", "model"]
    assert parameters["X-Hashcade-Min-Sequence"]["in"] == "header"


def test_labels_come_back_as_they_were_given(tmp_path):
    """Text and numbers, none at all, and those that look alike."""
    place = make_table(tmp_path / "table", classes=["ant", "bee", 2, "2", "<b>elk</b>"])
    with serving(table=place) as client:
        item = {"vectors": [[0.5] * DIM] * 4, "bucket_ids": [[3]] * 4}
        labels = ["fox", 7, None, "7"]
        refused = client.post("/v1/items", json={**item, "labels": labels})
        assert refused.status_code == 422
        assert "labels has 'fox', 7, '7', which the table does not have" in refused.json()["error"]
        ids = client.post("/v1/items", json={**item, "labels": labels, "new_labels": True}).json()[
            "ids"
        ]
        for item_id, label in zip(ids, labels, strict=True):
            assert client.get(f"/v1/items/{item_id}").json()["label"] == label
        ask = {"vectors": [[0.5] * DIM], "bucket_ids": [[3]], "filter_ids": ids}
        answer = client.post("/v1/search", json=ask).json()
        assert answer["labels"] == [labels]
        told = client.get("/v1/stats").json()["index"]["classes"]
        assert {entry["label"] for entry in told} >= {"ant", "bee", 2, "2", "<b>elk</b>", "fox", 7}
        bucket = client.get("/v1/buckets/3?limit=1000").json()["items"]
        assert [entry["label"] for entry in bucket[-4:]] == labels
        bad = client.post("/v1/items", json={**item, "labels": [1.5, True, [], {}]})
        assert bad.status_code == 422
    assert HashTable.load(place)[ids[0]].label == "fox"


def test_names_of_items_are_shown(tmp_path):
    place = make_table(tmp_path / "table", names={5: "five.png"})
    with serving(table=place) as client:
        assert client.get("/v1/items/5").json()["name"] == "five.png"
        assert client.get("/v1/items/6").json()["name"] is None
        ask = {"vectors": [[0.0] * DIM], "bucket_ids": [[3]], "filter_ids": [5]}
        assert client.post("/v1/search", json=ask).json()["names"] == [["five.png"]]


def test_results_are_ranked_by_the_metric_of_the_table(tmp_path):
    place = make_table(tmp_path / "table", metric="inner_product")
    vectors = np.random.default_rng(3).normal(size=(4, DIM)).astype(np.float32)
    with serving(table=place) as client:
        ask = {"vectors": vectors.tolist(), "bucket_ids": [[1]] * 4}
        told = client.post("/v1/search", json=ask).json()
        assert client.get("/v1/stats").json()["metric"] == "inner_product"
    expected = load_index(place).search(vectors, bucket_ids=[[1]] * 4, metric="inner_product")
    assert told["ids"] == expected.ids.tolist()


def strictly(answer):
    """Read JSON as others do, who know no Infinity."""

    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    assert answer.status_code == 200
    return json.loads(answer.content, parse_constant=refuse)


def test_numbers_beyond_float32_are_null(tmp_path):
    index = HashIndex.build([1, 1], [[3e38] * 4, [0.0] * 4], shape=SHAPE)
    HashTable.from_parts(None, index, Catalog()).save(tmp_path / "table")
    with serving(table=tmp_path / "table") as client:
        far = [-3e38] * 4
        told = strictly(client.post("/v1/search", json={"vectors": [far], "bucket_ids": [[1]]}))
        assert told["ids"] == [[0, 1]]  # as far apart as float32 can say, so ordered by id
        assert told["distances"] == [[None, None]]
        scores = [[0.0, 1.0, -1e300, 0.0], [-1e300, -1e300, -1e300, -1e300]]
        told = strictly(client.post("/v1/explain", json={"vector": far, "scores": scores}))
        assert told["levels"][0]["scores"] == [0.0, 1.0, None, 0.0]
        assert told["levels"][1]["nodes"][0]["score"] is None
        assert {bucket["score"] for bucket in told["buckets"]} == {None}
        assert told["results"][0]["distance"] is None


def test_when_ids_are_used_up_this_is_said_and_free_ones_are_taken(client, place):
    item = {"vectors": [[0.0] * DIM], "bucket_ids": [[1]], "labels": [0]}
    last = 2**63 - 1
    assert client.post("/v1/items", json={**item, "ids": [last]}).json()["ids"] == [last]
    for _ in range(2):
        answer = client.post("/v1/items", json=item)
        assert answer.status_code == 422
        assert "the next free id is 9223372036854775808" in answer.json()["error"]
    assert client.post("/v1/items", json={**item, "ids": [5000]}).json()["ids"] == [5000]
    assert client.post("/v1/save").json()["done"] is True
    ask = {"vectors": item["vectors"], "bucket_ids": [[1]], "filter_ids": [last]}
    assert client.post("/v1/search", json=ask).json()["ids"] == [[last]]
    load_index(place).verify()


@pytest.mark.parametrize("number", ["%205", "5%20", "%2B5", "5.0", "1_0", "%D9%A5", "0x5", ""])
def test_numbers_in_an_address_are_digits_alone(client, number):
    assert client.get("/v1/items/5").status_code == 200
    if number:
        assert client.get(f"/v1/items/{number}").status_code == 422
    assert client.get(f"/v1/search/item/5?n_neighbors={number}").status_code == 422
    assert client.get(f"/v1/items?limit={number}").status_code == 422
    assert client.get(f"/v1/buckets/1?start={number}").status_code == 422


def test_payload_names_and_filters(client, place):
    item = {"vectors": [[9.0] * DIM] * 3, "bucket_ids": [[1]] * 3, "ids": [900, 901, 902]}
    payload = [{"price": 1, "tags": ["ä"]}, {"price": 5}, None]
    body = {**item, "payload": payload, "names": ["a", None, "c"]}
    assert client.post("/v1/items", json=body).status_code == 200
    described = client.get("/v1/items/900").json()
    assert (described["payload"], described["name"]) == (payload[0], "a")
    query = {"vectors": [[9.0] * DIM], "bucket_ids": [[1]], "n_neighbors": 3}
    told = client.post("/v1/search", json=query).json()
    assert told["payload"] == [payload]
    assert told["names"] == [["a", None, "c"]]
    told = client.post("/v1/search", json={**query, "where": {"price": {">": 2}}}).json()
    assert told["ids"] == [[901]]
    told = client.post("/v1/search", json={**query, "include": ["names"]}).json()
    assert "payload" not in told
    assert told["names"] == [["a", None, "c"]]
    for where in ({"price": {"~": 1}}, {"price": {"<": [1]}}, {'a"b': 1}):
        for path, more in (("/v1/search", query), ("/v1/items/remove", {})):
            answer = client.post(path, json={**more, "where": where})
            assert answer.status_code == 422, (path, where)
            assert "where" in answer.json()["error"]
    body = {**item, "payload": [{"price": 8}] * 3, "replace": True}
    assert client.post("/v1/items", json=body).json()["n_items"] == N_ITEMS + 3
    removed = client.post("/v1/items/remove", json={"where": {"price": 8}}).json()
    assert removed == {"ids": [900, 901, 902], "n_items": N_ITEMS}
    both = client.post("/v1/items/remove", json={"ids": [1], "where": {"price": 8}})
    assert both.status_code == 422
    assert client.post("/v1/items/remove", json={}).status_code == 422


@pytest.mark.parametrize("sent", [None, "text/plain", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["/v1/search", "/v1/explain", "/v1/items", "/v1/items/remove"])
def test_json_that_does_not_say_so_is_told_how(client, path, sent):
    body = json.dumps({"vectors": [[0.0] * DIM], "vector": [0.0] * DIM, "ids": [1]})
    answer = client.post(path, content=body, headers={"Content-Type": sent} if sent else {})
    assert answer.status_code == 415
    assert answer.json()["error"] == (
        f"the Content-Type is {sent or ''!r}, must be application/json: "
        "curl -H 'Content-Type: application/json'"
    )


# -- ids of text -----------------------------------------------------------------------------------

TEXT_IDS = ["a", "photos/x y.jpg", "ä#?", "17", "remove", " ", "a\nb", "x" * 1000]


@pytest.fixture
def named(tmp_path):
    """A service of a table whose ids are text, some of them awkward in an address."""
    rng = np.random.default_rng(2)
    n = len(TEXT_IDS)
    vectors = rng.normal(size=(n, DIM)).astype(np.float32)
    table = HashTable.from_parts(
        None, HashIndex.build(np.zeros((0, 1), int), np.zeros((0, DIM)), shape=SHAPE), Catalog()
    )
    payload = [{"price": price} for price in range(n)]
    encoded = Encoded(vectors, np.arange(n)[:, None], None, by_path=False)
    table.add(encoded, ids=TEXT_IDS, payload=payload)
    table.save(tmp_path / "named")
    table.close()
    with serving(table=tmp_path / "named", max_filter=20) as client:
        client.vectors, client.place = vectors, tmp_path / "named"
        yield client


def test_an_item_is_asked_for_by_any_text(named):
    for row, item in enumerate(TEXT_IDS):
        place = quote(item, safe="")
        told = named.get(f"/v1/items/{place}?vector=true").json()
        assert told["id"] == item
        assert told["vector"] == named.vectors[row].tolist()
        near = named.get(f"/v1/search/item/{place}?n_neighbors=20").json()["ids"][0]
        assert sorted(near) == sorted(set(TEXT_IDS) - {item})
        explained = named.get(f"/v1/explain/item/{place}?n_neighbors=20").json()
        assert [result["id"] for result in explained["results"]] == near
        assert named.get(f"/v1/pictures/{place}").status_code == 404
    assert {entry["id"] for entry in named.get("/v1/items").json()["items"]} == set(TEXT_IDS)
    assert named.get("/v1/buckets/1").json()["items"][0]["id"] == TEXT_IDS[1]
    assert named.get("/v1/stats").json()["ids"] == "str"
    metrics = named.get("/metrics").text
    assert 'route="/v1/items/{item_id}"' in metrics
    assert "photos" not in metrics


@pytest.mark.parametrize("item", ["nobody", "1", "%00", "%FF", "..%2F..%2Fetc", "a%0A", "x" * 1001])
def test_an_id_that_the_table_does_not_have(named, item):
    for method, path in (
        ("GET", "/v1/items/"), ("GET", "/v1/search/item/"), ("DELETE", "/v1/items/"),
    ):  # fmt: skip
        answer = named.request(method, path + item)
        assert answer.status_code == (422 if len(item) > 1000 else 404)
        assert "\n" not in answer.json()["error"]
    assert named.get("/v1/stats").json()["index"]["n_items"] == len(TEXT_IDS)


def test_ids_of_text_in_bodies(named):
    ask = {"vectors": named.vectors.tolist(), "scores": np.zeros((8, 2, 4)).tolist()}
    ask |= {"n_neighbors": 20, "n_probe": 16}
    kept = ["17", "a", "nobody"]
    told = named.post("/v1/search", json={**ask, "filter_ids": kept}).json()
    assert [sorted(row) for row in told["ids"]] == [["17", "a"]] * 8
    told = named.post("/v1/search", json={**ask, "exclude_ids": TEXT_IDS}).json()
    assert [set(TEXT_IDS) - set(row) for row in told["ids"]] == [{item} for item in TEXT_IDS]
    item = {"vectors": [[0.5] * DIM] * 2, "bucket_ids": [[3]] * 2}
    added = named.post("/v1/items", json={**item, "ids": ["new", "18"]}).json()
    assert added == {"ids": ["new", "18"], "n_items": 10}
    again = named.post("/v1/items", json={**item, "ids": ["new", "19"]})
    assert (again.status_code, again.json()["error"]) == (422, "id 'new' already in the table")
    removed = named.post("/v1/items/remove", json={"ids": ["18", "new"]}).json()
    assert removed == {"ids": ["18", "new"], "n_items": 8}
    removed = named.post("/v1/items/remove", json={"where": {"price": {"<": 2}}}).json()
    assert removed == {"ids": TEXT_IDS[:2], "n_items": 6}
    gone = named.delete(f"/v1/items/{quote(TEXT_IDS[2], safe='')}").json()
    assert gone == {"ids": [TEXT_IDS[2]], "n_items": 5}
    assert set(HashTable.load(named.place).ids()) == set(TEXT_IDS[3:])


def test_ids_of_the_other_kind_are_refused(named, client):
    query = {"vectors": [[0.5] * DIM], "bucket_ids": [[3]]}
    for asked, right, wrong in ((named, "a", 1), (client, 1, "a")):
        for path, key in (
            ("/v1/items", "ids"), ("/v1/items/remove", "ids"),
            ("/v1/search", "filter_ids"), ("/v1/search", "exclude_ids"),
        ):  # fmt: skip
            body = {} if path.endswith("remove") else query
            for ids in ([wrong], [right, wrong], [None], [[right]], [1.5], [-1], ["x" * 1001]):
                answer = asked.post(path, json={**body, key: ids})
                assert answer.status_code == 422, (path, key, ids)
                assert answer.json()["error"]
    assert client.get("/v1/items/a").status_code == 422
    assert client.get(f"/v1/items/{2**63}").status_code == 422
    assert client.get(f"/v1/pictures/{2**63}").status_code == 422


# -- plain arrays with a selection -----------------------------------------------------------------

BINARY = {"Content-Type": "application/octet-stream"}


def ask_binary(client, selection, options="", *, n_queries=1, json_bytes=None):
    """Search in bucket 3, with JSON or any other bytes before the arrays."""
    head = selection if isinstance(selection, bytes) else json.dumps(selection).encode()
    vectors, buckets = np.full((n_queries, DIM), 0.5, "<f4"), np.full((n_queries, 1), 3, "<i8")
    size = len(head) if json_bytes is None else json_bytes
    return client.post(
        f"/v1/search/binary?n_queries={n_queries}&json_bytes={size}{options}",
        content=head + vectors.tobytes() + buckets.tobytes(), headers=BINARY,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("selection", "n_results"),
    [
        ({}, 8),
        ({"where": {"price": {">": 3}}}, 4),
        ({"where": {"id": ["a", "17"]}, "include": ["payload"]}, 2),
        ({"filter_ids": ["17", "remove", "nobody"], "include": []}, 2),
        ({"exclude_ids": ["a"], "include": ["names", "labels"]}, 7),
    ],
)
def test_a_selection_before_plain_arrays_is_that_of_json(named, selection, n_results):
    query = {"vectors": [[0.5] * DIM], "bucket_ids": [[3]], "n_neighbors": 20}
    told = named.post("/v1/search", json={**query, **selection}).json()
    answer = ask_binary(named, selection, "&n_neighbors=20")
    assert answer.status_code == 200
    read = read_matches(answer.content, 1, 20)
    n = len(told["ids"][0])
    assert [item for item in read.ids[0] if item is not None] == told["ids"][0]
    included = selection.get("include", ["labels", "names", "payload"])
    for name in ("labels", "names", "payload"):
        expected = told[name][0] if name in included else [None] * n
        assert getattr(read, name)[0, :n].tolist() == expected
    assert n == n_results


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (b"nonsense", "the body: Invalid JSON"),
        (b"[" * 100_000, "the body: Invalid JSON"),
        (b'{"where": ' + b'{"not": ' * 100 + b"{}" + b"}" * 101, "where is too large"),
        (b'{"where": ' + b'{"not": ' * 5000 + b"{}" + b"}" * 5001, "the body: Invalid JSON"),
        (b'{"where": {"price": NaN}}', "where: 'price'"),
        (b'{"where": {"price": 1e999}}', "where: 'price'"),
        (b'{"where": {"price": ' + b"9" * 5000 + b"}}", "number"),
        (b'{"where": {"price": "\xff"}}', "the body: Invalid JSON"),
        (b'{"where": {"price": "\\ud800"}}', "the body: Invalid JSON"),
        ({"where": {"price') OR 1 --": {"~": 1}}}, "has the operator '~'"),
        ({"where": {"any": [{str(k): k} for k in range(501)]}}, "where is too large"),
        ({"where": [1]}, "where: Input should be an object"),
        ({"where": {"price": 1}, "filter_ids": ["a"]}, "both given"),
        ({"filter_ids": [1]}, "ids are integers, those of the table are text"),
        ({"filter_ids": ["a"] * 21}, "the number of filter_ids=21 must be <= max_filter=20"),
        ({"exclude_ids": ["a", "b"]}, "exclude_self"),
        ({"include": ["vectors"]}, "include.0"),
        ({"n_neighbors": 5}, "n_neighbors: Extra inputs"),
        ([], "the body: Invalid JSON: expected an object"),
    ],
    ids=lambda value: None if isinstance(value, str) else ascii(value)[:30],
)
def test_a_selection_that_does_not_fit_is_a_422_in_one_line(named, selection, words):
    answer = ask_binary(named, selection)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert words in error
    assert "\n" not in error
    assert len(error) < 300


@pytest.mark.parametrize("json_bytes", [1, 41, 10**6, 2**63, -1, "x", ""])
def test_the_length_of_a_selection_must_be_right(named, json_bytes):
    assert ask_binary(named, {"include": []}, json_bytes=json_bytes).status_code == 422
    assert ask_binary(named, {"include": []}).status_code == 200
