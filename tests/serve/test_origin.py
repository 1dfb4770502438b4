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
    with serving(index=world / "index", model=world / "right") as client:
        wrong.save(world / "right")
        HashIndex.load(world / "index").save(world / "index")
        answer = client.post("/v1/reload")
        assert answer.status_code == 409
        assert "was built with another model" in answer.json()["error"]
        ask = {"vectors": items[:4].tolist(), "n_neighbors": 3}
        expected = index_of(right, items).search(
            items[:4], scores=right.scores(items[:4]), n_neighbors=3
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
