"""New codes for a trained model: for another database, or for parts of classes.

*Adapt*: codes are for clusters instead of classes, by k-means on the input of the last layer and on
the given embeddings, because the layers discard what does not separate the training classes.

*Refine*: each class is split by k-means on the vectors for re-ranking, and a new level separates
its parts. Parts of different classes in similar directions from the mean of their class share a
slot. The scores of the new level are small, so that the sum over the levels picks the same class as
before, and further probes visit other parts of the class first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.codes import CodeShape, solve_level
from hashcade.learn.assignment import Ints
from hashcade.learn.clustering import kmeans
from hashcade.learn.codebook import CodebookLoss, solve_codebook
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.model import HashModel, for_all, new_linear, new_model
from hashcade.learn.prototypes import additive_codes

_ITEMS_PER_CODE, _MIN_ITEMS = 64, 16_384  # items for clustering: more change little
_ITEMS_PER_CENTROID = 256
_SIBLING_PENALTY = 50.0  # parts of a class never share a slot: distances are around 1
_SCALE = 0.02  # of the new level's scores; chosen on validation sets, 0.1 was slightly worse
_STEPS, _BATCH, _LEARNING_RATE = 1000, 256, 3e-3  # for a linear layer on fixed inputs


def adapt_model(
    model: HashModel, config: ResolvedConfig, items: Tensor, n_codes: int, *, seed: int
) -> tuple[HashModel, ResolvedConfig]:
    """A copy of the model with a code book and last layer for clusters of the items."""
    generator = torch.Generator().manual_seed(seed)
    sample_size = max(_ITEMS_PER_CODE * n_codes, _MIN_ITEMS)
    items = items[torch.randperm(len(items), generator=generator)[:sample_size]]

    # ---- clusters, and their codes
    hidden = torch.from_numpy(for_all(model, model.hidden, items))
    parts = [hidden] if config.takes_images else [hidden, items]
    points = torch.cat([_unit_spread(part) for part in parts], dim=1)
    centroids, labels = kmeans(points, n_codes, random_state=seed)
    stage, scores = config.stages[-1], for_all(model, model.scores, items)
    codebook = solve_codebook([scores], labels, len(centroids), config.shape, **stage.penalties)

    # ---- a last layer for them
    config = replace(config, assignment="codebook", rerank="given", point_size=0)
    new, clusters = new_model(config, seed), torch.from_numpy(labels)
    new.load_state_dict(model.state_dict(), strict=False)
    new.set_codebook(codebook)
    loss_fn = CodebookLoss(codebook, config.shape, sharpness=stage.sharpness, device=hidden.device)

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        return loss_fn(new.slot_scores(outputs), clusters[rows])

    new.head[-1] = _train_linear(hidden, config.shape.depth * config.shape.width, loss, seed)
    return new, replace(config, n_codes=len(codebook), codes_of="clusters")


def cluster_model(
    settings: ResolvedConfig, items: Tensor, n_codes: int, *, seed: int
) -> tuple[HashModel, ResolvedConfig]:
    """A model without training, for items without labels: prototypes are centroids of the items.

    Slot scores are products of the item with slot vectors, whose sums approximate the centroids.
    """
    generator = torch.Generator().manual_seed(seed)
    sample_size = max(_ITEMS_PER_CENTROID * n_codes, _MIN_ITEMS)
    sample = items[torch.randperm(len(items), generator=generator)[:sample_size]]
    centroids = torch.from_numpy(kmeans(sample, n_codes, random_state=seed, n_init=1)[0])
    config = replace(settings, n_codes=len(centroids), codes_of="clusters")
    model = new_model(config, seed)
    _set_codes(model, centroids, seed)
    return model, config


def _set_codes(model: HashModel, prototypes: Tensor, seed: int) -> None:
    """Set prototypes in the space of the given embeddings, and their codes."""
    penalties = model.config.stages[-1].penalties
    mean = prototypes.mean(dim=0)
    book, slots = additive_codes(prototypes - mean, model.shape, penalties, seed=seed)
    flat = slots.reshape(-1, slots.shape[2])
    with torch.no_grad():
        model.prototypes = nn.Parameter(prototypes)
        model.set_codebook(book)
        last: Any = model.head[-1]
        last.weight.copy_(flat)
        last.bias.copy_(-flat @ mean - flat.square().sum(dim=1) / 2)


def refine_model(
    model: HashModel, config: ResolvedConfig, items: Tensor, classes: Ints, n_codes: int, *,
    seed: int,
) -> tuple[HashModel, ResolvedConfig]:  # fmt: skip
    """A copy with one more level, and a code for each part of a class."""
    stage, width = config.stages[-1], config.shape.width
    n_slots = width - int(config.unit_length)  # normalization needs a slot, see below
    vectors = torch.from_numpy(for_all(model, model.vectors, items))
    parts, class_of_part = _split_classes(vectors, classes, n_codes, seed=seed, max_parts=n_slots)

    # ---- slots of the parts
    directions = _means(vectors, parts) - _means(vectors, classes)[class_of_part]
    _, clusters = kmeans(directions, min(n_slots, len(directions)), random_state=seed)
    cost = torch.cdist(directions, _means(directions, clusters)).square().numpy().astype(np.float64)
    cost /= cost.mean() or 1.0
    empty = np.full((len(cost), n_slots - cost.shape[1]), cost.max())
    fit = -np.hstack([cost, empty])  # of each part to each slot, which is a cluster of parts
    penalties: Any = {**stage.penalties, "sibling_penalty": _SIBLING_PENALTY}
    slots = solve_level(fit, sibling_groups=class_of_part, **penalties).argmax(axis=1)

    # ---- a layer from hidden values to small slot scores that separate the parts of a class
    hidden = torch.from_numpy(for_all(model, model.hidden, items))
    part_of_item, class_tensor = torch.from_numpy(parts), torch.from_numpy(class_of_part)

    def loss(scores: Tensor, rows: Tensor) -> Tensor:
        scores = F.normalize(scores, dim=1) if config.unit_length else scores
        other_class = class_tensor[None, :] != class_tensor[part_of_item[rows]][:, None]
        fit = (stage.sharpness * scores[:, slots]).masked_fill(other_class, -torch.inf)
        return F.cross_entropy(fit, part_of_item[rows])

    layer = _train_linear(hidden, width, loss, seed)
    new = copy.deepcopy(model)
    last: Any = new.head[-1]
    longer_layer = nn.Linear(last.in_features, last.out_features + width)
    with torch.no_grad():
        length = float(layer(hidden).norm(dim=1).mean())
        layer.weight.mul_(_SCALE)
        layer.bias.mul_(_SCALE)
        if config.unit_length:  # the reserved slot has the remaining length, and is never the best
            layer.weight[-1] = 0.0
            layer.bias[-1] = -length
        longer_layer.weight.copy_(torch.cat([last.weight, layer.weight]))
        longer_layer.bias.copy_(torch.cat([last.bias, layer.bias]))
    new.head[-1] = longer_layer
    new.shape = CodeShape(width=width, depth=config.shape.depth + 1)
    new.set_codebook(model.codebook.numpy()[class_of_part] * width + slots[:, None])
    return new, replace(config, shape=new.shape, n_codes=len(slots), codes_of="parts")


def refine_prototypes(
    model: HashModel, config: ResolvedConfig, items: Tensor, classes: Ints, n_codes: int, *,
    seed: int,
) -> tuple[HashModel, ResolvedConfig]:  # fmt: skip
    """A copy with one more level, and a prototype for each part of a class, the mean of vectors.

    The class is chosen as before, and then the part. The slot scores of the new level are zero.
    """
    width = config.shape.width
    vectors = torch.from_numpy(for_all(model, lambda part: model(part)[0], items))
    parts, class_of_part = _split_classes(vectors, classes, n_codes, seed=seed, max_parts=width)
    slots = np.arange(len(class_of_part)) - np.searchsorted(class_of_part, class_of_part)
    config = replace(
        config, shape=CodeShape(width=width, depth=config.shape.depth + 1), n_codes=len(slots),
        codes_of="parts",
    )  # fmt: skip
    new = new_model(config, seed)
    shapes = {name: value.shape for name, value in new.state_dict().items()}
    shared_weights = {k: v for k, v in model.state_dict().items() if v.shape == shapes.get(k)}
    new.load_state_dict(shared_weights, strict=False)
    with torch.no_grad():
        last, longer_layer = model.head[-1], new.head[-1]
        for name, value in last.named_parameters():
            padded = torch.zeros_like(longer_layer.get_parameter(name))
            padded[: len(value)] = value
            longer_layer.get_parameter(name).copy_(padded)
        new.prototypes.copy_(_means(vectors, parts))
        new.class_prototypes.copy_(model.prototypes[class_of_part])
        new.class_of_part.copy_(torch.from_numpy(class_of_part))
        book = model.codebook.numpy()[class_of_part] * width + slots[:, None]
        new.codebook.copy_(torch.from_numpy(book))
    return new.eval(), config


def _unit_spread(values: Tensor) -> Tensor:
    """Centre, and scale to a mean squared length of 1, so that all inputs weigh the same."""
    centred = values - values.mean(dim=0)
    length = centred.square().sum(dim=1).mean().sqrt()
    return centred / length if length > 0 else centred


def _split_classes(
    vectors: Tensor, classes: Ints, n_codes: int, *, seed: int, max_parts: int
) -> tuple[Ints, Ints]:
    """Clusters within every class, int64[n], numbered over all classes, and the class of each."""
    sizes = np.bincount(classes)
    max_codes = int(np.minimum(sizes, max_parts).sum())
    if not len(sizes) <= n_codes <= max_codes:
        limits = f">= {len(sizes)}, the number of classes, and <= {max_codes}"
        reason = "no class has more parts than items, or than slots of a level"
        raise ValueError(f"n_codes={n_codes} must be {limits}: {reason}")
    n_parts = np.ones(len(sizes), np.int64)
    for _ in range(n_codes - len(sizes)):  # one more for the class with the largest parts
        can_be_split = n_parts < np.minimum(sizes, max_parts)
        n_parts[np.argmax(np.where(can_be_split, sizes / n_parts, 0.0))] += 1
    parts = np.empty(len(classes), np.int64)
    class_of_part: list[int] = []
    for number in range(len(sizes)):
        members = np.flatnonzero(classes == number)
        points = vectors[torch.from_numpy(members)]
        centroids, labels = kmeans(points, int(n_parts[number]), random_state=seed)
        parts[members] = len(class_of_part) + labels
        class_of_part += [number] * len(centroids)
    return parts, np.array(class_of_part, np.int64)


def _means(vectors: Tensor, groups: Ints) -> Tensor:
    """Mean vector of each group, float[n_groups, size]."""
    group_rows = torch.from_numpy(groups)
    sizes = torch.bincount(group_rows)
    sums = torch.zeros(len(sizes), vectors.shape[1]).index_add_(0, group_rows, vectors)
    return sums / sizes[:, None]


def _train_linear(
    hidden: Tensor, outputs: int, loss: Callable[[Tensor, Tensor], Tensor], seed: int
) -> nn.Linear:
    """Train a layer on hidden values, float[n, units], by a loss of (outputs, rows)."""
    mean, spread = hidden.mean(dim=0), float(hidden.std()) or 1.0
    inputs = (hidden - mean) / spread
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = new_linear(hidden.shape[1], outputs)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_LEARNING_RATE, weight_decay=5e-4)
    for step in range(_STEPS):
        rows = torch.randint(len(inputs), (_BATCH,), generator=generator)
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * (1 - step / _STEPS)
        optimizer.zero_grad(set_to_none=True)
        loss(layer(inputs[rows]), rows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():  # fold the standardization into the layer
        layer.weight.div_(spread)
        layer.bias.sub_(F.linear(mean, layer.weight))
    return layer
