"""Images: uploaded to a model that takes them, and shown as pictures."""

import io
import json
import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from hashcade import CodeShape, ConfigError, DataError, HashIndex, HashTable
from hashcade.data import load_image_folder, read_image
from hashcade.serve import ServeSettings, create_app
from hashcade.serve.images import Pictures, from_path
from hashcade.store import Catalog
from tests.serve.factories import DIM, make_table, serving

PNG = {"Content-Type": "image/png"}


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def client(trained):
    with serving(
        table=trained / "table",
        pictures=trained / "pictures.npz",
        read_only=True,
        max_pixels=10_000,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def images(trained):
    with np.load(trained / "pictures.npz") as stored:
        return stored["X"]


@pytest.mark.parametrize("n_probe", [1, 3])
def test_an_uploaded_image_is_searched_as_the_library_does(client, trained, images, n_probe):
    table = HashTable.load(trained / "table")
    for item in (3, 44, 100):
        path = f"/v1/search/image?n_neighbors=4&n_probe={n_probe}"
        told = client.post(path, content=png(images[item]), headers=PNG).json()
        expected = table.search(images[item], 4, n_probe=n_probe)
        assert told["ids"] == expected.ids.tolist()
        assert told["labels"] == expected.labels.tolist()
        assert told["ids"][0][0] == item


def test_an_explanation_of_an_image_has_scores(client, images):
    told = client.post("/v1/explain/image", content=png(images[8]), headers=PNG).json()
    assert [len(level["scores"]) for level in told["levels"]] == [6, 6]
    assert told["levels"][0]["nodes"][0]["rank"] == 0
    assert told["results"][0] | {"buckets": [], "distance": 0} == {
        "id": 8, "label": "8", "name": None, "payload": None, "picture": True, "buckets": [],
        "distance": 0,
    }  # fmt: skip
    by_item = client.get("/v1/explain/item/8").json()  # through its picture
    assert by_item["levels"][0]["scores"] == pytest.approx(told["levels"][0]["scores"], abs=1e-4)
    assert 8 not in [result["id"] for result in by_item["results"]]


def test_another_size_is_scaled_as_the_library_does(client, trained, images):
    large = png(np.asarray(images[5]).repeat(4, axis=0).repeat(4, axis=1))
    told = client.post("/v1/search/image?n_neighbors=3", content=large, headers=PNG).json()
    scaled = read_image(io.BytesIO(large), size=(16, 16))
    expected = HashTable.load(trained / "table").search(scaled, 3)
    assert told["ids"] == expected.ids.tolist()
    assert told["distances"] == expected.distances.tolist()


def test_grey_of_16_bits_is_what_the_library_reads(client, trained, images, tmp_path):
    deep = np.asarray(images[5])[:, :, 0].astype(np.uint16) * 257
    (tmp_path / "data" / "digit").mkdir(parents=True)
    file = tmp_path / "data" / "digit" / "deep.png"
    Image.fromarray(deep).save(file)
    with Image.open(file) as opened:
        assert opened.mode.startswith("I;16")
    table = HashTable.load(trained / "table")
    loaded = load_image_folder(tmp_path / "data", size=16).items[0]
    answer = client.post("/v1/search/image", content=file.read_bytes(), headers=PNG).json()
    assert answer["distances"] == table.search(loaded).distances.tolist()
    assert answer["distances"] == table.search(images[5]).distances.tolist()
    pictures = Pictures(from_path(tmp_path / "data"), max_pixels=1000)
    assert np.array_equal(pictures.pixels(0, (16, 16)), loaded)
    with Image.open(io.BytesIO(pictures.get(0)[0])) as small:
        assert np.array_equal(np.asarray(small), loaded)


def chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def bomb(width, height):
    """A PNG of a few bytes that says it has very many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (bomb(50_000, 50_000), "max_pixels=10000"),
        (bomb(10_000, 9_500), "max_pixels=10000"),
        (bomb(101, 100), "10100 pixels, must have <= max_pixels=10000"),
        (bomb(50, 50), "cannot be read"),  # less data than it says
        (b"GIF89a" + bytes(50), "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be read"),
        (b"nonsense", "cannot be read"),
    ],
    ids=["giant", "large", "one row too many", "short", "gif", "postscript", "nonsense"],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_and_broken_images_are_refused(client, body, words):
    answer = client.post("/v1/search/image", content=body, headers=PNG)
    assert answer.status_code == 422
    assert words in answer.json()["error"]


def test_an_image_is_added_by_its_file(trained, images, tmp_path):
    HashTable.load(trained / "table").save(tmp_path / "table")
    with serving(table=tmp_path / "table") as client:

        def add(options, status=200):
            path = f"/v1/items/image?{options}"
            answer = client.post(path, content=png(images[3]), headers=PNG)
            assert answer.status_code == status
            return answer.json()

        assert add("id=5000&label=three")["ids"] == [5000]
        told = client.post(
            "/v1/search/image?n_neighbors=2", content=png(images[3]), headers=PNG
        ).json()
        assert sorted(told["ids"][0]) == [3, 5000]
        for options, label in (("label=7", "7"), ("label_number=7", 7), ("", None)):
            if isinstance(label, int):
                assert "which the table does not have" in add(options, 422)["error"]
            item = add(f"{options}&new_labels=true")["ids"][0]
            assert client.get(f"/v1/items/{item}").json()["label"] == label
        add("label=7&label_number=7", 422)
        text = {"Content-Type": "text/html"}
        assert client.post("/v1/items/image", content=b"x", headers=text).status_code == 415


@pytest.mark.parametrize("damage", ["gone", "nonsense"])
def test_an_item_is_explained_by_its_buckets_if_its_picture_cannot_be_read(
    trained, images, tmp_path, damage
):
    for item in (3, 4):
        (tmp_path / f"{item}.png").write_bytes(png(images[item]))
    (tmp_path / "list.json").write_text(json.dumps({"3": "3.png", "4": "4.png"}))
    settings = {"table": trained / "table", "read_only": True}
    with serving(**settings, pictures=tmp_path / "list.json") as client:
        if damage == "gone":
            (tmp_path / "3.png").unlink()
        else:
            (tmp_path / "3.png").write_bytes(b"nonsense")
        told = client.get("/v1/explain/item/3").json()
        assert told["levels"][0]["scores"] is None
        own = client.get("/v1/items/3").json()["bucket_ids"]
        assert [bucket["bucket"] for bucket in told["buckets"]][:1] == own
        assert client.get("/v1/explain/item/4").json()["levels"][0]["scores"] is not None


def test_pictures_of_items_whose_ids_are_text(tmp_path, images):
    (tmp_path / "folder" / "class").mkdir(parents=True)
    (tmp_path / "folder" / "class" / "a.png").write_bytes(png(images[3]))
    (tmp_path / "list.json").write_text(json.dumps({"a/b": "folder/class/a.png"}))
    np.savez(tmp_path / "named.npz", X=images[:2], ids=np.array(["a/b", "c"]))
    np.savez(tmp_path / "counted.npz", X=images[:2])
    for name, here in (("list.json", "a/b"), ("named.npz", "c"), ("folder", 0), ("counted.npz", 1)):
        pictures = Pictures(from_path(tmp_path / name), max_pixels=1000)
        assert pictures.get(here)[1] == "image/png"
        for item in ("0", "1", "nobody", 7):
            assert pictures.get(item) is None


def test_pictures_are_handed_out(client, images):
    answer = client.get("/v1/pictures/7")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert np.array_equal(np.asarray(image), images[7])
    assert "max-age" in answer.headers["Cache-Control"]
    same = client.get("/v1/pictures/7", headers={"If-None-Match": answer.headers["ETag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert client.get("/v1/pictures/7", headers={"If-None-Match": '"old"'}).status_code == 200
    assert client.get("/v1/pictures/999999").status_code == 404


def test_a_model_of_another_shape_is_refused(trained, tmp_path):
    make_table(tmp_path / "table")
    shutil.copytree(trained / "table" / "model", tmp_path / "table" / "model")
    with pytest.raises(ConfigError, match=r"width=6.*the index has .*width=4"):
        create_app(ServeSettings(table=tmp_path / "table"))
    index = HashIndex.build([0], np.ones((1, DIM)), shape=CodeShape(width=6, depth=2))
    HashTable.from_parts(None, index, Catalog()).save(tmp_path / "other")
    shutil.copytree(trained / "table" / "model", tmp_path / "other" / "model")
    with pytest.raises(ConfigError, match="dim 16, the index has dim 8"):
        create_app(ServeSettings(table=tmp_path / "other"))


def test_embeddings_are_encoded_by_a_model_that_takes_them(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(["ant", "bee", "cat"], 30)
    items = np.repeat(np.eye(3), 30, axis=0) + 0.1 * rng.normal(size=(90, 3))
    table = HashTable(width=4, steps=20, rerank="given", verbose=False).fit(items, labels)
    table.save(tmp_path / "table")
    with serving(table=tmp_path / "table") as client:
        stats = client.get("/v1/stats").json()
        assert (stats["model"], stats["item_shape"]) == ("embeddings", [3])
        assert {entry["label"] for entry in stats["index"]["classes"]} == {"ant", "bee", "cat"}
        assert client.get("/v1/explain/item/3").json()["levels"][0]["scores"] is not None
        added = client.post(
            "/v1/items", json={"vectors": items[:2].tolist(), "labels": ["ant"] * 2}
        )
        assert added.json()["ids"] == [90, 91]
        upload = client.post("/v1/search/image", content=b"x", headers=PNG)
        assert upload.status_code == 409
        assert "embeddings of size 3" in upload.json()["error"]
    with serving(table=tmp_path / "table", use_model=False) as client:
        assert client.get("/v1/stats").json()["model"] is None
        assert client.post("/v1/search", json={"vectors": items[:1].tolist()}).status_code == 422


# -- where pictures come from --------------------------------------------------------------------


def folder_of_images(root):
    for number, name in enumerate(["ant/a.png", "ant/b.png", "bee/sub/c.png"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(np.full((300, 200, 3), 40 * number)))


def test_pictures_from_a_folder_count_as_the_loader_does(tmp_path):
    folder_of_images(tmp_path)
    pictures = Pictures(from_path(tmp_path), max_pixels=100_000)
    loaded = load_image_folder(tmp_path)
    for item in range(3):
        assert np.array_equal(pictures.pixels(item, (300, 200)), loaded.items[item])
        data, kind = pictures.get(item)
        with Image.open(io.BytesIO(data)) as image:
            assert max(image.size) == 192
        assert kind == "image/jpeg"
    assert 3 not in pictures
    assert pictures.get(3) is None


def test_pictures_from_a_list_stay_below_it(tmp_path):
    folder_of_images(tmp_path / "images")
    listed = tmp_path / "images" / "list.json"
    listed.write_text(json.dumps({"70": "ant/b.png"}))
    pictures = Pictures(from_path(listed), max_pixels=100_000)
    assert pictures.get(70) is not None
    assert pictures.get(0) is None
    (tmp_path / "secret.png").write_bytes(png(np.zeros((4, 4, 3))))
    (tmp_path / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    for way in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        listed.write_text(json.dumps({"1": way}))
        with pytest.raises(DataError, match="lies outside"):
            Pictures(from_path(listed), max_pixels=100_000)


def test_pictures_from_arrays_may_have_ids(tmp_path):
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "p.npz", images=images, ids=[9, 5])
    pictures = Pictures(from_path(tmp_path / "p.npz"), max_pixels=100)
    assert np.array_equal(pictures.pixels(5, (4, 4)), images[1])
    np.savez(tmp_path / "p.npz", images=images.astype(float))
    with pytest.raises(DataError, match="must be uint8"):
        Pictures(from_path(tmp_path / "p.npz"), max_pixels=100)
    with pytest.raises(DataError, match="no such file"):
        Pictures(from_path(tmp_path / "nothing.npz"), max_pixels=100)


def test_the_images_that_a_table_was_filled_with_are_its_pictures(tmp_path):
    root = tmp_path / "photos"
    folder_of_images(root)
    names = dict(enumerate(load_image_folder(root).names))
    assert names[2] == "bee/sub/c.png"
    place = make_table(tmp_path / "table", names=names, data=root)
    with serving(table=place) as client:
        assert [client.get(f"/v1/pictures/{k}").status_code for k in range(4)] == [200] * 3 + [404]
        assert client.get("/v1/items/1").json()["picture"] is True
        client.delete("/v1/items/1")
        item = {"vectors": [[0.0] * DIM], "bucket_ids": [[0]], "ids": [1]}
        assert client.post("/v1/items", json=item).status_code == 200
        assert client.get("/v1/items/1").json()["picture"] is False  # another item by now
    shutil.rmtree(root)
    with serving(table=place) as client:
        assert client.get("/v1/stats").json()["pictures"] is False
    (tmp_path / "secret.png").write_bytes(png(np.zeros((4, 4, 3))))
    hostile = {0: "../secret.png", 1: str(tmp_path / "secret.png"), 2: "inside.png"}
    (tmp_path / "images").mkdir()
    shutil.copy(tmp_path / "secret.png", tmp_path / "images" / "inside.png")
    outside = make_table(tmp_path / "hostile", names=hostile, data=tmp_path / "images")
    with serving(table=outside) as client:
        statuses = [client.get(f"/v1/pictures/{item}").status_code for item in range(4)]
        assert statuses == [404, 404, 200, 404]


def test_a_picture_is_decoded_upright_and_in_three_colours(tmp_path):
    grey = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    grey.save(tmp_path / "a.png", exif=exif)
    pixels = read_image(tmp_path / "a.png", max_pixels=10)
    assert pixels[0, :, 0].tolist() == [255, 0]
    assert pixels.shape == (1, 2, 3)
