"""The model in torch: vectors for re-ranking, slot scores, points to compare with prototypes.

::

    items ─ prepare ─┬─ base ────── embedding ────→ vectors  (n, size)
                     └─ hash base ─┬─ head ───────→ scores   (n, depth, width)
                                   └─ vector head ─→ points   (n, size), of unit length

The hash base starts as a copy of the trained base and is fine-tuned separately, so that vectors do
not change. For embeddings both bases may be the identity, and the vectors the items. The hidden
layers of the head are shared with the vector head, which only models with prototypes have.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.data import per_pixel_mean
from hashcade.learn.assignment import Floats, Ints, Outputs
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.encoder import DenseNetwork, Encoder, Weights
from hashcade.learn.networks import make_backbone
from hashcade.learn.one_query import rounded_to_half

T = TypeVar("T")

WHOLE = slice(None)  # of a batch

_CHUNK = 1024  # items of one forward pass


class HashModel(nn.Module):
    """Vectors, slot scores and points; new weights are drawn from torch's global generator."""

    codebook: Tensor  # int64[n_codes, sparsity]
    prototypes: Tensor  # float[n_codes, prototype_size]
    point_mean: Tensor  # float[point_size], of the training set
    class_means: Tensor  # float16[n_codes, size], of prepared items
    noise: Tensor  # float16[n_noise, size]: deviations of items from the mean of their class
    class_of_part: Tensor  # int64[n_codes]
    class_prototypes: Tensor  # float[n_codes, point_size]

    def __init__(self, config: ResolvedConfig) -> None:
        super().__init__()
        self.config, self.shape, self.unit_length = config, config.shape, config.unit_length
        prepare = PrepareImages if config.takes_images else PrepareEmbeddings
        self.prepare: PrepareEmbeddings | PrepareImages = prepare(config.item_shape)
        self.base: nn.Module = nn.Identity()
        if config.backbone is not None:
            self.base = make_backbone(
                config.backbone, config.item_shape[0], config.hidden_size, mirrored=config.mirrored
            )
        size = feature_size(self.base, self.prepare(torch.zeros(1, *config.item_shape)))
        self.embedding: nn.Module | None = None
        if config.embedding_size is not None:
            self.embedding = new_linear(size, config.embedding_size)
        self.hash_base = copy.deepcopy(self.base)
        layers: list[nn.Module] = []
        if config.with_inputs:
            layers, size = [HiddenAndInputs(size, config.hidden_size)], size + config.hidden_size
        elif config.hidden_size > 0 and config.backbone != "mlp":  # there it is part of the network
            layers, size = [nn.Linear(size, config.hidden_size), nn.ReLU()], config.hidden_size
        self.head = nn.Sequential(*layers, new_linear(size, self.shape.depth * self.shape.width))
        self.vector_head: nn.Linear | None = None
        if config.point_size > 0:
            self.register_buffer("point_mean", torch.zeros(config.point_size))
            self.vector_head = nn.Linear(size, config.point_size)
            if config.with_inputs:
                nn.init.zeros_(self.vector_head.weight[:, config.hidden_size :])
        book = torch.zeros(config.n_codes, self.shape.sparsity, dtype=torch.int64)
        self.register_buffer("codebook", book, persistent=config.uses_codebook)
        if config.uses_prototypes:
            self.prototypes = nn.Parameter(torch.zeros(config.n_codes, config.prototype_size))
            if config.spreads_prototypes:
                nn.init.orthogonal_(self.prototypes)
            if config.recalls_classes:
                for name, n_rows in (("class_means", config.n_codes), ("noise", config.n_noise)):
                    rows = torch.zeros(n_rows, config.item_shape[0], dtype=torch.float16)
                    self.register_buffer(name, rows)
            if config.has_parts:  # the class of each part, ascending, and the prototype of it
                parts = torch.zeros(config.n_codes, dtype=torch.int64)
                self.register_buffer("class_of_part", parts)
                size = config.point_size or config.item_shape[0]
                self.register_buffer("class_prototypes", torch.zeros(config.n_codes, size))

    def forward(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors, float[n, size], scores, float[n, depth, width], and points, float[n, size]."""
        features = self.hash_base(self.prepare(items))
        hidden = self.head[:-1](features)
        scores, points = self.slot_scores(self.head[-1](hidden)), items
        if self.vector_head is not None:
            points = self.points(hidden)
        if self.config.rerank == "learned":
            return points, scores, points
        other = self.hash_base.state_dict()  # equal if frozen, or without weights
        equal = all(torch.equal(other[name], w) for name, w in self.base.state_dict().items())
        if self.embedding is None or not equal:
            return self.vectors(items), scores, points
        return self.vectors_of_features(features), scores, points  # one pass for both

    def points(self, hidden: Tensor) -> Tensor:
        """Points to compare with prototypes, float[n, size], of unit length."""
        assert self.vector_head is not None
        return F.normalize(self.vector_head(hidden), dim=1)

    def vectors(self, items: Tensor) -> Tensor:
        """Vectors for re-ranking, float[n, size]."""
        return items if self.embedding is None else self.vectors_of_features(self.features(items))

    def vectors_of_features(self, features: Tensor) -> Tensor:
        """Vectors for re-ranking, from the output of :meth:`features`."""
        assert self.embedding is not None
        vectors: Tensor = self.embedding(features)
        return F.normalize(vectors, dim=1) if self.unit_length else vectors

    def features(self, items: Tensor) -> Tensor:
        """Input of the embedding layer, float[n, units]."""
        return self.base(self.prepare(items))  # type: ignore[no-any-return]

    def scores(self, items: Tensor, *, dropout: float = 0.0, share: slice = WHOLE) -> Tensor:
        """Slot scores, float[n, depth, width]."""
        hidden = self.hidden(items, dropout=dropout, share=share)
        return self.slot_scores(self.head[-1](hidden))

    def hidden(self, items: Tensor, *, dropout: float = 0.0, share: slice = WHOLE) -> Tensor:
        """Input of the last layer of the hash network, float[n, units], for a share of a batch.

        Random numbers are drawn for the whole batch, so they do not depend on the shares.
        """
        inputs = F.dropout(self.prepare(items), dropout)[share]
        return self.head[:-1](self.hash_base(inputs))  # type: ignore[no-any-return]

    def slot_scores(self, outputs: Tensor) -> Tensor:
        """Outputs of the last layer, float[n, depth * width], as float[n, depth, width]."""
        scores = outputs.reshape(len(outputs), self.shape.depth, self.shape.width)
        normalized = self.unit_length and not self.config.uses_prototypes
        return F.normalize(scores, dim=2) if normalized else scores

    def set_codebook(self, codebook: Ints) -> None:
        """Replace the code book by one with any number of rows: int64[n_codes, sparsity]."""
        self.register_buffer("codebook", torch.from_numpy(codebook).to(self.codebook.device))

    def round_layers(self) -> None:
        """Round the layers of the points to float16: one query alone reads half as many bytes."""
        hidden: Any = self.head[0].layer
        assert self.vector_head is not None
        with torch.no_grad():
            for layer in (hidden, self.vector_head):
                rounded = rounded_to_half(layer.weight.cpu().numpy())
                layer.weight.copy_(torch.from_numpy(rounded))

    def start_hash_base(self) -> None:
        """Initialise the hash base with the weights of the base."""
        self.hash_base.load_state_dict(self.base.state_dict())

    def base_weights(self) -> dict[str, Tensor]:
        """The weights of the vectors, by name, which models can share."""
        return self._parts("prepare.", "base.", "embedding.")

    def network_weights(self) -> dict[str, Tensor]:
        """The weights of the base network without its embedding, by name."""
        return self._parts("prepare.", "base.")

    def _parts(self, *names: str) -> dict[str, Tensor]:
        return {name: value for name, value in self.state_dict().items() if name.startswith(names)}


class HiddenAndInputs(nn.Module):
    """A hidden layer, concatenated with its inputs: what is linear in them need not be learned."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, units)

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden values and inputs, float[n, units + inputs]."""
        return torch.cat([F.relu(self.layer(inputs)), inputs], dim=1)


class PrepareEmbeddings(nn.Module):
    """Centre and scale embeddings, with one scale for all directions."""

    mean: Tensor
    scale: Tensor

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(item_shape))
        self.register_buffer("scale", torch.ones(()))

    def learn(self, items: Tensor) -> None:
        """Compute mean and scale of the training items, float[n, size]."""
        self.mean.copy_(items.mean(dim=0, dtype=torch.float64))
        spread = (items - self.mean).square().mean(dtype=torch.float64).sqrt()
        self.scale.fill_(float(spread) or 1.0)  # 0 if all items are equal

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
        """Compute the mean image of the training items, uint8[n, h, w, 3]."""
        self.mean.copy_(torch.from_numpy(per_pixel_mean(items.cpu().numpy())).permute(2, 0, 1))

    def forward(self, items: Tensor) -> Tensor:
        """Prepared images, float[n, 3, h, w]."""
        return items.permute(0, 3, 1, 2).to(self.mean.dtype) / 255 - self.mean


@torch.no_grad()
def feature_size(backbone: nn.Module, example: Tensor) -> int:
    """Number of features of a backbone, by its output for an example, float[1, ...]."""
    shape, was_training = tuple(example.shape), backbone.training
    try:
        features = backbone.eval()(example)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"backbone does not take items of shape {shape}: {reason}") from None
    finally:
        backbone.train(was_training)
    actual = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if len(actual) != 2 or actual[0] != 1:
        expected = "must be a tensor of shape (1, size)"
        raise ValueError(f"backbone turns items of shape {shape} into {actual}, {expected}")
    return int(actual[1])


def new_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer initialised as in the paper: weights N(0, 0.01), no bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer


class Slices(Protocol):
    """Items that can be sliced: a tensor, or rows of a memory-mapped file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tensor: ...


def in_chunks(model: HashModel, function: Callable[[Tensor], T], items: Slices) -> Iterator[T]:
    """Apply a function of the model, such as ``model.scores``, to many items, in chunks."""
    device = next(model.parameters()).device
    for start in range(0, max(1, len(items)), _CHUNK):
        with torch.no_grad():
            result = function(items[start : start + _CHUNK].to(device))
        yield result


def for_all(model: HashModel, function: Callable[[Tensor], Tensor], items: Slices) -> Floats:
    """The results of :func:`in_chunks` as one array."""
    return np.concatenate([to_numpy(part) for part in in_chunks(model, function, items)])


def new_model(config: ResolvedConfig, seed: int = 0) -> HashModel:
    """A model with random weights by a seed; torch's global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HashModel(config)


def make_model(config: ResolvedConfig, weights: Weights) -> HashModel:
    """A model with given weights."""
    _check_sizes(config, weights)
    model = new_model(config)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model.eval()


def _check_sizes(config: ResolvedConfig, weights: Weights) -> None:
    """Raise ``ValueError`` unless weights fit the config, before memory is allocated.

    A few numbers of an untrusted config could require any amount of memory. A user-defined network
    exists already.
    """
    if isinstance(config.backbone, nn.Module):
        return
    with torch.device("meta"):  # shapes without numbers
        shapes = {name: tuple(w.shape) for name, w in HashModel(config).state_dict().items()}
    actual = {name: array.shape for name, array in weights.items()}
    for name in sorted(shapes.keys() | actual.keys()):
        if shapes.get(name) != actual.get(name):
            raise ValueError(f"{name} has shape {actual.get(name)}, must be {shapes.get(name)}")


def make_encoder(config: ResolvedConfig, weights: Weights, model: HashModel | None) -> Encoder:
    """The encoder of a fitted model; the torch model is used only if numpy cannot run it."""
    if config.is_dense:
        return Encoder(config, weights, DenseNetwork(config, weights))
    assert model is not None
    torch_model = model

    @torch.no_grad()
    def network(items: npt.NDArray[Any], with_scores: bool = True) -> Outputs:
        device = next(torch_model.parameters()).device
        return Outputs(*map(to_numpy, torch_model(torch.from_numpy(items).to(device))))

    return Encoder(config, weights, network)


def weights_of(model: HashModel) -> dict[str, npt.NDArray[Any]]:
    """All weights by name, as numpy arrays."""
    return {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}


def to_numpy(values: Tensor) -> npt.NDArray[np.float32]:
    """Convert a tensor to float32 in numpy."""
    return values.float().cpu().numpy()
