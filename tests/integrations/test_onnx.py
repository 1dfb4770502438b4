"""An exported hasher gives the same buckets elsewhere."""

import numpy as np
import onnxruntime
import pytest
import torch

from hashcade import ConfigError, Hasher, NotFittedError


def run(path, items):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"items": items}), strict=True))


def assert_same(found, hasher, items):
    scores = hasher.scores(items)
    assert found["scores"] == pytest.approx(scores, abs=1e-4)
    assert found["vectors"] == pytest.approx(hasher.embed(items), abs=1e-4)
    assert found["bucket_ids"].dtype == np.int64
    # Where two slots are equal to within rounding, either may be taken.
    ordered = np.sort(scores, axis=2)[:, :, ::-1]
    gaps = ordered[:, :, :-1] - ordered[:, :, 1:]
    n_top = hasher.shape_.sparsity
    clear = (gaps[:, :-1, 0] > 1e-4).all(axis=1) & (gaps[:, -1, :n_top] > 1e-4).all(axis=1)
    assert clear.mean() > 0.9
    assert (found["bucket_ids"] == hasher.transform(items))[clear].all()


@pytest.mark.parametrize(
    ("sparsity", "depth", "loss"), [(1, 2, "npairs"), (3, 2, "triplet"), (2, 1, "npairs")]
)
def test_embeddings(tmp_path, sparsity, depth, loss):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 300)
    X = (rng.normal(size=(6, 10))[y] + 0.2 * rng.normal(size=(300, 10))).astype(np.float32)
    hasher = Hasher(width=8, depth=depth, sparsity=sparsity, loss=loss, steps=30,
                    assignment="path", verbose=False)  # fmt: skip
    hasher.fit(X, y).to_onnx(tmp_path / "new" / "hasher.onnx")
    found = run(tmp_path / "new" / "hasher.onnx", X)
    assert_same(found, hasher, X)
    assert len(run(tmp_path / "new" / "hasher.onnx", X[:1])["bucket_ids"]) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["hasher.onnx"]


def test_embeddings_with_a_network_below(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 6)).astype(np.float32), np.arange(60) % 3
    settings = {"width": 4, "steps": 5, "base_steps": 5, "embedding_size": 8, "verbose": False}
    hasher = Hasher(backbone="mlp", assignment="path", **settings).fit(X, y)
    hasher.to_onnx(tmp_path / "hasher.onnx")
    assert_same(run(tmp_path / "hasher.onnx", X), hasher, X)


@pytest.mark.parametrize("sparsity", [1, 2])
def test_a_code_book_gives_the_same_buckets_elsewhere(tmp_path, sparsity):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 6
    X = (rng.normal(size=(6, 10))[y] + 0.5 * rng.normal(size=(300, 10))).astype(np.float32)
    settings = {"width": 4, "sparsity": sparsity, "steps": 30, "verbose": False}
    hasher = Hasher(**settings, assignment="codebook").fit(X, y)
    hasher.to_onnx(tmp_path / "hasher.onnx")
    found = run(tmp_path / "hasher.onnx", X)["bucket_ids"]
    assert found.shape == (300, sparsity)
    assert (found == hasher.transform(X)).all(axis=1).mean() > 0.98  # rounding may turn a few
    assert len(np.unique(found[:, 0])) > 1


@pytest.mark.parametrize(
    "settings",
    [{}, {"sparsity": 2}, {"rerank": "given"}, {"backbone": "mlp", "base_steps": 5},
     {"backbone": "mlp", "base_steps": 5, "rerank": "learned", "loss": "triplet"}],
    ids=lambda settings: "-".join(settings),
)  # fmt: skip
def test_prototypes_decide_the_same_elsewhere(tmp_path, settings):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 9
    X = (rng.normal(size=(9, 10))[y] + 0.7 * rng.normal(size=(300, 10))).astype(np.float32)
    hasher = Hasher(width=4, steps=30, hidden_size=16, verbose=False, **settings).fit(X, y)
    hasher.to_onnx(tmp_path / "hasher.onnx")
    found = run(tmp_path / "hasher.onnx", X)
    encoded = hasher.encode(X)
    assert found["scores"] == pytest.approx(encoded.scores, abs=1e-4)
    assert found["vectors"] == pytest.approx(encoded.vectors, abs=1e-4)
    points = hasher.encoder.outputs(X).points
    gaps = np.sort(np.square(points[:, None] - hasher.prototypes_).sum(axis=2), axis=1)
    clear = gaps[:, 1] - gaps[:, 0] > 1e-4  # where two are equally near, either may be taken
    assert clear.mean() > 0.9
    assert (found["bucket_ids"] == encoded.bucket_ids)[clear].all()
    assert len(np.unique(found["bucket_ids"][:, 0])) > 5


@pytest.mark.parametrize("rerank", ["given", "learned"])
def test_parts_of_classes_are_the_same_elsewhere(tmp_path, rerank):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 4
    X = (3 * rng.normal(size=(4, 10))[y] + rng.normal(size=(300, 10))).astype(np.float32)
    hasher = Hasher(width=4, steps=30, hidden_size=16, rerank=rerank, verbose=False).fit(X, y)
    refined = hasher.refine(X, y, n_codes=12)
    refined.to_onnx(tmp_path / "hasher.onnx")
    found = run(tmp_path / "hasher.onnx", X)["bucket_ids"]
    assert (found == refined.transform(X)).mean() > 0.99  # rounding may turn a few
    assert len(np.unique(found)) == 12


def test_an_inverted_file_is_the_same_elsewhere(tmp_path, blobs):
    X = blobs[0].astype(np.float32)
    hasher = Hasher().fit_clusters(X, n_codes=12)
    hasher.to_onnx(tmp_path / "hasher.onnx")
    found = run(tmp_path / "hasher.onnx", X)
    assert (found["bucket_ids"] == hasher.transform(X)).mean() > 0.99
    assert np.array_equal(found["vectors"], X)


@pytest.mark.parametrize("backbone", ["stride", "nin", "fast"])
def test_images(tmp_path, backbone):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = (60 * y[:, None, None, None] + rng.integers(0, 60, (60, 16, 16, 3))).astype(np.uint8)
    settings = {"width": 4, "steps": 5, "base_steps": 5, "embedding_size": 8, "verbose": False}
    hasher = Hasher(backbone=backbone, assignment="path", **settings).fit(X, y)
    hasher.to_onnx(tmp_path / "hasher.onnx")
    assert_same(run(tmp_path / "hasher.onnx", X), hasher, X)


def test_a_network_of_ones_own_is_refused(tmp_path):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4), torch.nn.Tanh())
    X = np.zeros((8, 8, 8, 3), np.uint8)
    hasher = Hasher(width=4, backbone=network, steps=1, base_steps=1, embedding_size=2)
    hasher.fit(X, np.arange(8) // 4)
    with pytest.raises(ConfigError, match="Tanh cannot be written as ONNX"):
        hasher.to_onnx(tmp_path / "hasher.onnx")
    assert list(tmp_path.iterdir()) == []


def test_nothing_learned_nothing_written(tmp_path):
    with pytest.raises(NotFittedError):
        Hasher().to_onnx(tmp_path / "hasher.onnx")
    assert list(tmp_path.iterdir()) == []


def small_images():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 4
    return rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), y


def fitted_with(*layers):
    X, y = small_images()
    settings = {"width": 4, "steps": 2, "base_steps": 2, "embedding_size": 6, "verbose": False}
    return Hasher(backbone=torch.nn.Sequential(*layers), **settings).fit(X, y)


def test_settings_of_own_layers_are_not_lost(tmp_path):
    nn = torch.nn
    hasher = fitted_with(
        nn.Conv2d(3, 8, 3, padding=2, dilation=2, bias=False),
        nn.Conv2d(8, 8, 3, groups=2, stride=(1, 2), padding=(1, 0)),
        nn.GELU(approximate="tanh"),
        nn.MaxPool2d(3, 2, padding=1),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(8, 5, bias=False),
    )
    hasher.to_onnx(tmp_path / "hasher.onnx")
    images = small_images()[0]
    found = run(tmp_path / "hasher.onnx", images)
    for name, expected in (("scores", hasher.scores(images)), ("vectors", hasher.embed(images))):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-4 * np.ptp(expected))


class MLP(torch.nn.Module):  # a name that hashcade has too
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))

    def forward(self, values):
        return -self.layers(values)


class Turned(torch.nn.Sequential):
    def forward(self, values):
        return -super().forward(values)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (MLP(), "MLP cannot"),
        (Turned(torch.nn.Flatten(), torch.nn.Linear(192, 5)), "Turned cannot"),
        (torch.nn.Conv2d(3, 3, 1, padding_mode="circular"), "Conv2d with padding_mode='circular'"),
        (torch.nn.Conv2d(3, 3, 3, padding="same"), "Conv2d with padding='same'"),
        (torch.nn.AdaptiveAvgPool2d(2), "AdaptiveAvgPool2d with output_size=2"),
        (torch.nn.MaxPool2d(2, dilation=2), "MaxPool2d with dilation=2"),
        (torch.nn.AvgPool2d(2, padding=1), "AvgPool2d with padding=1"),
        (torch.nn.BatchNorm2d(3, affine=False), "BatchNorm2d with affine=False"),
    ],
    ids=str,
)
def test_what_would_come_out_otherwise_is_refused(tmp_path, layer, message):
    hasher = fitted_with(layer, torch.nn.Flatten())
    with pytest.raises(ConfigError, match=message):
        hasher.to_onnx(tmp_path / "hasher.onnx")
    assert not (tmp_path / "hasher.onnx").exists()
