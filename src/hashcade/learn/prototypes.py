"""The stages that train a model with prototypes.

- prototype: a point for every item and a prototype for every class, both of unit length, by
  cross-entropy of their cosines over the classes of the batch and random others, so that the cost
  of a step does not depend on the number of classes.
- codes: a code for every class, so that the sums of slot scores put the right class on a shortlist.
"""

# ruff: noqa: D102  (methods of a stage are documented in Stage)

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.codes import CodeShape, solve_level
from hashcade.learn.assignment import Ints
from hashcade.learn.clustering import kmeans
from hashcade.learn.extension import LARGEST_HALF
from hashcade.learn.model import WHOLE, for_all, in_chunks, make_encoder, weights_of
from hashcade.learn.sampler import ShuffledItems
from hashcade.learn.stages import (
    HashStage,
    JointStage,
    Metrics,
    Stage,
    WarmupStage,
    search_metrics,
)

_RANDOM_CLASSES = 2048  # that a batch is compared with, in addition to its own
_SLOW = 0.1  # factor on the learning rate of prototypes that start orthogonal
_SAMPLE = 8192  # training items for the mean point
_BLOCK = 1 << 23  # scores, classes times slots, that are solved together: 32,768 × 256


class PrototypeStage(Stage):
    """Trains points and prototypes."""

    keeps_last = True  # it is regularized and does not overfit; the best of few is chance

    _weight: Tensor  # of mixup: of the items of a batch, and their partners
    _others: Tensor
    _log_sizes: Tensor | None = None  # of classes

    def start(self) -> Metrics:
        """Many prototypes start at the means of the points of their classes."""
        model, rows = self.model, self.data.training
        model.start_hash_base()
        if model.config.spreads_prototypes:
            return {}
        model.eval()
        sums, labels = torch.zeros(model.prototypes.shape), torch.from_numpy(self.data.labels[rows])
        for points in in_chunks(model, self._points, self.data.chunked(rows)):
            sums.index_add_(0, labels[: len(points)], points.float().cpu())
            labels = labels[len(points) :]
        with torch.no_grad():
            model.prototypes.copy_(F.normalize(sums, dim=1))
        return {}

    def sampler(self, seed: int) -> ShuffledItems:
        return self.shuffled_items(seed)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        assert self.model.vector_head is not None
        return nn.ModuleList([self.model.head[:-1], self.model.vector_head]), self.model.hash_base

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Of many prototypes only those that a batch uses are updated."""
        optimizer_class = RowAdam if self._samples else torch.optim.Adam
        is_slow = self.model.config.spreads_prototypes
        group = {"params": [self.model.prototypes], "factor": _SLOW if is_slow else 1.0}
        return [*super().optimizers(), optimizer_class([group], lr=self.config.learning_rate)]

    @property
    def _samples(self) -> bool:
        return len(self.model.prototypes) > 2 * _RANDOM_CLASSES

    def _points(self, items: Tensor) -> Tensor:
        return self.model.points(self.model.hidden(items))

    def loss_parameters(self) -> list[Tensor]:
        return [self.model.prototypes]

    def outputs(self, items: Tensor, share: slice = WHOLE) -> Tensor:
        """With ``mixup`` each item is mixed with another one of the batch (Zhang et al., 2018)."""
        if self.config.mixup:
            weight = torch.distributions.Beta(self.config.mixup, self.config.mixup).sample()
            self._weight, self._others = weight.to(items.device), torch.randperm(len(items))
            items = torch.lerp(items[self._others], items, self._weight)
        hidden = self.model.hidden(items, dropout=self.config.dropout, share=share)
        return self.model.points(hidden)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        prototypes = self.model.prototypes
        log_sizes = self._class_log_sizes() if self.config.balanced else None
        if self._samples:
            classes, labels = sampled_classes(labels, len(prototypes))
            prototypes = F.embedding(classes, prototypes, sparse=True)
            log_sizes = None if log_sizes is None else log_sizes[classes]
        logits = self.config.sharpness * outputs @ F.normalize(prototypes, dim=1).T
        if log_sizes is not None:  # so cosines need not explain them (Menon et al., 2021)
            logits = logits + log_sizes
        loss = F.cross_entropy(logits, labels)
        if self.config.mixup:
            loss = torch.lerp(F.cross_entropy(logits, labels[self._others]), loss, self._weight)
        return loss

    def _class_log_sizes(self) -> Tensor:
        """Logarithms of the numbers of training items, float[n_classes]."""
        if self._log_sizes is None:
            labels, n_classes = self.data.labels[self.data.training], len(self.model.prototypes)
            sizes = torch.from_numpy(np.bincount(labels, minlength=n_classes)).float()
            self._log_sizes = sizes.clamp(min=1).log().to(self.model.prototypes.device)
        return self._log_sizes

    def validation_metrics(self, items: Tensor, labels: Ints) -> Metrics:
        """Accuracy of the nearest prototype, among classes of the validation set."""
        points = torch.from_numpy(for_all(self.model, self._points, items))
        classes, numbers = np.unique(labels, return_inverse=True)
        prototypes = F.normalize(self.model.prototypes.detach()[torch.from_numpy(classes)], dim=1)
        nearest = (points @ prototypes.cpu().T).argmax(dim=1).numpy()
        return {"precision_at_1": 100.0 * float((nearest == numbers).mean())}


class CodesStage(PrototypeStage):
    """Trains the slot scores, a linear layer, for codes of the prototypes."""

    keeps_last = False

    _slots: Tensor | None = None  # (depth, n_classes, sparsity): of each class

    def start(self) -> Metrics:
        model = self.model.eval()
        if model.config.with_inputs:
            model.round_layers()
        sample = self.data.training[:: max(1, len(self.data.training) // _SAMPLE)]
        points = for_all(model, self._points, self.data.items_at(sample))
        with torch.no_grad():
            model.point_mean.copy_(torch.from_numpy(points.mean(axis=0)))
            model.prototypes.copy_(F.normalize(model.prototypes, dim=1))
        if model.config.recalls_classes:
            self._store_class_statistics(sample)
        start = time.perf_counter()
        prototypes = model.prototypes.detach().cpu()
        book, slots = additive_codes(prototypes, model.shape, self.config.penalties)
        self.solver_seconds += time.perf_counter() - start
        model.codebook.copy_(torch.from_numpy(book))
        self._slots = self._slots_of(book)
        with torch.no_grad():  # initial scores: products of unnormalized points with slots
            last: Any = model.head[-1]
            vector_head: Any = model.vector_head
            flat = slots.reshape(-1, slots.shape[2])
            last.weight.copy_(flat @ vector_head.weight)
            last.bias.copy_(flat @ vector_head.bias)
        return self.validate()

    def _store_class_statistics(self, sample: Ints) -> None:
        """Store class means and noise, which replace the training items when classes are added.

        The noise is random sums of deviations of a sample of items: it has their covariance, but
        does not reveal single items.
        """
        model, rows = self.model, self.data.training
        labels = torch.from_numpy(self.data.labels[rows])
        sizes, n_done = torch.bincount(labels, minlength=len(model.class_means)), 0
        means = torch.zeros(model.class_means.shape)
        for part in in_chunks(model, model.prepare, self.data.chunked(rows)):
            means.index_add_(0, labels[n_done : n_done + len(part)], part.cpu())
            n_done += len(part)
        means /= sizes.clamp(min=1)[:, None]
        items = torch.from_numpy(for_all(model, model.prepare, self.data.items_at(sample)))
        deviations = items - means[torch.from_numpy(self.data.labels[sample])]
        generator = torch.Generator().manual_seed(0)
        noise = torch.zeros(model.noise.shape)
        for start in range(0, len(sample), 1024):  # all factors at once need tens of megabytes
            part = deviations[start : start + 1024]
            noise += torch.randn(len(noise), len(part), generator=generator) @ part
        noise /= len(sample) ** 0.5
        model.class_means.copy_(means.clamp(-LARGEST_HALF, LARGEST_HALF))
        model.noise.copy_(noise.clamp(-LARGEST_HALF, LARGEST_HALF))

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return self.model.head[-1], nn.Module()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return Stage.optimizers(self)

    def train_mode(self) -> None:
        self.model.eval()

    def outputs(self, items: Tensor, share: slice = WHOLE) -> Tensor:
        with torch.no_grad():
            hidden = self.model.hidden(items[share])
        return self.model.slot_scores(self.model.head[-1](hidden))

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self._slots is None:
            self._slots = self._slots_of(self.model.codebook.cpu().numpy())
        slots = self._slots
        if self._samples:
            classes, labels = sampled_classes(labels, slots.shape[1])
            slots = slots[:, classes]
        return F.cross_entropy(code_sums(outputs, slots), labels)

    def _slots_of(self, book: Ints) -> Tensor:
        shape = self.model.shape
        paths = shape.paths(book.ravel()).T.reshape(shape.depth, *book.shape)
        return torch.from_numpy(paths.copy()).to(self.model.codebook.device)

    def validation_metrics(self, items: Tensor, labels: Ints) -> Metrics:
        """Metrics of a search of the validation set within itself, as of a user."""
        encoder = make_encoder(self.model.config, weights_of(self.model), self.model)
        return search_metrics(encoder.encode(items.cpu().numpy()), labels, self.model.shape)


class RowAdam(torch.optim.Optimizer):
    """Sparse Adam for a large matrix: a step updates only rows that have a gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, group)

    def _update(self, matrix: Tensor, group: dict[str, Any]) -> None:
        assert matrix.grad is not None
        sparse = matrix.grad.coalesce()
        rows, gradient = sparse.indices()[0], sparse.values()
        state = self.state[matrix]
        if not state:
            state["exp_avg"] = torch.zeros_like(matrix)
            state["exp_avg_sq"] = torch.zeros_like(matrix)
            state["steps"] = torch.zeros(len(matrix))
        first, second = group["betas"]
        steps = state["steps"][rows] + 1
        mean = state["exp_avg"][rows].lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"][rows].lerp_(gradient.square(), 1 - second)
        for name, values in (("steps", steps), ("exp_avg", mean), ("exp_avg_sq", square)):
            state[name].index_copy_(0, rows, values)
        size = (square / (1 - second**steps)[:, None]).sqrt_().add_(group["eps"])
        change = mean / (1 - first**steps)[:, None] / size
        matrix.index_add_(0, rows, change, alpha=-group["lr"])


def sampled_classes(labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """The classes of a batch and random ones, ascending, and the labels as positions in them."""
    random = torch.randint(n_classes, (_RANDOM_CLASSES,)).to(labels.device)
    classes = torch.unique(torch.cat([labels, random]))
    return classes, torch.searchsorted(classes, labels)


def code_sums(scores: Tensor, slots: Tensor) -> Tensor:
    """Sums of slot scores, float[n, n_codes], over codes int64[depth, n_codes, sparsity].

    The mean over the buckets of a code.
    """
    sums = scores.new_zeros(len(scores), slots.shape[1])
    for level, level_slots in enumerate(slots):
        for column in level_slots.T:
            sums = sums + scores[:, level].index_select(1, column) / slots.shape[2]
    return sums


def additive_codes(
    prototypes: Tensor, shape: CodeShape, penalties: dict[str, float], *, seed: int = 0
) -> tuple[Ints, Tensor]:
    """Codes for prototypes, int64[n, sparsity], and a vector per slot, float[depth, width, size].

    Residual quantization with penalties: at each level slots are clusters of the residuals of the
    levels above, and the solver assigns the nearest slots to every class, with penalties for
    sharing. So a prototype is approximately the sum of its slot vectors, and its product with a
    point the sum of their products.
    """
    residual = prototypes.clone()
    slots = torch.zeros(shape.depth, shape.width, prototypes.shape[1])
    parent = np.zeros(len(prototypes), np.int64)
    book = parent[:, None]
    for level in range(shape.depth):
        last = level == shape.depth - 1
        sparsity = shape.sparsity if last else 1
        sample = residual[:: max(1, len(residual) // (64 * shape.width))]
        n_slots = min(shape.width, len(sample))
        centroids, _ = kmeans(sample, n_slots, random_state=seed, n_init=1, max_iter=10)
        slots[level, : len(centroids)] = torch.from_numpy(centroids)
        capacity = shape.width ** (shape.depth - 1 - level)  # codes below a node of this level
        penalty, is_overfull = penalties["collision_penalty"], True
        while is_overfull:
            class_slots = np.empty((len(residual), sparsity), np.int64)
            size = _BLOCK // shape.width + 1
            for rows in _blocks(parent if level else None, len(residual), size):
                part = 2.0 * residual[torch.from_numpy(rows)] @ slots[level].T
                part -= slots[level].square().sum(dim=1)  # negated squared distances, shifted
                spread = float(part.std()) or 1.0
                # Above the last level a class of a block stands for as many as there are blocks.
                factor = 1.0 if last else len(residual) / len(rows)
                codes = solve_level(
                    (part / spread).double().numpy(),
                    sparsity=sparsity,
                    sibling_groups=parent[rows] if level else None,
                    sibling_penalty=penalties["sibling_penalty"],
                    collision_penalty=factor * penalty,
                )
                class_slots[rows] = np.nonzero(codes)[1].reshape(len(rows), -1)
            book = parent[:, None] * shape.width + class_slots
            # Siblings need different codes below: if there are too many, raise the penalty.
            largest = int(np.unique(book[:, 0], return_counts=True)[1].max())
            is_overfull = not last and largest > capacity and len(residual) <= shape.n_buckets
            penalty = max(4.0 * penalty, 1e-3)
        parent = book[:, 0]
        residual = residual - slots[level][torch.from_numpy(class_slots)].mean(dim=1)
    return book, slots


def _blocks(parent: Ints | None, n_classes: int, size: int) -> list[Ints]:
    """Blocks of about ``size`` classes that are solved together; siblings are in one block.

    So memory is linear in the number of classes, and time in the number of scores.
    """
    if parent is None:  # no siblings yet: a block is a sample of all
        n_blocks = -(-n_classes // size)
        return [np.arange(first, n_classes, n_blocks) for first in range(n_blocks)]
    _, group, sizes = np.unique(parent, return_inverse=True, return_counts=True)
    block = ((np.cumsum(sizes) - sizes) // size)[group]
    order = np.argsort(block, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(block[order])) + 1)


STAGES: dict[str, type[Stage]] = {
    "warmup": WarmupStage,
    "base": Stage,
    "hash": HashStage,
    "joint": JointStage,
    "prototype": PrototypeStage,
    "codes": CodesStage,
}
