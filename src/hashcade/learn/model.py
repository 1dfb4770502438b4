"""The model: vectors for re-ranking, and slot scores.

::

    items ─ prepare ─┬─ base ────── embedding ─→ vectors  (n, size)
                     └─ hash base ─ head ──────→ scores   (n, depth, width)

The hash base starts as a copy of the trained base and is fine-tuned on its own: vectors stay what
they were. For embeddings both bases may be the identity, and the vectors the items.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.data import per_pixel_mean
from hashcade.index import Encoded
from hashcade.learn.codebook import Floats, Ints, assign_to_book
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.networks import make_backbone

T = TypeVar("T")
OnProgress = Callable[[int, int], object] | None  # takes the number of items done, and in all

_CHUNK = 1024  # items of one pass


class HashModel(nn.Module):
    """Vectors and slot scores of items; new weights are drawn from torch's global generator."""

    codebook: Tensor  # int64[n_codes, sparsity]

    def __init__(self, config: ResolvedConfig) -> None:
        super().__init__()
        self.shape, self.unit_length = config.shape, config.unit_length
        prepare = PrepareImages if config.takes_images else PrepareEmbeddings
        self.prepare: PrepareEmbeddings | PrepareImages = prepare(config.item_shape)
        self.base: nn.Module = nn.Identity()
        if config.backbone is not None:
            self.base = make_backbone(config.backbone, config.item_shape[0], config.hidden_size)
        size = feature_size(self.base, self.prepare(torch.zeros(1, *config.item_shape)))
        self.embedding: nn.Module | None = None
        if config.embedding_size is not None:
            self.embedding = new_linear(size, config.embedding_size)
        self.hash_base = copy.deepcopy(self.base)
        layers: list[nn.Module] = []
        if config.hidden_size > 0 and config.backbone != "mlp":  # there it is in the network
            layers, size = [nn.Linear(size, config.hidden_size), nn.ReLU()], config.hidden_size
        self.head = nn.Sequential(*layers, new_linear(size, self.shape.depth * self.shape.width))
        book = torch.zeros(config.n_codes, self.shape.sparsity, dtype=torch.int64)
        self.register_buffer("codebook", book, persistent=config.uses_codebook)

    def forward(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors, float[n, size], and slot scores, float[n, depth, width]."""
        other = self.hash_base.state_dict()  # equal if it was frozen, or has no weights
        equal = all(torch.equal(other[name], w) for name, w in self.base.state_dict().items())
        if self.embedding is None or not equal:
            return self.vectors(items), self.scores(items)
        features = self.features(items)  # one pass serves both
        return self._vectors(features), self.slot_scores(self.head(features))

    def vectors(self, items: Tensor) -> Tensor:
        """Vectors for re-ranking, float[n, size]."""
        return items if self.embedding is None else self._vectors(self.features(items))

    def _vectors(self, features: Tensor) -> Tensor:
        assert self.embedding is not None
        vectors: Tensor = self.embedding(features)
        return F.normalize(vectors, dim=1) if self.unit_length else vectors

    def features(self, items: Tensor) -> Tensor:
        """Input of the embedding layer, float[n, units]."""
        return self.base(self.prepare(items))  # type: ignore[no-any-return]

    def scores(self, items: Tensor, *, dropout: float = 0.0) -> Tensor:
        """Slot scores, float[n, depth, width]."""
        return self.slot_scores(self.head[-1](self.hidden(items, dropout=dropout)))

    def hidden(self, items: Tensor, *, dropout: float = 0.0) -> Tensor:
        """Input of the last layer of the hash network, float[n, units]."""
        inputs = F.dropout(self.prepare(items), dropout)
        return self.head[:-1](self.hash_base(inputs))  # type: ignore[no-any-return]

    def slot_scores(self, outputs: Tensor) -> Tensor:
        """Outputs of the last layer, float[n, depth * width], as float[n, depth, width]."""
        scores = outputs.reshape(len(outputs), self.shape.depth, self.shape.width)
        return F.normalize(scores, dim=2) if self.unit_length else scores

    def bucket_ids(self, scores: Floats, by_path: bool) -> Ints:
        """Buckets of items, int64[n, sparsity]: at the end of their path, or by the code book."""
        if by_path:
            return self.shape.scores_to_bucket_ids(scores)
        return assign_to_book(scores, self.codebook.cpu().numpy(), self.shape)

    def set_codebook(self, codebook: Ints) -> None:
        """Replace the code book by one of any number of rows: int64[n_codes, sparsity]."""
        self.register_buffer("codebook", torch.from_numpy(codebook).to(self.codebook.device))

    def start_hash_base(self) -> None:
        """Let the hash base start from the base as it is now."""
        self.hash_base.load_state_dict(self.base.state_dict())

    def base_weights(self) -> dict[str, Tensor]:
        """The weights that make the vectors, by name; other models can take them over."""
        parts = ("prepare.", "base.", "embedding.")
        return {name: value for name, value in self.state_dict().items() if name.startswith(parts)}


class PrepareEmbeddings(nn.Module):
    """Centre embeddings and bring them to a common scale, the same for all directions."""

    mean: Tensor
    scale: Tensor

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(item_shape))
        self.register_buffer("scale", torch.ones(()))

    def learn(self, items: Tensor) -> None:
        """Take mean and scale from the training items, float[n, size]."""
        self.mean.copy_(items.mean(dim=0, dtype=torch.float64))
        spread = (items - self.mean).square().mean(dtype=torch.float64).sqrt()
        self.scale.fill_(float(spread) or 1.0)  # all items equal: nothing to scale

    def forward(self, items: Tensor) -> Tensor:
        """Prepared embeddings, float[n, size]."""
        return (items - self.mean) / self.scale


class PrepareImages(nn.Module):
    """Pixels / 255 minus the mean image of the training set, channels first."""

    mean: Tensor

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        height, width, channels = item_shape
        self.register_buffer("mean", torch.zeros(channels, height, width))

    def learn(self, items: Tensor) -> None:
        """Take the mean image from the training items, uint8[n, h, w, 3]."""
        self.mean.copy_(torch.from_numpy(per_pixel_mean(items.cpu().numpy())).permute(2, 0, 1))

    def forward(self, items: Tensor) -> Tensor:
        """Prepared images, float[n, 3, h, w]."""
        return items.permute(0, 3, 1, 2).to(self.mean.dtype) / 255 - self.mean


@torch.no_grad()
def feature_size(backbone: nn.Module, example: Tensor) -> int:
    """Number of features that a backbone makes of an example, float[1, ...]."""
    shape, was_training = tuple(example.shape), backbone.training
    try:
        features = backbone.eval()(example)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"backbone does not take items of shape {shape}: {reason}") from None
    finally:
        backbone.train(was_training)
    got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if len(got) != 2 or got[0] != 1:
        must = "must be a tensor of shape (1, size)"
        raise ValueError(f"backbone turns items of shape {shape} into {got}, {must}")
    return int(got[1])


def new_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer as the paper starts it: weights N(0, 0.01), no bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer


def in_chunks(
    model: HashModel, function: Callable[[Tensor], T], items: Tensor, progress: OnProgress = None
) -> Iterator[T]:
    """The model, or a function of it such as ``model.scores``, for many items, chunk by chunk."""
    device = next(model.parameters()).device
    for at in range(0, max(1, len(items)), _CHUNK):
        with torch.no_grad():
            result = function(items[at : at + _CHUNK].to(device))
        yield result
        if progress is not None:
            progress(min(at + _CHUNK, len(items)), len(items))


def for_all(model: HashModel, function: Callable[[Tensor], Tensor], items: Tensor) -> Floats:
    """The results of :func:`in_chunks` as one array."""
    return np.concatenate([to_numpy(part) for part in in_chunks(model, function, items)])


def encode(model: HashModel, items: Tensor, by_path: bool, progress: OnProgress = None) -> Encoded:
    """Vectors, buckets and scores of many items, each item in one pass of the network."""
    chunks = [tuple(map(to_numpy, both)) for both in in_chunks(model, model, items, progress)]
    vectors, scores = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    return Encoded(vectors, model.bucket_ids(scores, by_path), scores, by_path)


def to_numpy(values: Tensor) -> npt.NDArray[np.float32]:
    """A tensor in main memory."""
    return values.float().cpu().numpy()
