"""The model: what gives vectors for re-ranking, and what gives slot scores.

::

    items ─ prepare ─┬─ base ────── embedding ─→ vectors  (n, size)
                     └─ hash base ─ head ──────→ scores   (n, depth, width)

The hash base starts as a copy of the trained base and is fine-tuned on its own, so the vectors
stay what they were. For embeddings both bases are nothing at all, and without a learned
projection the vectors are the user's own.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.codes._shape import CodeShape
from hashcade.data._transforms import per_pixel_mean
from hashcade.learn._networks import feature_size


class HashModel(nn.Module):
    """Vectors and slot scores of items.

    Parameters
    ----------
    shape
        Width and depth of the table: the head has ``depth * width`` outputs.
    item_shape
        ``(size,)`` for embeddings, ``(height, width, 3)`` for images.
    backbone
        From prepared items to features; None for embeddings as they are.
    embedding_size
        Outputs of the layer that is trained by the base loss; None for embeddings that are
        re-ranked as they are.
    hidden_size
        Units of the hidden layer in the head, 0 for a linear head.
    unit_length
        Whether vectors of the embedding layer, and each level's scores, are brought to unit
        length (as the triplet loss wants it).
    n_codes
        Rows of the code book; 0 for none. The book is stored with the weights.
    """

    codebook: Tensor  # int64[n_codes, sparsity]

    def __init__(
        self,
        shape: CodeShape,
        item_shape: tuple[int, ...],
        *,
        backbone: nn.Module | None,
        embedding_size: int | None,
        hidden_size: int,
        unit_length: bool,
        n_codes: int = 0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.unit_length = unit_length
        self.prepare: nn.Module
        if len(item_shape) == 1:
            self.prepare = PrepareEmbeddings(item_shape[0])
        else:
            self.prepare = PrepareImages(item_shape)
        self.base: nn.Module = nn.Identity() if backbone is None else backbone
        size = feature_size(self.base, self.prepare(torch.zeros(1, *item_shape)))
        self.embedding = None if embedding_size is None else new_linear(size, embedding_size)
        self.hash_base = copy.deepcopy(self.base)
        self.head = hash_head(size, shape.depth * shape.width, hidden_size=hidden_size)
        book = torch.zeros(n_codes, shape.sparsity, dtype=torch.int64)
        # A model without a book has the weights that it had before there were books.
        self.register_buffer("codebook", book, persistent=n_codes > 0)

    def vectors(self, items: Tensor) -> Tensor:
        """Vectors for re-ranking, float[n, size]."""
        if self.embedding is None:
            return items
        vectors: Tensor = self.embedding(self.features(items))
        return F.normalize(vectors, dim=1) if self.unit_length else vectors

    def features(self, items: Tensor) -> Tensor:
        """What the embedding layer sees, float[n, units]."""
        features: Tensor = self.base(self.prepare(items))
        return features

    def scores(self, items: Tensor, *, dropout: float = 0.0) -> Tensor:
        """Slot scores, float[n, depth, width]."""
        return self.slot_scores(self.head[-1](self.hidden(items, dropout=dropout)))

    def hidden(self, items: Tensor, *, dropout: float = 0.0) -> Tensor:
        """What the last layer of the hash network sees, float[n, units].

        For training a part of the prepared values may be left out at random.
        """
        seen = F.dropout(self.prepare(items), dropout)
        features: Tensor = self.head[:-1](self.hash_base(seen))
        return features

    def slot_scores(self, outputs: Tensor) -> Tensor:
        """Outputs of the last layer, float[n, depth * width], as float[n, depth, width]."""
        scores = outputs.reshape(len(outputs), self.shape.depth, self.shape.width)
        return F.normalize(scores, dim=2) if self.unit_length else scores

    def set_codebook(self, codebook: Tensor) -> None:
        """Take another code book, of any number of rows: int64[n_codes, sparsity]."""
        self.register_buffer("codebook", codebook.clone())

    def start_hash_base(self) -> None:
        """Let the hash base start from the base as it is now."""
        self.hash_base.load_state_dict(self.base.state_dict())


class PrepareEmbeddings(nn.Module):
    """Centre embeddings and bring them to a common scale, so that defaults suit all of them.

    One scale for all directions: they keep their relative weight.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
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


def hash_head(inputs: int, outputs: int, *, hidden_size: int) -> nn.Sequential:
    """The new layers of a hash network: linear, or with one hidden layer."""
    if hidden_size == 0:
        return nn.Sequential(new_linear(inputs, outputs))
    return nn.Sequential(
        nn.Linear(inputs, hidden_size), nn.ReLU(), new_linear(hidden_size, outputs)
    )


def new_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer as the paper starts it: weights N(0, 0.01), no bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer
