"""A new table in the place of the one that is served."""

import shutil

import numpy as np
import pytest

from hashcade import HashTable, StorageError
from hashcade.learn import Hasher
from hashcade.store import NewItems
from tests.serve.factories import N_ITEMS, load_index, make_table, serving

KINDS = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def hashers():
    """Two models of the same shape, and what they were trained on."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 30)
    items = (np.eye(3)[labels] + 0.1 * rng.normal(size=(90, 3))).astype(np.float32)
    fitted = [
        Hasher(width=4, steps=5, verbose=False, random_state=seed).fit(
            items, np.array(KINDS)[labels]
        )
        for seed in (0, 1)
    ]
    return (*fitted, items)


def table_of(hasher, items, names=("cat", "ant")):
    table = HashTable.from_parts(hasher)
    encoded = table.encode(items)
    table.add(encoded, labels=np.array(names)[np.arange(len(items)) % 2], new_labels=True)
    return table


def classes_of(client):
    return [entry["label"] for entry in client.get("/v1/stats").json()["index"]["classes"]]


def search(client, queries):
    return client.post("/v1/search", json={"vectors": queries.tolist(), "n_neighbors": 3}).json()


def test_a_table_that_was_saved_in_place_is_served_after_a_reload(place):
    with serving(table=place, read_only=True) as client:  # so that it can be saved in place
        assert not client.post("/v1/reload").json()["done"]
        other = HashTable.load(place)
        other.remove(list(range(150)))
        other.save(place)
        assert client.get("/v1/items/1").status_code == 200
        assert client.post("/v1/reload").json() == {"done": True, "n_items": 50}
        assert client.get("/v1/items/1").status_code == 404


def test_another_table_is_served_after_a_link_was_changed(tmp_path):
    make_table(tmp_path / "one")
    make_table(tmp_path / "two", seed=3, classes=["a", "b", "c", "d", "e"])
    link = tmp_path / "table"
    link.symlink_to("one")
    with serving(table=link) as client:
        client.delete("/v1/items/0")
        link.unlink()
        link.symlink_to("two")
        assert client.post("/v1/reload").json() == {"done": True, "n_items": N_ITEMS}
        client.delete("/v1/items/1")
        assert set(classes_of(client)) == set("abcde")
    assert 0 not in load_index(tmp_path / "one")  # what was changed there is saved there
    assert 1 not in load_index(tmp_path / "two")


def test_a_table_that_was_replaced_as_a_whole_is_taken_over_with_its_model(hashers, tmp_path):
    first, second, items = hashers
    place = tmp_path / "table"
    table_of(first, items).save(place)
    np.savez(tmp_path / "pictures.npz", images=np.zeros((2, 4, 4, 3), dtype=np.uint8))
    with serving(table=place, pictures=tmp_path / "pictures.npz", read_only=True) as client:
        assert search(client, items)["ids"] == table_of(first, items).search(items, 3).ids.tolist()
        assert client.get("/v1/pictures/2").status_code == 404
        np.savez(tmp_path / "pictures.npz", images=np.zeros((3, 4, 4, 3), dtype=np.uint8))
        table_of(second, items, names=("dog", "eel")).save(place)
        assert client.post("/v1/reload").json()["done"] is True
        expected = HashTable.load(place).search(items, 3)
        assert search(client, items)["ids"] == expected.ids.tolist()
        assert search(client, items)["labels"] == expected.labels.tolist()
        assert set(classes_of(client)) == {"dog", "eel"}
        assert client.get("/v1/pictures/2").status_code == 200


def test_a_reload_takes_over_a_model_that_alone_has_changed(hashers, tmp_path):
    first, second, items = hashers
    place = tmp_path / "table"
    table_of(first, items).save(place)
    with serving(table=place) as client:
        assert client.post("/v1/reload").json()["done"] is False
        service = client.app.state.service
        now = service.now()
        late = now.table.encode(items[:1])
        second.save(place / "model")
        assert client.post("/v1/reload").json()["done"] is True
        expected = HashTable.load(place).search(items[:4], 3)
        assert search(client, items[:4])["ids"] == expected.ids.tolist()
        items = NewItems(late.bucket_ids, late.vectors, labels=["cat"])
        add = now.durable.add(items, epoch=now.epoch)
        with pytest.raises(StorageError, match="replaced meanwhile"):
            add.result(60)


def test_a_reload_that_fails_keeps_the_old_table(hashers, tmp_path):
    first, _, items = hashers
    table_of(first, items).save(tmp_path / "one")
    make_table(tmp_path / "two")
    (tmp_path / "two" / "model").mkdir()
    (tmp_path / "two" / "model" / "config.json").write_text("{}")
    link = tmp_path / "table"
    link.symlink_to("one")
    with serving(table=link) as client:
        link.unlink()
        link.symlink_to("two")
        assert client.post("/v1/reload").status_code == 409
        assert search(client, items[:4])["n_items"] == len(items)
        added = client.post("/v1/items", json={
            "vectors": items[:1].tolist(), "labels": ["new"], "new_labels": True,
        })  # fmt: skip
        assert added.status_code == 200
    assert "new" in HashTable.load(tmp_path / "one").catalog.classes
    shutil.rmtree(tmp_path / "two" / "model")
    HashTable.load(tmp_path / "two").save(tmp_path / "two")  # nobody holds it
