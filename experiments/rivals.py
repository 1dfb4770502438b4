"""What a user with labels would try first: a classifier, class means, centroids of k-means.

Each ranks classes, or clusters, for an item: the best one is its bucket, a query that finds too
little there continues to the next. ``fit_...(X, y, seed)`` takes embeddings and class numbers and
gives a :class:`Rival`, with ``encode`` and ``place`` as a ``Hasher`` has them. They answer with
numpy alone, so that times compare arithmetic and not frameworks.

Why codes at all? :class:`FlatPrototypes` and :class:`HnswPrototypes` take the network and the
prototypes of a hasher, and find the nearest prototype without its codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index import Encoded
from hashcade.learn import Hasher, learning_rate_factor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
State = Mapping[str, npt.NDArray[Any]]
T = TypeVar("T")

REGULARIZATIONS = tuple((decay, dropout) for decay in (1e-4, 5e-4, 2e-3) for dropout in (0.0, 0.5))
MIXUPS = (0.0, 0.2, 0.4)
EPOCHS, MIN_STEPS, BATCH, LEARNING_RATE = 10, 1000, 256, 3e-3  # twice the epochs with mixup
MOST_CLASSES = 2000  # of which a regularization is chosen
BUDGET = 600.0  # seconds of one training of the classifier

_SCORES = 1 << 24  # at a time: 64 MB


class Rival:
    """Ranks buckets by one score each. ``state`` is all that was learned, for files."""

    shape_: CodeShape
    has_classes: ClassVar[bool] = True  # buckets are classes

    def __init__(self, state: State) -> None:
        self.state = dict(state)

    def scores(self, items: Floats) -> Floats:
        """Scores of buckets, float32[n, n_buckets]: the highest is the best."""
        raise NotImplementedError

    def rank(self, items: Floats, n_probe: int) -> Ints:
        """The best buckets, best first, int64[n, n_probe]."""
        n_buckets = self.shape_.n_buckets
        step, n_probe = max(1, _SCORES // n_buckets), min(n_probe, n_buckets)
        parts = [
            _largest(self.scores(items[at : at + step]), n_probe)
            for at in range(0, len(items), step)
        ]
        return np.concatenate(parts)

    def encode(self, X: npt.NDArray[Any], *, n_probe: int = 1) -> Encoded:
        """Items with their buckets; ``n_probe`` are ranked."""
        ranked = self.rank(X, n_probe)
        return Encoded(X, ranked[:, :1], None, False, ranked)

    def place(self, encoded: Encoded, labels: Ints) -> Encoded:
        """Items in the buckets of their classes."""
        if not self.has_classes:
            raise ValueError(f"{type(self).__name__} has no buckets of classes")
        return Encoded(encoded.vectors, labels[:, None], None, False, encoded.ranked)


def _largest(scores: Floats, n_best: int) -> Ints:
    """Columns of the largest entries of each row, in descending order."""
    if n_best == 1:
        return np.asarray(scores.argmax(axis=1)[:, None])
    best = np.argpartition(scores, -n_best, axis=1)[:, -n_best:]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(best, order, axis=1))


# -- nearest centre ------------------------------------------------------------------------------


class ClassMeans(Rival):
    """The class whose mean is nearest."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.shape_ = CodeShape(width=len(state["centres"]), depth=1)
        self._directions = np.ascontiguousarray(state["centres"].T)
        self._offsets = np.square(state["centres"]).sum(axis=1) / 2

    def scores(self, items: Floats) -> Floats:
        """Half of the squared distances, but for a summand of the item alone, and negative."""
        scores: Floats = items @ self._directions
        scores -= self._offsets
        return scores


class Centroids(ClassMeans):
    """The nearest centroid of k-means; knows nothing of classes."""

    has_classes = False


def fit_means(X: Floats, y: Ints, seed: int) -> ClassMeans:
    """Means of classes; nothing is random."""
    sums = np.zeros((y.max() + 1, X.shape[1]))
    np.add.at(sums, y, X)
    return ClassMeans({"centres": (sums / np.bincount(y)[:, None]).astype(np.float32)})


def fit_kmeans(X: Floats, y: Ints, seed: int) -> Centroids:
    """As many centroids as there are classes, by faiss: 25 rounds from random items."""
    import faiss

    kmeans = faiss.Kmeans(
        X.shape[1], int(y.max() + 1), niter=25, seed=seed, max_points_per_centroid=len(X),
        min_points_per_centroid=1,
    )  # fmt: skip
    kmeans.train(X)
    return Centroids({"centres": np.asarray(kmeans.centroids)})


# -- parts of classes ----------------------------------------------------------------------------


def split_classes(vectors: Floats, labels: Ints, n_parts: int, *, seed: int) -> Floats:
    """Centroids of parts of every class, float32[n_classes, n_parts, size]: k-means, 25 rounds.

    A class with fewer items than parts has some of them twice.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    centroids = vectors[order[starts[:, None] + np.arange(n_parts) % sizes[:, None]]]
    for _ in range(25):
        parts = labels * n_parts + nearest_part(vectors, labels, centroids)
        counts = np.bincount(parts, minlength=len(sizes) * n_parts)
        by_part = np.argsort(parts, kind="stable")
        occupied = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[occupied]
        sums = np.add.reduceat(vectors[by_part], starts, axis=0)
        flat = centroids.reshape(-1, vectors.shape[1])
        flat[occupied] = sums / counts[occupied, None]
    return centroids


def nearest_part(vectors: Floats, labels: Ints, centroids: Floats) -> Ints:
    """Which part of its class is nearest to each vector, int64[n]."""
    nearest = np.empty(len(vectors), np.int64)
    for at in range(0, len(vectors), 4096):
        rows = slice(at, at + 4096)
        gaps = np.square(vectors[rows, None] - centroids[labels[rows]]).sum(axis=2)
        nearest[rows] = gaps.argmin(axis=1)
    return nearest


# -- the classifier ------------------------------------------------------------------------------


class Softmax(Rival):
    """A network with one hidden layer and a score for each class."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.shape_ = CodeShape(width=len(state["bias_2"]), depth=1)
        self._hidden = np.ascontiguousarray(state["weight_1"].T)
        self._last = np.ascontiguousarray(state["weight_2"].T)

    def scores(self, items: Floats) -> Floats:
        """The logits."""
        scores: Floats = _hidden_units(items, self._hidden, self.state["bias_1"]) @ self._last
        scores += self.state["bias_2"]
        return scores


def _hidden_units(items: Floats, weight: Floats, bias: Floats) -> Floats:
    hidden: Floats = items @ weight
    hidden += bias
    np.maximum(hidden, 0.0, out=hidden)
    return hidden


def fit_softmax(
    X: Floats, y: Ints, seed: int, *, hidden_size: int, budget: float = BUDGET
) -> Softmax:
    """The best of :data:`REGULARIZATIONS`, then of :data:`MIXUPS`, trained again on all items.

    ``X`` are embeddings float32[n, size], or float32[n, views, size], of which training takes a
    view at random and everything else the first, as a ``Hasher`` does.
    The choice is made by :func:`best_setting`. Training that would take longer than ``budget``
    seconds ends by then, its learning rate in time. What was chosen, the epochs and the seconds of
    the final training are in ``state``.
    """

    def train(items: Floats, labels: Ints, setting: tuple[float, ...]) -> Softmax:
        return _train(items, labels, seed, hidden_size, *setting, budget=budget)

    plain = [(*regularization, 0.0) for regularization in REGULARIZATIONS]
    best = best_setting(X, y, seed, plain, train)
    mixed = [(*best[:2], mixup) for mixup in MIXUPS]
    return train(X, y, best_setting(X, y, seed, mixed, train))


def best_setting(
    X: Floats,
    y: Ints,
    seed: int,
    settings: Sequence[T],
    train: Callable[[Floats, Ints, T], Rival],
) -> T:
    """The setting with which most of a tenth of the items go to the bucket of their class.

    Models are trained on the rest. With more than :data:`MOST_CLASSES` classes, the choice is made
    on so many random ones.
    """
    rng = np.random.default_rng(seed)
    n_classes = int(y.max() + 1)
    items, labels = X, y
    if n_classes > MOST_CLASSES:
        number = np.full(n_classes, -1)
        number[rng.choice(n_classes, MOST_CLASSES, replace=False)] = np.arange(MOST_CLASSES)
        some = number[y] >= 0
        items, labels = X[some], number[y[some]]
    held_out = np.zeros(len(labels), np.bool_)
    held_out[rng.permutation(len(labels))[: len(labels) // 10]] = True

    def share_right(setting: T) -> float:
        model = train(items[~held_out], labels[~held_out], setting)
        queries = items[held_out] if items.ndim == 2 else items[held_out, 0]
        return float((model.rank(queries, 1)[:, 0] == labels[held_out]).mean())

    return max(settings, key=share_right)


def _train(
    X: Floats, y: Ints, seed: int, hidden_size: int, decay: float, dropout: float, mixup: float,
    *, budget: float,
) -> Softmax:  # fmt: skip
    import torch
    from torch import nn

    network: Any  # a sequence of layers
    loss: Any
    start = time.perf_counter()
    torch.manual_seed(seed)
    views = X[:, None] if X.ndim == 2 else X
    mean, scale = views[:, 0].mean(axis=0), views[:, 0].std()
    items, labels = torch.from_numpy((views - mean) / scale), torch.from_numpy(y)
    network = nn.Sequential(
        nn.Linear(X.shape[-1], hidden_size),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden_size, int(y.max() + 1)),
    )
    optimizer = torch.optim.Adam(network.parameters(), weight_decay=decay)
    steps = max(MIN_STEPS, (2 if mixup else 1) * EPOCHS * -(-len(X) // BATCH))
    step, done = 0, 0
    while done < steps:
        for rows in torch.split(torch.randperm(len(X)), BATCH):
            # Where time is short, the schedule runs through as far as time has.
            done = max(step, int(steps * (time.perf_counter() - start) / budget))
            if done >= steps:
                break
            factor = learning_rate_factor("one-cycle", done, steps)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * factor
            share, others = torch.ones(()), rows
            if mixup:
                share = torch.distributions.Beta(mixup, mixup).sample()
                others = rows[torch.randperm(len(rows))]
            view = torch.zeros(len(rows), dtype=torch.int64)
            if items.shape[1] > 1:
                view = torch.randint(items.shape[1], view.shape)
            logits = network(torch.lerp(items[others, view], items[rows, view], share))
            loss = nn.functional.cross_entropy(logits, labels[rows])
            if mixup:
                loss = torch.lerp(nn.functional.cross_entropy(logits, labels[others]), loss, share)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        else:
            done = step
    first, last = network[0], network[3]
    weight = (first.weight.detach().numpy() / scale).astype(np.float32)  # takes items as they are
    return Softmax(
        {
            "weight_1": weight,
            "bias_1": (first.bias.detach().numpy() - weight @ mean).astype(np.float32),
            "weight_2": last.weight.detach().numpy(),
            "bias_2": last.bias.detach().numpy(),
            "weight_decay": np.asarray(decay),
            "dropout": np.asarray(dropout),
            "mixup": np.asarray(mixup),
            "epochs": np.asarray(step * BATCH / len(X)),
            "seconds": np.asarray(time.perf_counter() - start),
        }
    )


# -- prototypes without codes --------------------------------------------------------------------


class FlatPrototypes(Rival):
    """The nearest of all prototypes of a hasher that was fitted on class numbers 0, 1, ..."""

    def __init__(self, hasher: Hasher) -> None:
        super().__init__({})
        self.shape_ = CodeShape(width=len(hasher.prototypes_), depth=1)
        self.points = hasher.embed  # what is compared with prototypes
        self._prototypes = np.ascontiguousarray(hasher.prototypes_.T)

    def nearest(self, points: Floats, n_probe: int) -> Ints:
        """Classes of the nearest prototypes, nearest first."""
        return _largest(points @ self._prototypes, n_probe)

    def rank(self, items: Floats, n_probe: int) -> Ints:
        """The classes of the nearest prototypes, int64[n, n_probe]."""
        n_classes = self.shape_.n_buckets
        step, n_probe = max(1, _SCORES // n_classes), min(n_probe, n_classes)
        parts = [
            self.nearest(self.points(items[at : at + step]), n_probe)
            for at in range(0, len(items), step)
        ]
        return np.concatenate(parts)


class HnswPrototypes(FlatPrototypes):
    """The same through a graph (hnswlib), at least as often right as ``agreement`` says.

    ``ef``, how many it visits, is the smallest power of two with which its first class is that of
    the flat search in a share ``agreement`` of ``items``.
    """

    def __init__(self, hasher: Hasher, items: Floats, agreement: float) -> None:
        import hnswlib

        super().__init__(hasher)
        self._graph = hnswlib.Index("cosine", len(self._prototypes))
        self._graph.init_index(self.shape_.n_buckets, M=16, ef_construction=200, random_seed=0)
        self._graph.add_items(hasher.prototypes_, num_threads=1)
        points = self.points(items)
        expected = super().nearest(points, 1)
        self.ef, self.agreement = 8, 0.0
        while self.agreement < agreement and self.ef < 2 * self.shape_.n_buckets:
            self.ef *= 2
            self.agreement = float((self.nearest(points, 1) == expected).mean())

    def nearest(self, points: Floats, n_probe: int) -> Ints:
        """Classes of the nearest prototypes that the graph finds, nearest first."""
        self._graph.set_ef(max(self.ef, n_probe))
        return np.asarray(self._graph.knn_query(points, n_probe, num_threads=1)[0], np.int64)
