"""The networks and the model around them."""

import numpy as np
import pytest
import torch
from torch import nn

from hashcade import Hasher
from hashcade.learn import NIN, FastNet, StrideNet
from hashcade.learn.config import resolve
from hashcade.learn.model import HashModel, PrepareEmbeddings, PrepareImages, feature_size
from hashcade.learn.networks import make_backbone
from hashcade.learn.training_data import takes_images

IMAGES = torch.zeros(2, 3, 32, 32)


def test_nin_has_the_layers_of_the_paper():
    convs = [m for m in NIN().modules() if isinstance(m, nn.Conv2d)]
    assert [(c.kernel_size[0], c.out_channels) for c in convs] == [
        (5, 192), (1, 160), (1, 96), (5, 192), (1, 192), (1, 192), (3, 192), (1, 192),
    ]  # fmt: skip
    layers = [type(m).__name__ for m in NIN().layers if not isinstance(m, nn.Conv2d)]
    assert layers == [
        *["LeakyReLU"] * 3, "MaxPool2d", "Dropout", *["LeakyReLU"] * 3, "AvgPool2d", "Dropout",
        "LeakyReLU", "AdaptiveAvgPool2d", "Flatten", "ReLU",
    ]  # fmt: skip
    slopes = {m.negative_slope for m in NIN().modules() if isinstance(m, nn.LeakyReLU)}
    assert slopes == {1 / 5.5}


def test_nin_pools_to_16_and_8_as_with_same_padding():
    sizes = []
    for layer in (network := NIN().eval()).layers:
        if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            layer.register_forward_hook(lambda m, i, out: sizes.append(tuple(out.shape[2:])))
    network(IMAGES)
    assert sizes == [(16, 16), (8, 8)]


def multiplications(network):
    """Of all convolutions for one image."""
    total = 0

    def count(layer, _, out):
        nonlocal total
        total += out[0].numel() * layer.weight[0].numel()

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)
    network.eval()(IMAGES[:1])
    return total


def test_the_cpu_networks_take_a_fraction_of_the_work():
    assert multiplications(NIN()) == pytest.approx(0.22e9, rel=0.1)
    assert multiplications(StrideNet()) == pytest.approx(0.033e9, rel=0.1)
    assert multiplications(FastNet()) == pytest.approx(0.058e9, rel=0.1)


@pytest.mark.parametrize(
    ("name", "size"), [("nin", 192), ("stride", 256), ("fast", 256), ("mlp", 7)]
)
def test_features_have_the_size_that_is_found(name, size):
    backbone = make_backbone(name, 5, 7, mirrored=False)
    items = torch.zeros(2, 5) if name == "mlp" else IMAGES
    assert feature_size(backbone, items[:1]) == size
    assert backbone(items).shape == (2, size)
    assert backbone.training  # as it was


def test_a_backbone_that_does_not_give_rows_is_refused():
    with pytest.raises(ValueError, match=r"into \(1, 3, 32, 32\), must be a tensor of shape \(1,"):
        feature_size(nn.Identity(), IMAGES[:1])
    with pytest.raises(
        ValueError, match=r"backbone='vgg' must be .* of \['mlp', 'fast', 'nin', 'stride'\]"
    ):
        takes_images("vgg", IMAGES)


def test_what_is_an_image_is_said_by_the_network_or_by_the_shape():
    vectors, images = np.zeros((2, 5)), np.zeros((2, 8, 8, 3))
    assert takes_images("nin", vectors)  # refused later, with a message about images
    assert not takes_images("mlp", images)
    assert not takes_images(None, images)
    assert takes_images(nn.Identity(), images)
    assert not takes_images(nn.Identity(), vectors)


def test_embeddings_are_brought_to_unit_spread_and_keep_their_proportions():
    items = torch.randn(500, 3) * torch.tensor([1.0, 10.0, 100.0]) + 5.0
    prepare = PrepareEmbeddings((3,))
    prepare.learn(items)
    ready = prepare(items)
    torch.testing.assert_close(ready.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert ready.square().mean().item() == pytest.approx(1.0, abs=1e-4)
    assert (ready.std(0)[2] / ready.std(0)[0]).item() == pytest.approx(100, rel=0.2)


def test_images_are_scaled_and_centred_pixel_by_pixel():
    items = torch.randint(0, 256, (7, 4, 5, 3), dtype=torch.uint8)
    prepare = PrepareImages((4, 5, 3))
    prepare.learn(items)
    ready = prepare(items)
    expected = (items.double() / 255 - (items.double() / 255).mean(0)).permute(0, 3, 1, 2)
    torch.testing.assert_close(ready, expected.float(), atol=1e-6, rtol=0)


def new_model(**settings):
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    settings = Hasher(width=4, backbone=network, embedding_size=3, **settings).get_params()
    return HashModel(resolve(settings, n_classes=4, n_items=40, item_shape=(8, 8, 3)))


def test_the_hash_base_is_a_network_of_its_own():
    model = new_model(loss="triplet", assignment="codebook")
    images = torch.randint(0, 256, (6, 8, 8, 3), dtype=torch.uint8)
    vectors, scores = model.vectors(images), model.scores(images)
    assert scores.shape == (6, 2, 4)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(scores.norm(dim=2), torch.ones(6, 2))
    with torch.no_grad():
        model.hash_base[1].weight.add_(1.0)
    torch.testing.assert_close(model.vectors(images), vectors)
    assert not torch.allclose(model.scores(images), scores)
    model.start_hash_base()
    torch.testing.assert_close(model.scores(images), scores)


@pytest.mark.parametrize("tuned", [False, True])
def test_one_pass_gives_vectors_and_scores_and_runs_an_equal_base_once(tuned):
    model = new_model(assignment="codebook").eval()
    if tuned:
        with torch.no_grad():
            model.hash_base[1].weight.add_(1.0)
    images = torch.randint(0, 256, (6, 8, 8, 3), dtype=torch.uint8)
    expected = model.vectors(images), model.scores(images)
    n_passes = 0

    def count(*_):
        nonlocal n_passes
        n_passes += 1

    for network in (model.base, model.hash_base):
        network.register_forward_hook(count)
    vectors, scores, _ = model(images)
    assert n_passes == 1 + tuned
    assert torch.equal(vectors, expected[0])
    assert torch.equal(scores, expected[1])
