"""Networks on embeddings without torch: the same numbers, from files that are not trusted."""

import itertools
import json

import numpy as np
import pytest
import torch

from hashcade import CorruptIndexError, Hasher
from hashcade.learn.config import resolve
from hashcade.learn.encoder import DenseNetwork
from hashcade.learn.files import read_tensors, write_tensors
from hashcade.learn.model import new_model, weights_of
from tests.learn.factories import QUICK, blobs

CASES = [
    {"backbone": backbone, "hidden_size": hidden, "loss": loss, **kind}
    for backbone, hidden in [(None, 0), (None, 7), ("mlp", 7)]
    for loss, kind in itertools.product(
        ["npairs", "triplet"],
        [
            {"assignment": "path"},
            {"assignment": "codebook", "embedding_size": 3},
            {"assignment": "prototype", "rerank": "given"},
            {"assignment": "prototype", "rerank": "learned", "embedding_size": 3},
        ],
    )
]


@pytest.mark.parametrize("settings", CASES, ids=lambda s: "-".join(str(v) for v in s.values()))
def test_numpy_computes_what_torch_computes(settings):
    X, _ = blobs()
    config = resolve(Hasher(width=4, **settings).get_params(), 6, len(X), (8,))
    model, items = new_model(config, seed=1).eval(), torch.from_numpy(X)
    model.prepare.learn(items)
    with torch.no_grad():
        for weight in model.parameters():  # of no special kind: hash base and base differ
            weight.copy_(
                torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight)))
            )
        model.hash_base.load_state_dict({k: -v for k, v in model.base.state_dict().items()})
        expected = model(items)
    network = DenseNetwork(config, weights_of(model))
    for n in (1, 2, len(X)):
        for ours, theirs in zip(network(X[:n]), expected, strict=True):
            scale = float(theirs.abs().max())
            np.testing.assert_allclose(ours, theirs[:n].numpy(), rtol=0, atol=1e-5 * scale)
            assert ours.dtype == np.float32
    assert network(X).vectors.shape == (len(X), config.vector_size)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "model"
    Hasher(**QUICK).fit(*blobs()).save(path)
    return read_tensors(path)


def loading(tmp_path, config, weights):
    write_tensors(tmp_path / "model", config, weights)
    with pytest.raises(CorruptIndexError, match="its parts do not fit: ") as caught:
        Hasher.load(tmp_path / "model")
    return str(caught.value).partition("its parts do not fit: ")[2]


def test_weights_that_do_not_fit_the_config_are_damage(stored, tmp_path):
    config, weights = stored
    config = {name: config[name] for name in config.keys() - {"model_bytes", "model_sha256"}}
    for name, value in weights.items():
        others = {key: other for key, other in weights.items() if key != name}
        assert name in loading(tmp_path, config, others)  # is missing
        for changed in (np.stack([value, value]), value.astype(np.float64)):
            assert name in loading(tmp_path, config, {**others, name: changed})
    for bad in (-1, 16):
        codebook = weights["codebook"].copy()
        codebook[2] = bad
        message = loading(tmp_path, config, {**weights, "codebook": codebook})
        assert message == "codebook has ids that are not in 0..15"


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 15), ("point_size", 63), ("n_codes", 5), ("item_shape", [9])],
)
def test_a_config_that_does_not_fit_the_weights_is_damage(stored, tmp_path, name, value):
    config, weights = json.loads(json.dumps(stored[0])), stored[1]
    config["resolved"][name] = value
    assert loading(tmp_path, config, weights)
