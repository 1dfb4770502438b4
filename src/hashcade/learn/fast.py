"""A network for images that learns fast on a CPU, and how it is trained.

What makes it fast, on two cores of a processor with bfloat16:

- The first layer halves the resolution. At 32×32 memory bandwidth would be the limit; at 16×16, 8×8
  and 4×4 it is arithmetic.
- Convolutions run in bfloat16, channels last.
- Filters are trained with orthogonalised updates (:class:`Muon`): all directions learn at the same
  rate, and a few epochs replace tens.
- A new network may be warmed up as a classifier: losses of pairs and triplets learn little from
  untrained features.

For results see docs/results/cifar100-scratch.md, for the time of a step docs/results/image-step.md,
for ablations docs/decisions.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

# Of the classifier: the factor on cosines, and label smoothing.
_SCALE, _SMOOTHING = 10.0, 0.1
_STEPS_TO_ORTHOGONAL = 3
# An odd polynomial whose iteration takes singular values from 0..1 close to 1.
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)


class FastNet(nn.Module):
    """256 features at 0.06 G multiplications per image.

    If images are ``mirrored`` at random in training, features at inference are the mean of those of
    an image and of its mirror image.
    """

    weight_decay = 0.0  # the norm of filters is fixed instead
    learning_rate = 3e-3

    def __init__(self, mirrored: bool = False) -> None:
        super().__init__()
        self.mirrored = mirrored
        layers = nn.Sequential(
            _convolution(3, 64, 4, 2),  # 32×32 → 16×16
            Residual(64),
            nn.MaxPool2d(2), _convolution(64, 128), Residual(128), Residual(128),  # 8×8
            nn.MaxPool2d(2), _convolution(128, 256), Residual(256), Residual(256),  # 4×4
            nn.AdaptiveMaxPool2d(1), nn.Flatten(),
            nn.BatchNorm1d(256),  # maxima are positive: products need centred values
        )  # fmt: skip
        self.layers: nn.Module = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Features, float[n, 256]."""
        images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.layers(images)
        if self.mirrored and not self.training:
            features = (features + self.layers(images.flip(3))) / 2
        return features


class Residual(nn.Module):
    """A convolution with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = _convolution(channels, channels)

    def forward(self, values: Tensor) -> Tensor:
        """Values of the same shape."""
        return values + self.layers(values)  # type: ignore[no-any-return]


def _convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def is_filter(parameter: Tensor) -> bool:
    """Whether a parameter of the network is trained by :class:`Muon`: weights of convolutions."""
    return parameter.ndim == 4


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates: all directions of a layer move equally far.

    By K. Jordan and others, 2024. The norm of filters, which batch normalization makes irrelevant,
    is fixed.
    """

    rate = 40.0  # factor on the learning rate of Adam

    def __init__(self, params: Any, lr: float, momentum: float = 0.6) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all filters that have a gradient."""
        for group in self.param_groups:
            for filters in group["params"]:
                if filters.grad is None:
                    continue
                state, momentum = self.state[filters], group["momentum"]
                if not state:
                    state["mean"] = torch.zeros_like(filters)
                mean = state["mean"].mul_(momentum).add_(filters.grad)
                direction = nearly_orthogonal(filters.grad.add(mean, alpha=momentum).flatten(1))
                filters.mul_(len(filters) ** 0.5 / filters.norm())
                filters.sub_(direction.reshape(filters.shape), alpha=group["lr"])


def nearly_orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors, and singular values near 1 (Newton-Schulz)."""
    is_wide = matrix.shape[0] <= matrix.shape[1]
    values: Tensor = (matrix if is_wide else matrix.T) / (matrix.norm() + 1e-7)
    first, third, fifth = _POLYNOMIAL
    for _ in range(_STEPS_TO_ORTHOGONAL):
        squares = values @ values.T
        values = first * values + (third * squares + fifth * squares @ squares) @ values
    return values if is_wide else values.T


def gains_from_bfloat16(device: torch.device) -> bool:
    """Whether convolutions are faster in bfloat16."""
    if device.type == "cpu":
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return device.type == "cuda"


@lru_cache(maxsize=1)
def class_directions(n_classes: int, size: int) -> Tensor:
    """Fixed weights of the classifier, float[n_classes, size], of unit length.

    Orthogonal, if there are enough dimensions; learning them has no benefit (Hoffer et al., 2018).
    """
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(max(n_classes, size), size, generator=generator)
    if n_classes > size:
        return F.normalize(random, dim=1)
    orthogonal: Tensor = torch.linalg.qr(random).Q
    return orthogonal[:n_classes]


def warmup_loss(features: Tensor, directions: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the cosines of features with the directions of the classes."""
    logits = _SCALE * F.normalize(features, dim=1) @ directions.T
    return F.cross_entropy(logits, labels, label_smoothing=_SMOOTHING)
