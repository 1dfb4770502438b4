"""Images: uploaded to a model that takes them, and shown as pictures."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from services import DIM, make_index, serving

from hashcade import CodeShape, ConfigError, DataError, HashIndex
from hashcade.data import read_image
from hashcade.learn import Hasher
from hashcade.serve import ServeSettings, create_app
from hashcade.serve._pictures import Pictures, decode_image

PNG = {"Content-Type": "image/png"}


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def client(trained):
    with serving(
        index=trained / "index",
        model=trained / "model",
        pictures=trained / "pictures.npz",
        read_only=True,
        max_pixels=10_000,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def images(trained):
    with np.load(trained / "pictures.npz") as stored:
        return stored["X"]


def test_an_uploaded_image_is_searched_as_the_library_does(client, trained, images):
    hasher, index = Hasher.load(trained / "model"), HashIndex.load(trained / "index")
    for item in (3, 44, 100):
        answer = client.post(
            "/v1/search/image?n_neighbors=4", content=png(images[item]), headers=PNG
        )
        told = answer.json()
        expected = index.search(
            hasher.embed(images[[item]]), scores=hasher.scores(images[[item]]), n_neighbors=4
        )
        assert told["ids"] == expected.ids.tolist()
        assert told["ids"][0][0] == item


def test_an_explanation_of_an_image_has_scores(client, images):
    told = client.post("/v1/explain/image", content=png(images[8]), headers=PNG).json()
    assert [len(level["scores"]) for level in told["levels"]] == [6, 6]
    assert told["levels"][0]["nodes"][0]["rank"] == 0
    assert told["results"][0] | {"buckets": [], "distance": 0} == {
        "id": 8, "label": 8, "picture": True, "buckets": [], "distance": 0
    }  # fmt: skip
    by_item = client.get("/v1/explain/item/8").json()  # through its picture
    assert by_item["levels"][0]["scores"] == pytest.approx(told["levels"][0]["scores"], abs=1e-4)
    assert 8 not in [result["id"] for result in by_item["results"]]


def test_another_size_is_scaled_as_the_library_does(client, trained, images):
    hasher, index = Hasher.load(trained / "model"), HashIndex.load(trained / "index")
    large = png(np.asarray(images[5]).repeat(4, axis=0).repeat(4, axis=1))
    told = client.post("/v1/search/image?n_neighbors=3", content=large, headers=PNG).json()
    scaled = read_image(io.BytesIO(large), size=(16, 16))[None]
    expected = index.search(hasher.embed(scaled), scores=hasher.scores(scaled), n_neighbors=3)
    assert told["ids"] == expected.ids.tolist()


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
    HashIndex.load(trained / "index").save(tmp_path / "index")
    with serving(index=tmp_path / "index", model=trained / "model") as client:
        path = "/v1/items/image?id=5000&label=3"
        assert client.post(path, content=png(images[3]), headers=PNG).json()["ids"] == [5000]
        told = client.post(
            "/v1/search/image?n_neighbors=2", content=png(images[3]), headers=PNG
        ).json()
        assert sorted(told["ids"][0]) == [3, 5000]
        text = {"Content-Type": "text/html"}
        assert client.post(path, content=b"x", headers=text).status_code == 415


@pytest.mark.parametrize("damage", ["gone", "nonsense"])
def test_an_item_is_explained_by_its_buckets_if_its_picture_cannot_be_read(
    trained, images, tmp_path, damage
):
    for item in (3, 4):
        (tmp_path / f"{item}.png").write_bytes(png(images[item]))
    (tmp_path / "list.json").write_text(json.dumps({"3": "3.png", "4": "4.png"}))
    settings = {"index": trained / "index", "model": trained / "model", "read_only": True}
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


def test_pictures_are_handed_out(client, images):
    answer = client.get("/v1/pictures/7")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert np.array_equal(np.asarray(image), images[7])
    assert client.get("/v1/pictures/999999").status_code == 404


def test_a_model_of_another_shape_is_refused(trained, tmp_path):
    make_index(tmp_path / "index")
    settings = ServeSettings(index=tmp_path / "index", model=trained / "model")
    with pytest.raises(ConfigError, match=r"width=6.*the index has .*width=4"):
        create_app(settings)
    index = HashIndex.build([0], np.ones((1, DIM)), shape=CodeShape(width=6, depth=2))
    index.save(tmp_path / "other")
    settings = ServeSettings(index=tmp_path / "other", model=trained / "model")
    with pytest.raises(ConfigError, match="dim 16, the index has dim 8"):
        create_app(settings)


def test_embeddings_are_encoded_by_a_model_that_takes_them(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(["ant", "bee", "cat"], 30)
    items = np.repeat(np.eye(3), 30, axis=0) + 0.1 * rng.normal(size=(90, 3))
    hasher = Hasher(width=4, steps=20, verbose=False).fit(items, labels)
    hasher.save(tmp_path / "model")
    index = HashIndex.build(
        hasher.transform(items), items, labels=np.repeat([0, 1, 2], 30), shape=hasher.shape_
    )
    index.save(tmp_path / "index")
    with serving(index=tmp_path / "index", model=tmp_path / "model") as client:
        told = client.post("/v1/search", json={"vectors": items[:5].tolist(), "n_neighbors": 3})
        expected = index.search(items[:5], scores=hasher.scores(items[:5]), n_neighbors=3)
        assert told.json()["ids"] == expected.ids.tolist()
        stats = client.get("/v1/stats").json()
        assert (stats["model"], stats["item_shape"]) == ("embeddings", [3])
        assert stats["label_names"] == {"0": "ant", "1": "bee", "2": "cat"}
        assert client.get("/v1/explain/item/3").json()["levels"][0]["scores"] is not None
        added = client.post("/v1/items", json={"vectors": items[:2].tolist(), "labels": [0, 0]})
        assert added.json()["ids"] == [90, 91]
        body = items[:5].astype("<f4").tobytes()
        binary = client.post(
            "/v1/search/binary?n_queries=5&where=model",
            content=body,
            headers={"Content-Type": "application/octet-stream"},
        )
        assert binary.status_code == 200
        upload = client.post("/v1/search/image", content=b"x", headers=PNG)
        assert upload.status_code == 409
        assert "embeddings of size 3" in upload.json()["error"]


# -- where pictures come from --------------------------------------------------------------------


def folder_of_images(root):
    for number, name in enumerate(["ant/a.png", "ant/b.png", "bee/sub/c.png"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(np.full((300, 200, 3), 40 * number)))


def test_pictures_from_a_folder_count_as_the_loader_does(tmp_path):
    from hashcade.data import load_image_folder

    folder_of_images(tmp_path)
    pictures = Pictures(tmp_path, max_pixels=100_000)
    loaded = load_image_folder(tmp_path)
    assert pictures.class_names == list(loaded.class_names)
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
    pictures = Pictures(listed, max_pixels=100_000)
    assert pictures.get(70) is not None
    assert pictures.get(0) is None
    (tmp_path / "secret.png").write_bytes(png(np.zeros((4, 4, 3))))
    (tmp_path / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    for way in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        listed.write_text(json.dumps({"1": way}))
        with pytest.raises(DataError, match="lies outside"):
            Pictures(listed, max_pixels=100_000)


def test_pictures_from_arrays_may_have_ids(tmp_path):
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "p.npz", images=images, ids=[9, 5])
    pictures = Pictures(tmp_path / "p.npz", max_pixels=100)
    assert np.array_equal(pictures.pixels(5, (4, 4)), images[1])
    np.savez(tmp_path / "p.npz", images=images.astype(float))
    with pytest.raises(DataError, match="must be uint8"):
        Pictures(tmp_path / "p.npz", max_pixels=100)
    with pytest.raises(DataError, match="no such file"):
        Pictures(tmp_path / "nothing.npz", max_pixels=100)


def test_a_picture_is_decoded_upright_and_in_three_colours(tmp_path):
    grey = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    grey.save(tmp_path / "a.png", exif=exif)
    pixels = decode_image(tmp_path / "a.png", max_pixels=10)
    assert pixels[0, :, 0].tolist() == [255, 0]
    assert pixels.shape == (1, 2, 3)
