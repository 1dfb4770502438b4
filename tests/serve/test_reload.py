"""Which model an index belongs to, and what its labels are called."""

import numpy as np
import pytest
from services import serving

from hashcade import HashIndex, StorageError
from hashcade.index import model_fingerprint, read_origin, write_origin
from hashcade.learn import Hasher
from hashcade.serve import ServeSettings, create_app
from hashcade.serve.__main__ import main

KINDS = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def hashers():
    """Two models of the same shape, and what they were trained on."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 30)
    items = (np.eye(3)[labels] + 0.1 * rng.normal(size=(90, 3))).astype(np.float32)
    made = [
        Hasher(width=4, steps=5, verbose=False, random_state=seed).fit(
            items, np.array(KINDS)[labels]
        )
        for seed in (0, 1)
    ]
    return (*made, items)


@pytest.fixture
def world(hashers, tmp_path):
    """The models on disk, and an index of the first that says so: of cats and ants alone."""
    right, wrong, items = hashers
    right.save(tmp_path / "right")
    wrong.save(tmp_path / "wrong")
    index_of(right, items).save(tmp_path / "index")
    say_origin(tmp_path / "index", tmp_path / "right")
    return tmp_path


def index_of(hasher, items):
    labels = np.arange(len(items)) % 2
    return HashIndex.build(hasher.transform(items), items, labels=labels, shape=hasher.shape_)


def say_origin(index, model, class_names=("cat", "ant")):
    write_origin(
        index, model=model, data=None, fingerprint=model_fingerprint(model),
        class_names=class_names, names=(),
    )  # fmt: skip


def test_a_model_that_the_index_was_not_built_with_is_refused(world, capsys):
    with pytest.raises(StorageError, match="was built with another model"):
        create_app(ServeSettings(index=world / "index", model=world / "wrong"))
    assert main([str(world / "wrong"), str(world / "index"), "--port", "0"]) == 2
    assert "was built with another model" in capsys.readouterr().err
    with serving(index=world / "index", model=world / "right") as client:
        assert client.get("/ready").status_code == 200


def test_a_reload_does_not_mix_up_models(world, hashers):
    right, wrong, items = hashers
    settings = {"index": world / "index", "model": world / "right"}
    with serving(**settings, read_only=True) as client:  # else nobody else may save there
        wrong.save(world / "right")
        HashIndex.load(world / "index").save(world / "index")
        answer = client.post("/v1/reload")
        assert answer.status_code == 409
        assert "was built with another model" in answer.json()["error"]
        ask = {"vectors": items[:4].tolist(), "n_neighbors": 3}
        expected = index_of(right, items).search(
            items[:4], bucket_ids=right.transform(items[:4]), n_neighbors=3
        )
        assert client.post("/v1/search", json=ask).json()["ids"] == expected.ids.tolist()


def test_an_origin_stays_with_its_index_and_goes_with_it(world, hashers):
    _, wrong, items = hashers
    place = world / "index"
    same = HashIndex.load(place)
    same.remove([0])
    same.save(place)
    assert read_origin(place).class_names == ("cat", "ant")
    index_of(wrong, items).save(place)  # another index, of which the origin knows nothing
    assert read_origin(place) is None
    with serving(index=place, model=world / "wrong") as client:
        assert client.get("/ready").status_code == 200


def names_of(client):
    return client.get("/v1/stats").json()["label_names"]


def test_labels_are_named_by_the_data_of_the_index(world):
    settings = {"index": world / "index", "model": world / "right"}
    with serving(**settings) as client:  # the model has ant, bee, cat
        assert names_of(client) == {"0": "cat", "1": "ant"}
    (world / "names.txt").write_text("one\ntwo\n")
    with serving(**settings, names=world / "names.txt") as client:
        assert names_of(client) == {"0": "one", "1": "two"}


def test_a_reload_reads_names_and_pictures_again(world, hashers):
    right, _, items = hashers
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    np.savez(world / "pictures.npz", images=images)
    settings = {"index": world / "index", "model": world / "right"}
    settings["read_only"] = True  # else nobody else may save there
    with serving(**settings, pictures=world / "pictures.npz") as client:
        assert client.get("/v1/pictures/2").status_code == 404
        np.savez(world / "pictures.npz", images=np.zeros((3, 4, 4, 3), dtype=np.uint8))
        index_of(right, items).save(world / "index")
        say_origin(world / "index", world / "right", class_names=("dog", "eel"))
        assert client.post("/v1/reload").json()["done"] is True
        assert names_of(client) == {"0": "dog", "1": "eel"}
        assert client.get("/v1/pictures/2").status_code == 200


def test_a_reload_through_a_link_reads_names_again(world, hashers):
    right, _, items = hashers
    index_of(right, items).save(world / "second")
    say_origin(world / "second", world / "right", class_names=("dog", "eel"))
    link = world / "link"
    link.symlink_to(world / "index")
    with serving(index=link, model=world / "right") as client:
        link.unlink()
        link.symlink_to(world / "second")
        assert client.post("/v1/reload").json()["done"] is True
        assert names_of(client) == {"0": "dog", "1": "eel"}


def test_a_reload_takes_over_a_model_that_alone_has_changed(world, hashers):
    right, wrong, items = hashers
    index_of(right, items).save(world / "index")  # says nothing of its model
    with serving(index=world / "index", model=world / "right") as client:
        assert client.post("/v1/reload").json()["done"] is False
        service = client.app.state.service
        late = service.encode_items(items[:1])
        wrong.save(world / "right")
        assert client.post("/v1/reload").json()["done"] is True
        ask = {"vectors": items[:4].tolist(), "n_neighbors": 3}
        expected = index_of(right, items).search(
            items[:4], bucket_ids=wrong.transform(items[:4]), n_neighbors=3
        )
        assert client.post("/v1/search", json=ask).json()["ids"] == expected.ids.tolist()
        add = late.live.add(late.bucket_ids, late.vectors, labels=[0], epoch=late.epoch)
        with pytest.raises(StorageError, match="replaced meanwhile"):
            add.result(60)
