"""The network that learns fast, its optimizer, and the warm-up."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from hashcade import Hasher
from hashcade.learn import FastNet, fast

SMALL = {
    "backbone": "fast", "width": 4, "embedding_size": 4, "assignment": "path",
    "warmup_steps": 12, "base_steps": 2, "steps": 2, "verbose": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def images():
    """Six classes that a colour tells apart."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 20)
    X = rng.integers(0, 60, size=(120, 16, 16, 3), dtype=np.uint8)
    X[:, :, :, 0] += (30 * y[:, None, None]).astype(np.uint8)
    return X, y


def network_of(hasher):
    return hasher._model().network_weights()


@pytest.mark.parametrize("shape", [(16, 27), (27, 16), (64, 64)])
def test_steps_keep_their_directions_and_lose_their_lengths(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape) * torch.logspace(0, -1, shape[1])
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.T @ fast.nearly_orthogonal(matrix) @ right.T
    lengths = found.diagonal()
    torch.testing.assert_close(found, torch.diag(lengths), atol=1e-4, rtol=0)
    assert (lengths > 0).all()
    assert 5 * lengths.max() / lengths.min() < torch.linalg.cond(matrix)


def test_filters_keep_their_length_and_go_down():
    torch.manual_seed(0)
    filters = torch.nn.Parameter(torch.randn(8, 3, 3, 3))
    wanted = torch.nn.functional.normalize(torch.randn(8, 27), dim=1).reshape(8, 3, 3, 3)
    optimizer = fast.Muon([filters], lr=0.05)
    gaps = []
    for _ in range(100):
        optimizer.zero_grad()
        gap = (filters - wanted).square().sum()
        gap.backward()
        optimizer.step()
        gaps.append(gap.item())
    assert gaps[-1] < 0.1 * gaps[1]
    assert filters.norm().item() == pytest.approx(8**0.5, rel=0.1)
    fixed = torch.nn.Parameter(torch.ones(2, 1, 1, 1))  # without a gradient it stays
    fast.Muon([fixed], lr=1.0).step()
    assert fixed.detach().unique().tolist() == [1.0]


def test_directions_of_classes_are_as_far_apart_as_there_is_room():
    few, many = fast.class_directions(6, 16), fast.class_directions(40, 16)
    torch.testing.assert_close(few @ few.T, torch.eye(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(many.norm(dim=1), torch.ones(40))
    assert len(many.unique(dim=0)) == 40


@pytest.mark.parametrize("mirrored", [True, False])
def test_what_is_mirrored_for_training_has_the_features_of_its_mirror_image(mirrored):
    torch.manual_seed(0)
    network, images = FastNet(mirrored).eval(), torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        one, other = network(images), network(images.flip(3))
    assert torch.allclose(one, other, atol=1e-5) is mirrored


@pytest.mark.slow
@pytest.mark.parametrize("lower", [True, False])
def test_a_warm_up_tells_classes_apart(images, tmp_path, monkeypatch, lower):
    monkeypatch.setattr("hashcade.learn.trainer.gains_from_bfloat16", lambda device: lower)
    settings = {**SMALL, "warmup_steps": 15, "augment": "crop", "run_dir": tmp_path}
    Hasher(**settings).fit(*images)
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in log]
    stages = list(dict.fromkeys(record["stage"] for record in records))
    assert stages == ["warmup", "base", "hash"]
    # The two steps of each later stage, and so the precision of the table, depend on rounding.
    losses = [record["loss"] for record in records if record["stage"] == "warmup"]
    assert losses[-1] < 0.5 * losses[0]
    base = [record["precision_at_1"] for record in records if record["stage"] == "base"]
    assert max(base) > 80


@pytest.mark.slow
def test_training_starts_from_the_network_of_another(images, tmp_path):
    warm = Hasher(**{**SMALL, "base_learning_rate": 0.0}).fit(*images)
    same = Hasher(**SMALL, base_learning_rate=0.0, loss="triplet", run_dir=tmp_path)
    same.fit(*images, start=warm)
    for name, weights in network_of(warm).items():  # neither warmed up again, nor trained
        assert torch.equal(network_of(same)[name], weights), name
    assert '"warmup"' not in (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    tuned = Hasher(**SMALL, loss="triplet").fit(*images, start=warm)
    filters = "base.layers.0.0.weight"
    assert not torch.equal(network_of(tuned)[filters], network_of(warm)[filters])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": "stride"}, "start has backbone='fast', this hasher has 'stride'"),
        ({"backbone": None}, "start would share nothing: there is no backbone"),
    ],
)
def test_another_kind_of_start_is_refused(images, change, message):
    X, y = images
    start = Hasher(**{**SMALL, "warmup_steps": 1}).fit(X, y)
    items = X[:, :4, 0, 0] if change["backbone"] is None else X
    changed = {**SMALL, "warmup_steps": 0, "embedding_size": None, **change}
    with pytest.raises(ValueError, match=message):
        Hasher(**changed).fit(items, y, start=start)
    with pytest.raises(ValueError, match="start and base exclude each other"):
        Hasher(**SMALL).fit(X, y, start=start, base=start)


def test_a_warm_up_needs_a_network():
    X, y = np.random.default_rng(0).normal(size=(40, 4)), np.repeat([0, 1], 20)
    with pytest.raises(ValueError, match="warmup_steps=5 needs a backbone"):
        Hasher(warmup_steps=5).fit(X, y)


def test_a_run_draws_its_log(images, tmp_path):
    Hasher(**{**SMALL, "warmup_steps": 3, "run_dir": tmp_path}).fit(*images)
    picture = ElementTree.parse(tmp_path / "log.svg").getroot()
    texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"warmup", "base", "hash", "loss"} <= set(texts)
    lines = picture.iter("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [3, 2, 2] * 2
