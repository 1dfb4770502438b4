"""Backbones: the network of the paper, two for CPUs, and one for vectors.

A backbone is any ``torch.nn.Module`` from images, float[n, 3, height, width], or from vectors,
float[n, inputs], to features, float[n, size].
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from hashcade.learn.fast import FastNet


class _LayeredNetwork(nn.Module):
    """A sequence of layers; ``weight_decay`` is for its training."""

    weight_decay = 0.0

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, items: Tensor) -> Tensor:
        """Features, float[n, size]."""
        return self.layers(items)  # type: ignore[no-any-return]


class NIN(_LayeredNetwork):
    """Network in network, as in the paper: 192 features at 0.22 G multiplications per image."""

    weight_decay = 4e-5

    def __init__(self) -> None:
        super().__init__(
            _conv(3, 192, 5), _leaky(), _conv(192, 160, 1), _leaky(), _conv(160, 96, 1), _leaky(),
            # ceil_mode: 32 → 16 → 8 with windows that may overhang on the right, as with
            # TensorFlow's "same" padding. Neither counts what is outside.
            nn.MaxPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5),
            _conv(96, 192, 5), _leaky(), _conv(192, 192, 1), _leaky(), _conv(192, 192, 1), _leaky(),
            nn.AvgPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5),
            _conv(192, 192, 3), _leaky(), _conv(192, 192, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.ReLU(),
        )  # fmt: skip


class StrideNet(_LayeredNetwork):
    """A small network for CPUs: 256 features at 0.03 G multiplications per image."""

    weight_decay = 5e-4

    def __init__(self) -> None:
        super().__init__(
            *_conv_norm(3, 32, 4, 2),  # 32×32 → 16×16
            *_conv_norm(32, 64, 3),  # most work is at lower resolutions, where channels are cheap
            nn.MaxPool2d(2), *_conv_norm(64, 128, 3), *_conv_norm(128, 128, 3),  # 8×8
            nn.MaxPool2d(2), *_conv_norm(128, 256, 3), *_conv_norm(256, 256, 3),  # 4×4
            nn.AdaptiveMaxPool2d(1), nn.Flatten(),
            nn.BatchNorm1d(256),  # maxima are positive: dot products need centred values
        )  # fmt: skip


class MLP(_LayeredNetwork):
    """A network for vectors: one hidden layer, whose units are the features."""

    def __init__(self, inputs: int, *, hidden_size: int = 512, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(inputs, hidden_size), nn.ReLU(), nn.Dropout(dropout))


IMAGE_NETWORKS: dict[str, type[nn.Module]] = {"fast": FastNet, "nin": NIN, "stride": StrideNet}
BACKBONES = ("mlp", *sorted(IMAGE_NETWORKS))


def make_backbone(
    backbone: str | nn.Module, inputs: int, hidden_size: int, *, mirrored: bool
) -> nn.Module:
    """The network of a name, or a copy of a user-defined one.

    ``inputs`` and ``hidden_size`` are for ``"mlp"``, ``mirrored`` is for ``"fast"``.
    """
    if isinstance(backbone, nn.Module):
        return copy.deepcopy(backbone)
    if backbone == "mlp":
        return MLP(inputs, hidden_size=hidden_size)
    if backbone == "fast":
        return FastNet(mirrored)
    return IMAGE_NETWORKS[backbone]()


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Convolution that keeps the resolution; weights by variance scaling, bias zero."""
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=(size - 1) // 2)
    nn.init.kaiming_normal_(conv.weight)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def _conv_norm(inputs: int, outputs: int, *sides: int) -> tuple[nn.Module, ...]:
    return _conv(inputs, outputs, *sides), nn.BatchNorm2d(outputs), nn.GELU()


def _leaky() -> nn.LeakyReLU:
    return nn.LeakyReLU(1 / 5.5)
