"""Routes that the page is made of: items that pass a filter, classes by name, nodes."""

import json

from tests.serve.factories import DIM, N_ITEMS, make_table, serving


def test_items_and_searches_by_item_take_a_filter(client):
    table = client.app.state.service.now().table
    where = {"label": [1, 2]}
    told = client.get("/v1/items", params={"where": json.dumps(where), "limit": 1000}).json()
    assert {item["id"] for item in told["items"]} == set(table.ids(where).tolist())
    assert told["n_matching"] == table.count(where) < told["n_items"] == N_ITEMS
    options = {"where": json.dumps(where), "n_neighbors": 5}
    searched = client.get("/v1/search/item/3", params=options).json()
    explained = client.get("/v1/explain/item/3", params=options).json()
    assert set(searched["labels"][0]) <= {1, 2}
    assert [result["id"] for result in explained["results"]] == searched["ids"][0]
    body = {"vector": [0.5] * DIM, "bucket_ids": [2, 7], "where": where}
    told = client.post("/v1/explain", json=body).json()
    assert told["results"]
    assert {result["label"] for result in told["results"]} <= {1, 2}
    for wrong in ("label", "[1]", "[" * 3000, '{"label":{"like":1}}'):
        refused = client.get("/v1/search/item/3", params={"where": wrong})
        assert refused.status_code == 422
        assert "where" in refused.json()["error"]


def test_classes_are_found_by_a_part_of_their_name(tmp_path):
    labels = ["001.Sooty_Tern", "002.Royal_Tern", "tern", 3, "3"]
    with serving(table=make_table(tmp_path / "table", classes=labels)) as client:

        def found(text, **more):
            return client.get("/v1/classes", params={"contains": text, **more}).json()

        assert found("TERN")["labels"] == ["tern", "001.Sooty_Tern", "002.Royal_Tern"]
        assert found("sooty t")["labels"] == ["001.Sooty_Tern"]
        assert found("3")["labels"] == [3, "3"]
        assert found("", limit=2) == {"labels": ["001.Sooty_Tern", "002.Royal_Tern"],
                                      "n_matching": 5, "n_classes": 5}  # fmt: skip
        assert found("gull")["labels"] == []


def test_a_node_names_its_most_frequent_classes(client):
    assert "classes" in client.get("/v1/stats").json()["index"]
    told = client.get("/v1/stats?classes=false").json()
    assert "classes" not in told["index"]
    assert told["n_classes"] == client.get("/v1/tree").json()["n_classes"] == 5
