"""One more level: the bucket of every class is split into parts of the class.

A code book has one code per class, so a search cannot look at less than about one class. To look
at less, each class is split by k-means on the vectors for re-ranking, because what lies near a
query there is what the search has to find. A new level tells the parts of a class apart:

1. Slots. The mean of a part, relative to the mean of its class, is a direction in which members
   of the class differ; parts of different classes with similar directions fit the same slot. The
   assignment is an exact level of the code problem, with the parts of a class as siblings.
2. A layer for it is trained on the parts of each item's own class alone, all else is unchanged.
3. Its scores are made small. So the sum of the levels picks the class as before, and the new
   level decides among its parts only; further probes come to the other parts first.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade._validate import checked_count
from hashcade.codes import CodeShape, solve_level
from hashcade.learn.clustering import kmeans
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.linear_head import train_linear_head
from hashcade.learn.model import HashModel, for_all

Ints = npt.NDArray[np.int64]

_SIBLING_PENALTY = 50.0  # parts of a class never share a slot: misfits are around 1
_SCALE = 0.02  # of the new level's scores; picked on validation sets, 0.1 was little worse


def checked_n_codes(n_codes: object, config: ResolvedConfig, classes: Ints) -> int:
    """Return a number of codes that the classes of some items, int64[n], can be split into."""
    count, sizes = checked_count("n_codes", n_codes), np.bincount(classes)
    most = int(np.minimum(sizes, _usable_slots(config)).sum())
    if not len(sizes) <= count <= most:
        raise ValueError(
            f"n_codes={count} must be >= {len(sizes)}, the number of classes, and <= {most}: "
            f"no class has more parts than items, or than slots of a level"
        )
    return count


def refine_model(
    model: HashModel, config: ResolvedConfig, items: Tensor, classes: Ints, n_codes: int, *,
    seed: int,
) -> tuple[HashModel, ResolvedConfig]:  # fmt: skip
    """A copy of the model with a level more, and a code for each part of a class.

    The model has a code book of one bucket per class; of ``classes``, its rows, each must occur.
    Large classes get more parts.
    """
    stage, width, n_slots = config.stages[-1], config.shape.width, _usable_slots(config)
    vectors = torch.from_numpy(for_all(model, model.vectors, items))
    parts = _split_classes(vectors, classes, n_codes, seed=seed, most=n_slots)
    class_of_part = np.zeros(parts.max() + 1, np.int64)
    class_of_part[parts] = classes

    # ---- slots of the parts
    directions = _means(vectors, parts) - _means(vectors, classes)[class_of_part]
    codes = solve_level(
        _slot_scores(directions, n_slots, seed=seed),
        sibling_groups=class_of_part,
        sibling_penalty=_SIBLING_PENALTY,
        collision_penalty=stage.collision_penalty,
    )
    slots = codes.argmax(axis=1)

    # ---- the new level
    layer = _train_level(
        torch.from_numpy(for_all(model, model.hidden, items)), torch.from_numpy(parts),
        torch.from_numpy(class_of_part), torch.from_numpy(slots), width,
        sharpness=stage.sharpness, unit_length=config.unit_length, seed=seed,
    )  # fmt: skip
    refined = copy.deepcopy(model)
    refined.shape = CodeShape(width=width, depth=config.shape.depth + 1)
    codebook = model.codebook.numpy()[class_of_part] * width + slots[:, None]
    refined.set_codebook(codebook)
    last = refined.head[-1]
    assert isinstance(last, nn.Linear)
    longer = nn.Linear(last.in_features, last.out_features + width)
    with torch.no_grad():
        longer.weight.copy_(torch.cat([last.weight, layer.weight]))
        longer.bias.copy_(torch.cat([last.bias, layer.bias]))
    refined.head[-1] = longer
    return refined, replace(config, shape=refined.shape, n_codes=len(codebook), codes_of="parts")


def _usable_slots(config: ResolvedConfig) -> int:
    """Where a level is normalized, one slot is reserved to keep the others small."""
    return config.shape.width - int(config.unit_length)


def _split_classes(vectors: Tensor, classes: Ints, n_codes: int, *, seed: int, most: int) -> Ints:
    """Clusters inside every class, int64[n], numbered 0, 1, 2, ... over all of them."""
    sizes = np.bincount(classes)
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


def _slot_scores(directions: Tensor, n_slots: int, *, seed: int) -> npt.NDArray[np.float64]:
    """How well each part fits each slot, [n_parts, n_slots], around -1; slots are clusters."""
    _, clusters = kmeans(directions, min(n_slots, len(directions)), random_state=seed)
    gaps = torch.cdist(directions, _means(directions, clusters)).square().numpy().astype(np.float64)
    gaps /= gaps.mean() or 1.0
    empty = np.full((len(gaps), n_slots - gaps.shape[1]), gaps.max())
    return -np.hstack([gaps, empty])


def _train_level(
    hidden: Tensor, parts: Tensor, class_of_part: Tensor, slots: Tensor, width: int, *,
    sharpness: float, unit_length: bool, seed: int,
) -> nn.Linear:  # fmt: skip
    """A layer from hidden values to small slot scores that tell the parts of a class apart."""

    def loss(scores: Tensor, rows: Tensor) -> Tensor:
        if unit_length:
            scores = F.normalize(scores, dim=1)
        other_class = class_of_part[None, :] != class_of_part[parts[rows]][:, None]
        fit = (sharpness * scores[:, slots]).masked_fill(other_class, -torch.inf)
        return F.cross_entropy(fit, parts[rows])

    layer = train_linear_head(hidden, width, loss, seed=seed)
    with torch.no_grad():
        length = float(layer(hidden).norm(dim=1).mean())
        layer.weight.mul_(_SCALE)
        layer.bias.mul_(_SCALE)
        if unit_length:  # the reserved slot takes up the length, and is never the best
            layer.weight[-1] = 0.0
            layer.bias[-1] = -length
    return layer
