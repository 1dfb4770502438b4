"""Networks that turn items into features: the paper's, one made for CPUs, one for vectors.

A backbone is any ``torch.nn.Module`` from images, float[n, 3, height, width], or from vectors,
float[n, inputs], to features, float[n, size].
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hashcade._validate import as_array


class _LayeredNetwork(nn.Module):
    """Layers one after another; ``weight_decay`` is what the network is trained with."""

    weight_decay = 0.0

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, items: Tensor) -> Tensor:
        """Features, float[n, size]."""
        return self.layers(items)  # type: ignore[no-any-return]


class NIN(_LayeredNetwork):
    """Network in network, as the paper trained it on Cifar-100: 192 features.

    About 0.22 G multiplications per image.
    """

    weight_decay = 4e-5

    def __init__(self) -> None:
        super().__init__(
            _conv(3, 192, 5), _leaky(), _conv(192, 160, 1), _leaky(), _conv(160, 96, 1), _leaky(),
            # ceil_mode: 32 → 16 → 8 with windows that may overhang on the right, which is what
            # TensorFlow's "same" padding does. Neither counts what lies outside.
            nn.MaxPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5),
            _conv(96, 192, 5), _leaky(), _conv(192, 192, 1), _leaky(), _conv(192, 192, 1), _leaky(),
            nn.AvgPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5),
            _conv(192, 192, 3), _leaky(), _conv(192, 192, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.ReLU(),
        )  # fmt: skip


class StrideNet(_LayeredNetwork):
    """A small network for CPUs: 256 features at about 0.03 G multiplications per image.

    The first layer halves the resolution while there are few channels, and most of the work is
    done at 8×8 and 4×4, where a channel is cheap (the idea of airbench). Batch normalization
    makes it train quickly.
    """

    weight_decay = 5e-4

    def __init__(self) -> None:
        super().__init__(
            _conv(3, 32, 4, stride=2, padding=1),  # 32×32 → 16×16
            *_norm_gelu(32),
            _conv(32, 64, 3),
            *_norm_gelu(64),
            *_block(64, 128),  # 8×8
            *_block(128, 256),  # 4×4
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.BatchNorm1d(256),  # maxima are all positive: dot products want them centred
        )


class MLP(_LayeredNetwork):
    """A network for vectors that another network made: one hidden layer, which is the features."""

    def __init__(self, inputs: int, *, hidden_size: int = 512, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(inputs, hidden_size), nn.ReLU(), nn.Dropout(dropout))


IMAGE_NETWORKS: dict[str, type[nn.Module]] = {"nin": NIN, "stride": StrideNet}
BACKBONES = ("mlp", *sorted(IMAGE_NETWORKS))


def make_backbone(backbone: str | nn.Module | None, inputs: int, hidden_size: int) -> nn.Module:
    """The network of a name, or a copy of the user's own; the sizes are those of ``"mlp"``."""
    if backbone is None:
        return nn.Identity()
    if isinstance(backbone, nn.Module):
        return copy.deepcopy(backbone)
    if backbone == "mlp":
        return MLP(inputs, hidden_size=hidden_size)
    return IMAGE_NETWORKS[backbone]()


def takes_images(backbone: str | nn.Module | None, items: object) -> bool:
    """Whether items are images: by the name of the network, else by their shape."""
    if isinstance(backbone, nn.Module):
        return as_array("X", items).ndim == 4
    if backbone is not None and backbone not in BACKBONES:
        raise ValueError(
            f"backbone={backbone!r} must be a torch.nn.Module or one of {list(BACKBONES)}"
        )
    return backbone in IMAGE_NETWORKS


@torch.no_grad()
def feature_size(backbone: nn.Module, example: Tensor) -> int:
    """Number of features that a backbone makes of an example, float[1, ...]."""
    was_training = backbone.training
    backbone.eval()
    try:
        features = backbone(example)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"backbone does not take items of shape {tuple(example.shape)}: {reason}"
        ) from None
    finally:
        backbone.train(was_training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(example):
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"backbone turns items of shape {tuple(example.shape)} into {got}, "
            f"must be a tensor of shape ({len(example)}, size)"
        )
    return int(features.shape[1])


def _conv(
    inputs: int, outputs: int, size: int, *, stride: int = 1, padding: int | None = None
) -> nn.Conv2d:
    """Convolution that keeps the resolution, variance-scaling weights, no bias at the start."""
    padding = size // 2 if padding is None else padding
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=padding)
    nn.init.kaiming_normal_(conv.weight)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def _leaky() -> nn.LeakyReLU:
    return nn.LeakyReLU(1 / 5.5)


def _norm_gelu(channels: int) -> tuple[nn.Module, ...]:
    return nn.BatchNorm2d(channels), nn.GELU()


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Half the resolution, other channels; the pool stands first, so that both convs are cheap."""
    first, second = _conv(inputs, outputs, 3), _conv(outputs, outputs, 3)
    return (nn.MaxPool2d(2), first, *_norm_gelu(outputs), second, *_norm_gelu(outputs))
