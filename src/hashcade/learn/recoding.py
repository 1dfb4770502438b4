"""Other codes for a trained model: for another database, or for parts of classes.

*Adapt*: clusters take the place of classes, by k-means on the input of the last layer and on given
embeddings, because layers discard whatever does not tell the classes of the training apart.

*Refine*: each class is split by k-means on the vectors for re-ranking, and a new level tells its
parts apart. Parts of different classes that lie in similar directions from the mean of their class
fit the same slot. The new level's scores are made small, so the sum of the levels picks the class
as before, and further probes come to other parts of the class first.
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

_ITEMS_PER_CODE, _FEWEST_ITEMS = 64, 16_384  # to adapt to: more items than this change little
_ITEMS_PER_CENTROID = 256
_SIBLING_PENALTY = 50.0  # parts of a class never share a slot: misfits are around 1
_SCALE = 0.02  # of the new level's scores; picked on validation sets, 0.1 was little worse
_STEPS, _BATCH, _LEARNING_RATE = 1000, 256, 3e-3  # of a linear layer on fixed inputs


def adapt_model(
    model: HashModel, config: ResolvedConfig, items: Tensor, n_codes: int, *, seed: int
) -> tuple[HashModel, ResolvedConfig]:
    """A copy of the model whose code book and last layer fit the items, at least ``n_codes``."""
    generator = torch.Generator().manual_seed(seed)
    n_used = max(_ITEMS_PER_CODE * n_codes, _FEWEST_ITEMS)
    items = items[torch.randperm(len(items), generator=generator)[:n_used]]

    # ---- clusters, and their codes
    hidden = torch.from_numpy(for_all(model, model.hidden, items))
    parts = [hidden] if config.takes_images else [hidden, items]
    points = torch.cat([_unit_spread(part) for part in parts], dim=1)
    centroids, labels = kmeans(points, n_codes, random_state=seed)
    stage, scores = config.stages[-1], for_all(model, model.scores, items)
    codebook = solve_codebook([scores], labels, len(centroids), config.shape, **stage.penalties)

    # ---- a last layer for them
    config = replace(config, assignment="codebook", rerank="given", point_size=0)
    adapted, clusters = new_model(config, seed), torch.from_numpy(labels)
    adapted.load_state_dict(model.state_dict(), strict=False)
    adapted.set_codebook(codebook)
    cost = CodebookLoss(codebook, config.shape, sharpness=stage.sharpness, device=hidden.device)

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        return cost(adapted.slot_scores(outputs), clusters[rows])

    adapted.head[-1] = _train_linear(hidden, config.shape.depth * config.shape.width, loss, seed)
    return adapted, replace(config, n_codes=len(codebook), codes_of="clusters")


def cluster_model(
    settings: ResolvedConfig, items: Tensor, n_codes: int, *, seed: int
) -> tuple[HashModel, ResolvedConfig]:
    """A model without training, for items without labels: prototypes are centroids of the items.

    Slot scores are products of the item with vectors of which centroids are about the sum.
    """
    generator = torch.Generator().manual_seed(seed)
    n_used = max(_ITEMS_PER_CENTROID * n_codes, _FEWEST_ITEMS)
    sample = items[torch.randperm(len(items), generator=generator)[:n_used]]
    centroids = torch.from_numpy(kmeans(sample, n_codes, random_state=seed, n_init=1)[0])
    config = replace(settings, n_codes=len(centroids), codes_of="clusters")
    model = new_model(config, seed)
    _give_codes(model, centroids, seed)
    return model, config


def _give_codes(model: HashModel, prototypes: Tensor, seed: int) -> None:
    """Prototypes in the space of the given embeddings, and codes that propose them."""
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
    """A copy with a level more, and a code for each part of a class, of which each occurs."""
    stage, width = config.stages[-1], config.shape.width
    n_slots = width - int(config.unit_length)  # to normalize a level takes a slot, see below
    vectors = torch.from_numpy(for_all(model, model.vectors, items))
    parts = _split_classes(vectors, classes, n_codes, seed=seed, most=n_slots)
    class_of_part = np.zeros(parts.max() + 1, np.int64)
    class_of_part[parts] = classes

    # ---- slots of the parts
    directions = _means(vectors, parts) - _means(vectors, classes)[class_of_part]
    _, clusters = kmeans(directions, min(n_slots, len(directions)), random_state=seed)
    gaps = torch.cdist(directions, _means(directions, clusters)).square().numpy().astype(np.float64)
    gaps /= gaps.mean() or 1.0
    empty = np.full((len(gaps), n_slots - gaps.shape[1]), gaps.max())
    fit = -np.hstack([gaps, empty])  # of each part to each slot, which is a cluster of them
    penalties: Any = {**stage.penalties, "sibling_penalty": _SIBLING_PENALTY}
    slots = solve_level(fit, sibling_groups=class_of_part, **penalties).argmax(axis=1)

    # ---- a layer from hidden values to small slot scores that tell the parts of a class apart
    hidden = torch.from_numpy(for_all(model, model.hidden, items))
    part_of_item, class_of = torch.from_numpy(parts), torch.from_numpy(class_of_part)

    def loss(scores: Tensor, rows: Tensor) -> Tensor:
        scores = F.normalize(scores, dim=1) if config.unit_length else scores
        other_class = class_of[None, :] != class_of[part_of_item[rows]][:, None]
        fit = (stage.sharpness * scores[:, slots]).masked_fill(other_class, -torch.inf)
        return F.cross_entropy(fit, part_of_item[rows])

    layer = _train_linear(hidden, width, loss, seed)
    refined = copy.deepcopy(model)
    last: Any = refined.head[-1]
    longer = nn.Linear(last.in_features, last.out_features + width)
    with torch.no_grad():
        length = float(layer(hidden).norm(dim=1).mean())
        layer.weight.mul_(_SCALE)
        layer.bias.mul_(_SCALE)
        if config.unit_length:  # the reserved slot takes up the length, and is never the best
            layer.weight[-1] = 0.0
            layer.bias[-1] = -length
        longer.weight.copy_(torch.cat([last.weight, layer.weight]))
        longer.bias.copy_(torch.cat([last.bias, layer.bias]))
    refined.head[-1] = longer
    refined.shape = CodeShape(width=width, depth=config.shape.depth + 1)
    refined.set_codebook(model.codebook.numpy()[class_of_part] * width + slots[:, None])
    return refined, replace(config, shape=refined.shape, n_codes=len(slots), codes_of="parts")


def refine_prototypes(
    model: HashModel, config: ResolvedConfig, items: Tensor, classes: Ints, n_codes: int, *,
    seed: int,
) -> tuple[HashModel, ResolvedConfig]:  # fmt: skip
    """A copy with a level more, and a prototype for each part of a class, the mean of its points.

    The class is decided as before, and then the part. The slots of the new level say nothing.
    """
    width = config.shape.width
    points = torch.from_numpy(for_all(model, lambda part: model(part)[2], items))
    parts = _split_classes(points, classes, n_codes, seed=seed, most=width)
    class_of_part = np.zeros(parts.max() + 1, np.int64)
    class_of_part[parts] = classes
    slots = np.arange(len(class_of_part)) - np.searchsorted(class_of_part, class_of_part)
    config = replace(
        config, shape=CodeShape(width=width, depth=config.shape.depth + 1), n_codes=len(slots),
        codes_of="parts",
    )  # fmt: skip
    refined = new_model(config, seed)
    shapes = {name: value.shape for name, value in refined.state_dict().items()}
    fixed = {k: v for k, v in model.state_dict().items() if v.shape == shapes.get(k)}
    refined.load_state_dict(fixed, strict=False)
    with torch.no_grad():
        last, longer = model.head[-1], refined.head[-1]
        for name, value in last.named_parameters():
            padded = torch.zeros_like(longer.get_parameter(name))
            padded[: len(value)] = value
            longer.get_parameter(name).copy_(padded)
        refined.prototypes.copy_(_means(points, parts))
        refined.class_prototypes.copy_(model.prototypes[class_of_part])
        refined.class_of_part.copy_(torch.from_numpy(class_of_part))
        book = model.codebook.numpy()[class_of_part] * width + slots[:, None]
        refined.codebook.copy_(torch.from_numpy(book))
    return refined.eval(), config


def _unit_spread(values: Tensor) -> Tensor:
    """Centred, and the mean squared length brought to 1, so that parts weigh the same."""
    centred = values - values.mean(dim=0)
    length = centred.square().sum(dim=1).mean().sqrt()
    return centred / length if length > 0 else centred


def _split_classes(vectors: Tensor, classes: Ints, n_codes: int, *, seed: int, most: int) -> Ints:
    """Clusters inside every class, int64[n], numbered 0, 1, 2, ... over all of them."""
    sizes = np.bincount(classes)
    highest = int(np.minimum(sizes, most).sum())
    if not len(sizes) <= n_codes <= highest:
        limits = f">= {len(sizes)}, the number of classes, and <= {highest}"
        reason = "no class has more parts than items, or than slots of a level"
        raise ValueError(f"n_codes={n_codes} must be {limits}: {reason}")
    n_parts = np.ones(len(sizes), np.int64)
    for _ in range(n_codes - len(sizes)):  # one more for the class whose parts are largest
        can_be_split = n_parts < np.minimum(sizes, most)
        n_parts[np.argmax(np.where(can_be_split, sizes / n_parts, 0.0))] += 1
    parts, n_before = np.empty(len(classes), np.int64), 0
    for number in range(len(sizes)):
        members = np.flatnonzero(classes == number)
        points = vectors[torch.from_numpy(members)]
        centroids, labels = kmeans(points, int(n_parts[number]), random_state=seed)
        parts[members] = n_before + labels
        n_before += len(centroids)
    return parts


def _means(vectors: Tensor, groups: Ints) -> Tensor:
    """Mean vector of each group, float[n_groups, size]."""
    places = torch.from_numpy(groups)
    sizes = torch.bincount(places)
    sums = torch.zeros(len(sizes), vectors.shape[1]).index_add_(0, places, vectors)
    return sums / sizes[:, None]


def _train_linear(
    hidden: Tensor, outputs: int, loss: Callable[[Tensor, Tensor], Tensor], seed: int
) -> nn.Linear:
    """A layer from hidden values, float[n, units], that makes a loss of (outputs, rows) small."""
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
    with torch.no_grad():  # it will see hidden values as they are: mean and spread go into it
        layer.weight.div_(spread)
        layer.bias.sub_(F.linear(mean, layer.weight))
    return layer
