"""A machine without torch uses a table of embeddings, and says what it cannot do."""

import json
import subprocess
import sys

import numpy as np
import pytest
from table_factories import make_items

from hashcade import HashTable

BLOCK = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
"""
USE = """
import json, sys
import numpy as np
from hashcade import Hasher, HashTable

place, queries, items = sys.argv[1], np.load(sys.argv[2]), np.load(sys.argv[3])
table = HashTable.load(place)
found = {"ids": table.search(queries, 5, n_probe=2).ids.tolist()}
added = table.add(table.encode(items), labels=["ant", "yak", None], new_labels=True)
found["buckets"] = [table[item].bucket_ids for item in added.tolist()]
table.remove([0, 1])
table.upsert([2], items[:1], labels=["bee"], new_labels=True)
found["labels"] = [table[2].label, table[int(added[1])].label]
if table.hasher.config_.uses_prototypes and table.hasher.config_.codes_of == "classes":
    found["classes"] = table.hasher.extend(items, ["eft", "eft", "auk"]).classes_.tolist()
table.save(place)
found["n_items"] = len(HashTable.load(place))
for learn in (HashTable().fit, Hasher().fit):
    try:
        learn(items, ["ant", "bee", "ant"])
    except ImportError as error:
        found.setdefault("errors", []).append(str(error))
assert "torch" not in sys.modules
print(json.dumps(found))
"""
SERVE = """
import json, sys
import numpy as np
from starlette.testclient import TestClient
from hashcade.serve import ServeSettings, create_app

place, queries, items = sys.argv[1], np.load(sys.argv[2]), np.load(sys.argv[3])
app = create_app(ServeSettings(table=place, deadline=300.0))
with TestClient(app, base_url="http://localhost") as client:
    body = {"vectors": queries.tolist(), "n_neighbors": 5, "n_probe": 2}
    found = {"ids": client.post("/v1/search", json=body).json()["ids"]}
    body = {"vectors": items.tolist(), "labels": ["ant", "yak", None], "new_labels": True}
    added = client.post("/v1/items", json=body).json()["ids"]
    found["buckets"] = [client.get(f"/v1/items/{item}").json()["bucket_ids"] for item in added]
    found["removed"] = client.delete("/v1/items/0").status_code
    found["n_items"] = client.get("/v1/stats").json()["index"]["n_items"]
assert "torch" not in sys.modules
print(json.dumps(found))
"""

CASES = {
    "prototypes": {},
    "given vectors": {"rerank": "given"},
    "mlp": {"backbone": "mlp", "base_steps": 5},
    "code book": {"assignment": "codebook"},
    "path": {"assignment": "path"},
    "clusters": {"labels": False},
}


QUICK = ("prototypes", "code book", "path")
PARAMS = [
    pytest.param(settings, id=name, marks=[] if name in QUICK else pytest.mark.slow)
    for name, settings in CASES.items()
]


@pytest.fixture(scope="module", params=PARAMS)
def stored(request, tmp_path_factory):
    """A table on disk, queries, items to add, and what this process makes of them."""
    settings = dict(request.param)
    X, y = make_items(noise=1.0)
    labels = y if settings.pop("labels", True) else None
    table = HashTable(width=4, steps=20, hidden_size=16, verbose=False, **settings).fit(X, labels)
    folder = tmp_path_factory.mktemp("table")
    queries, items = X[:20] + np.float32(0.1), X[20:23]
    np.save(folder / "queries.npy", queries)
    np.save(folder / "items.npy", items)
    table.save(folder / "table")
    ids = table.search(queries, 5, n_probe=2).ids.tolist()
    added = table.add(table.encode(items), labels=["ant", "yak", None], new_labels=True).tolist()
    return folder, {"ids": ids, "buckets": [table[item].bucket_ids for item in added]}


def run(script, folder, tmp_path):
    table = tmp_path / "table"
    HashTable.load(folder / "table").save(table)
    arguments = [str(table), str(folder / "queries.npy"), str(folder / "items.npy")]
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + script, *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_table_is_searched_and_changed(stored, tmp_path):
    folder, expected = stored
    found = run(USE, folder, tmp_path)
    assert found["ids"] == expected["ids"]
    assert found["buckets"] == expected["buckets"]
    assert found["labels"] == ["bee", "yak"]
    assert found["n_items"] == 240 + 3 - 2
    assert len(found["errors"]) == 2
    for message in found["errors"]:
        assert message.endswith("not installed; run: pip install 'hashcade[train]'")
    if "classes" in found:
        assert found["classes"] == ["ant", "auk", "bee", "cat", "dog", "eft", "elk", "fox"]


def test_a_table_is_served(stored, tmp_path):
    folder, expected = stored
    found = run(SERVE, folder, tmp_path)
    assert found == {**expected, "removed": 200, "n_items": 240 + 3 - 1}
