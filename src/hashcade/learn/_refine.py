"""One more level: the bucket of every class is split into parts of the class.

A code book has one code per class, so a search cannot look at less than about one class. To look
at less, each class is split by k-means on the vectors for re-ranking, because what lies near a
query there is what the search shall find. A new level tells the parts of a class apart:

1. Slots. The mean of a part, seen from the mean of its class, is a direction in which members of
   the class differ; parts of different classes with similar directions fit the same slot. Who gets
   which is an exact level of the code problem, with the parts of a class as siblings.
2. A layer for it is trained on the parts of each item's own class alone, all else stays as it is.
3. Its scores are made small. So the sum of the levels chooses the class as before, and the new
   level chooses among its parts only; a search that probes further comes to the other parts first.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.codes._shape import CodeShape
from hashcade.codes._solve import solve_level
from hashcade.learn._kmeans import kmeans_labels
from hashcade.learn._layer import train_layer
from hashcade.learn._model import HashModel
from hashcade.learn._plan import Plan
from hashcade.learn._trainer import in_chunks

Ints = npt.NDArray[np.int64]

_APART = 50.0  # parts of a class never share a slot: misfits are around 1
_SMALL = 0.02  # of the scores that were trained; chosen on items set aside, 0.1 was little worse


def most_codes(plan: Plan, classes: Ints) -> int:
    """How many codes a refined hasher can have at most: a class has no more parts than items."""
    return int(np.minimum(np.bincount(classes), _usable_slots(plan)).sum())


def refine_model(
    model: HashModel, plan: Plan, items: Tensor, classes: Ints, n_codes: int, *, seed: int
) -> tuple[HashModel, Plan]:
    """A copy of the model with a level more, and a code for each part of a class.

    Parameters
    ----------
    model
        With a code book of one bucket per class.
    items : float32[n, size] or uint8[n, h, w, 3]
        Items to learn from.
    classes : int64[n]
        Their classes, rows of the code book; each must occur.
    n_codes
        From the number of classes to :func:`most_codes`. Large classes get more parts.
    """
    stage, width = plan.stages[-1], plan.shape.width
    vectors = torch.from_numpy(in_chunks(model, "vectors", items)).float()
    parts = _parts_of_classes(vectors, classes, n_codes, seed=seed, most=_usable_slots(plan))
    owner = np.zeros(parts.max() + 1, np.int64)  # the class of each part
    owner[parts] = classes

    # ---- slots of the parts
    directions = _means(vectors, parts) - _means(vectors, classes)[owner]
    fit = _slot_fit(directions, _usable_slots(plan), seed=seed)
    codes = solve_level(
        fit,
        sibling_groups=owner,
        sibling_penalty=_APART,
        collision_penalty=stage.collision_penalty,
    )
    slots = codes.argmax(axis=1)

    # ---- the new level
    hidden = torch.from_numpy(in_chunks(model, "hidden", items))
    layer = _small_level(
        hidden, torch.from_numpy(parts), torch.from_numpy(owner), torch.from_numpy(slots), width,
        sharpness=stage.sharpness, unit_length=plan.unit_length, seed=seed,
    )  # fmt: skip
    refined = copy.deepcopy(model)
    refined.shape = CodeShape(width=width, depth=plan.shape.depth + 1)
    book = model.codebook[torch.from_numpy(owner)] * width + torch.from_numpy(slots)[:, None]
    refined.set_codebook(book)
    old = refined.head[-1]
    assert isinstance(old, nn.Linear)
    both = nn.Linear(old.in_features, old.out_features + width)
    with torch.no_grad():
        both.weight.copy_(torch.cat([old.weight, layer.weight]))
        both.bias.copy_(torch.cat([old.bias, layer.bias]))
    refined.head[-1] = both
    return refined, replace(plan, shape=refined.shape, n_codes=len(book), codes_of="parts")


def _usable_slots(plan: Plan) -> int:
    """Where a level is brought to unit length, one slot is kept free to keep the others small."""
    return plan.shape.width - int(plan.unit_length)


def _parts_of_classes(
    vectors: Tensor, classes: Ints, n_codes: int, *, seed: int, most: int
) -> Ints:
    """Clusters inside every class, int64[n], numbered 0, 1, 2, ... over all of them."""
    sizes = np.bincount(classes)
    n_parts = np.ones(len(sizes), np.int64)
    for _ in range(n_codes - len(sizes)):  # one more for the class whose parts are largest
        can_be_split = n_parts < np.minimum(sizes, most)
        n_parts[np.argmax(np.where(can_be_split, sizes / n_parts, 0.0))] += 1
    parts, n_before = np.empty(len(classes), np.int64), 0
    for number in range(len(sizes)):
        own = np.flatnonzero(classes == number)
        found = kmeans_labels(vectors[torch.from_numpy(own)], int(n_parts[number]), seed=seed)
        parts[own] = n_before + found
        n_before += int(found.max()) + 1
    return parts


def _means(vectors: Tensor, groups: Ints) -> Tensor:
    """Mean vector of each group, float[n_groups, size]."""
    places = torch.from_numpy(groups)
    sizes = torch.bincount(places)
    sums = torch.zeros(len(sizes), vectors.shape[1]).index_add_(0, places, vectors)
    return sums / sizes[:, None]


def _slot_fit(directions: Tensor, n_slots: int, *, seed: int) -> npt.NDArray[np.float64]:
    """How well each part fits each slot, [n_parts, n_slots], around -1; slots are clusters."""
    clusters = kmeans_labels(directions, min(n_slots, len(directions)), seed=seed)
    gaps = torch.cdist(directions, _means(directions, clusters)).square().numpy().astype(np.float64)
    gaps /= gaps.mean() or 1.0
    empty = np.full((len(gaps), n_slots - gaps.shape[1]), gaps.max())
    return -np.hstack([gaps, empty])


def _small_level(
    hidden: Tensor, parts: Tensor, owner: Tensor, slots: Tensor, width: int, *,
    sharpness: float, unit_length: bool, seed: int,
) -> nn.Linear:  # fmt: skip
    """A layer from hidden values to small slot scores that tell the parts of a class apart."""

    def loss_of(scores: Tensor, rows: Tensor) -> Tensor:
        if unit_length:
            scores = F.normalize(scores, dim=1)
        strangers = owner[None, :] != owner[parts[rows]][:, None]
        fit = (sharpness * scores[:, slots]).masked_fill(strangers, -torch.inf)
        return F.cross_entropy(fit, parts[rows])

    layer = train_layer(hidden, width, loss_of, seed=seed)
    with torch.no_grad():
        length = float(layer(hidden).norm(dim=1).mean())
        layer.weight.mul_(_SMALL)
        layer.bias.mul_(_SMALL)
        if unit_length:  # the free slot takes up the length, and is never the best
            layer.weight[-1] = 0.0
            layer.bias[-1] = -length
    return layer
