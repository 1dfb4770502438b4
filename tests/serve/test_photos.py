"""A table of photos by features: uploaded, as a form, added, and without the network."""

import shutil

import numpy as np
import pytest

from hashcade import HashTable
from tests.serve.factories import serving

JPEG = {"Content-Type": "image/jpeg"}


@pytest.fixture
def photo(photo_table):
    return photo_table / "photos" / "leaf" / "02.jpg"


@pytest.fixture(scope="module")
def client(photo_table):
    with serving(table=photo_table / "table", read_only=True) as made:
        yield made


def test_an_uploaded_photo_is_searched_as_the_library_does(client, photo_table, photo):
    expected = HashTable.load(photo_table / "table").search(photo, 4)
    path = "/v1/search/image?n_neighbors=4"
    told = client.post(path, content=photo.read_bytes(), headers=JPEG).json()
    assert told["ids"] == expected.ids.tolist()
    assert told["names"][0][0] == "leaf/02.jpg"
    form = client.post(path, files={"file": ("02.jpg", photo.read_bytes(), "image/jpeg")})
    assert form.json() == told
    stats = client.get("/v1/stats").json()
    assert (stats["model"], stats["features"], stats["item_shape"]) == ("images", "onnx", [3])
    vectors = HashTable.load(photo_table / "table").hasher.with_features(photo)
    by_features = client.post("/v1/search", json={"vectors": vectors.tolist(), "n_neighbors": 4})
    assert by_features.json()["ids"] == told["ids"]
    by_item = client.get("/v1/explain/item/8").json()
    assert by_item["levels"][0]["scores"] is not None  # through its picture


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"file": ("a.jpg", b"", "image/jpeg")}, "has 1 files, must have one that is not empty"),
        ({"a": ("a.jpg", b"x"), "b": ("b.jpg", b"y")}, "has 2 files, must have one"),
        ({"file": ("a.jpg", b"nonsense", "image/jpeg")}, "the image cannot be read as BMP"),
    ],
    ids=["empty", "two", "no image"],
)
def test_forms_that_are_not_one_photo_are_refused(client, files, words):
    answer = client.post("/v1/search/image", files=files)
    assert answer.status_code == 422
    assert words in answer.json()["error"]


@pytest.mark.parametrize("sent", ["multipart/form-data", "multipart/form-data; boundary=x"])
def test_a_form_without_parts_is_refused(client, sent):
    answer = client.post("/v1/search/image", content=b"text", headers={"Content-Type": sent})
    assert answer.status_code == 422
    assert "the form has 0 files" in answer.json()["error"]


def test_a_photo_is_added(photo_table, photo, tmp_path):
    shutil.copytree(photo_table / "table", tmp_path / "table")
    with serving(table=tmp_path / "table") as client:
        files = {"file": ("02.jpg", photo.read_bytes(), "image/jpeg")}
        added = client.post("/v1/items/image?label=leaf", files=files).json()["ids"]
        told = client.post("/v1/search/image?n_neighbors=2", files=files).json()
        assert sorted(told["ids"][0]) == [8, *added]
        assert np.allclose(told["distances"], 0, atol=1e-3)


def test_without_its_network_everything_but_images_is_served(
    photo_table, photo, monkeypatch, caplog
):
    monkeypatch.setattr("hashcade._extras.find_spec", lambda name: None)
    with serving(table=photo_table / "table", read_only=True) as client:
        assert "images cannot be taken: features of onnx: onnxruntime is not" in caplog.text
        answer = client.post("/v1/search/image", content=photo.read_bytes(), headers=JPEG)
        assert answer.status_code == 409
        assert "pip install 'hashcade[onnx]'" in answer.json()["error"]
        assert client.get("/v1/search/item/8?n_neighbors=3").status_code == 200
        assert client.get("/v1/explain/item/8").status_code == 200
