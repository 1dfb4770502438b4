"""The stages of training: what each one trains, its loss, and its validation.

- warmup: the features of a new network, by the loss of a classifier.
- base: vectors for re-ranking, by triplet or npairs loss.
- hash: slot scores, by the same loss, on codes that are solved for the classes of each batch.
- joint: sums of slot scores over a code book that is solved once, by cross-entropy.

The stages of models with prototypes are in ``prototypes.py``.
"""

# ruff: noqa: D102  (methods of a stage are documented in Stage)

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hashcade.codes import CodeShape, relabel_by_code, solve_cascade
from hashcade.evaluate import bucket_nmi, exact_search, precision_at, speedup_factor
from hashcade.index import Encoded, HashIndex
from hashcade.learn.assignment import Ints
from hashcade.learn.codebook import CodebookLoss, solve_codebook
from hashcade.learn.config import StageConfig
from hashcade.learn.fast import FastNet, Muon, class_directions, is_filter, warmup_loss
from hashcade.learn.losses import hash_npairs_loss, hash_triplet_loss, npairs_loss, triplet_loss
from hashcade.learn.model import (
    WHOLE,
    HashModel,
    for_all,
    in_chunks,
    make_encoder,
    to_numpy,
    weights_of,
)
from hashcade.learn.sampler import ClassSampler, ShuffledItems
from hashcade.learn.training_data import TrainingData

Metrics = dict[str, float]


class Stage:
    """The base stage, which trains the vectors for re-ranking; others override its methods."""

    keeps_last = False  # use the last weights instead of the best ones on the validation set

    def __init__(self, config: StageConfig, model: HashModel, data: TrainingData) -> None:
        self.config, self.model, self.data = config, model, data
        self.solver_seconds = 0.0  # time spent in the solver

    def start(self) -> Metrics:
        """Prepare the model for training; return metrics if these weights may be the best ones."""
        return {}

    def sampler(self, seed: int) -> ClassSampler | ShuffledItems:
        """Batches of rows of the training set."""
        config, labels = self.config, self.data.labels[self.data.training]
        n, m = config.classes_per_batch, config.items_per_class
        return ClassSampler(labels, classes_per_batch=n, items_per_class=m, random_state=seed)

    def shuffled_items(self, seed: int) -> ShuffledItems:
        """Batches of the same size, of items of any class."""
        size = self.config.classes_per_batch * self.config.items_per_class
        return ShuffledItems(len(self.data.training), batch_size=size, random_state=seed)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam: the new layers at the full learning rate, the backbone at a fraction of it.

        Filters of a :class:`FastNet` are trained by :class:`Muon`.
        """
        config = self.config
        new_layers, backbone = self.modules()
        network, filters = list(backbone.parameters()), []
        if isinstance(self.model.base, FastNet):
            filters = [p for p in network if is_filter(p)]
            network = [p for p in network if not is_filter(p)]
        factor = config.base_learning_rate
        groups = [
            {"params": params, "factor": factor, "weight_decay": decay}
            for params, factor, decay in (
                (list(new_layers.parameters()), 1.0, config.weight_decay),
                (network, factor, config.base_weight_decay),
            )
            if factor > 0 and params
        ]
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(groups, config.learning_rate)]
        if filters and factor > 0:
            group = {"params": filters, "factor": Muon.rate * factor}
            optimizers.append(Muon([group], config.learning_rate))
        return optimizers

    def modules(self) -> tuple[nn.Module, nn.Module]:
        """The modules that are trained: the new layers, and the backbone."""
        assert self.model.embedding is not None
        return self.model.embedding, self.model.base

    def train_mode(self) -> None:
        """Set training mode for what is trained; a frozen backbone keeps its running statistics."""
        self.model.train()
        self.model.base.eval()
        self.modules()[1].train(self.config.base_learning_rate > 0)

    def outputs(self, items: Tensor, share: slice = WHOLE) -> Tensor:
        """Input of the loss, for a share of a batch of items."""
        return self.model.vectors(items[share])

    def loss_parameters(self) -> list[Tensor]:
        """Trained parameters that only the loss uses, not the outputs."""
        return []

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of a batch of the sampler, in which the items of a class are adjacent."""
        config = self.config
        if config.loss == "triplet":
            return triplet_loss(outputs, labels, margin=config.margin)
        anchors, positives = outputs[0::2], outputs[1::2]
        return npairs_loss(anchors, positives, labels[0::2], regularization=config.regularization)

    def validate(self) -> Metrics:
        """Metrics for the choice of the best weights; empty without a validation set."""
        rows = self.data.validation
        if len(rows) == 0:
            return {}
        self.model.eval()
        return self.validation_metrics(self.data.items_at(rows), self.data.labels[rows])

    def validation_metrics(self, items: Tensor, labels: Ints) -> Metrics:
        """Metrics of the validation set, searched within itself, without the query."""
        vectors = for_all(self.model, self.model.vectors, items)
        nearest = exact_search(vectors, vectors, n_neighbors=1, same_set=True)
        return {"precision_at_1": precision_at(nearest.ids, labels, labels)}


class WarmupStage(Stage):
    """Trains the features by a classifier with fixed class directions."""

    keeps_last = True

    def sampler(self, seed: int) -> ShuffledItems:
        return self.shuffled_items(seed)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return nn.Module(), self.model.base

    def outputs(self, items: Tensor, share: slice = WHOLE) -> Tensor:
        return self.model.features(items[share])

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return warmup_loss(outputs, self._directions(outputs), labels)

    def _directions(self, features: Tensor) -> Tensor:
        n_classes, size = int(self.data.labels.max()) + 1, features.shape[1]
        return class_directions(n_classes, size).to(features.device)

    def validation_metrics(self, items: Tensor, labels: Ints) -> Metrics:
        """Accuracy of the classifier."""
        features = torch.from_numpy(for_all(self.model, self.model.features, items))
        nearest = (features @ self._directions(features).T).argmax(dim=1).numpy()
        return {"precision_at_1": 100.0 * float((nearest == labels).mean())}


class HashStage(Stage):
    """Trains slot scores, level by level, on codes solved for each batch (algorithm 1)."""

    by_path = True  # how items are searched for validation

    def start(self) -> Metrics:
        self.model.start_hash_base()
        return {}

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return self.model.head, self.model.hash_base

    def outputs(self, items: Tensor, share: slice = WHOLE) -> Tensor:
        return self.model.scores(items, dropout=self.config.dropout, share=share)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        _, depth, width = outputs.shape  # class means, detached:
        by_class = outputs.detach().reshape(-1, self.config.items_per_class, depth, width)
        means = by_class.mean(dim=1, dtype=torch.float64).transpose(0, 1)
        class_scores = np.ascontiguousarray(means.cpu().numpy())  # (depth, n_classes, width)
        start = time.perf_counter()
        class_codes = solve_cascade(class_scores, self.model.shape, **self.config.penalties)
        self.solver_seconds += time.perf_counter() - start
        return self.loss_of_codes(outputs, class_codes)

    def loss_of_codes(self, scores: Tensor, class_codes: npt.NDArray[np.bool_]) -> Tensor:
        """The sum of the losses of all levels (equation 7), codes bool[depth, n_classes, width]."""
        config, triplet = self.config, self.config.loss == "triplet"
        total = scores.new_zeros(())
        for level, level_codes in enumerate(class_codes):
            targets = relabel_by_code(level_codes) if config.remap else np.arange(len(level_codes))
            n = config.items_per_class if triplet else config.items_per_class // 2
            labels = torch.from_numpy(targets).to(scores.device).repeat_interleave(n)
            codes = torch.from_numpy(level_codes).to(scores.device).repeat_interleave(n, dim=0)
            if triplet:
                loss = hash_triplet_loss(scores[:, level], codes, labels, margin=config.margin)
            else:
                pairs = scores[0::2, level], scores[1::2, level]
                loss = hash_npairs_loss(*pairs, codes, labels, regularization=config.regularization)
            total = total + loss
        return total

    def validation_metrics(self, items: Tensor, labels: Ints) -> Metrics:
        # Before its last stage a model is searched by path, whatever its assignment.
        config = self.model.config
        if self.by_path:
            config = replace(config, assignment="path", n_codes=0)
        encoder = make_encoder(config, weights_of(self.model), self.model)
        return search_metrics(encoder.encode(items.cpu().numpy()), labels, self.model.shape)


class JointStage(HashStage):
    """Trains slot scores on their sums over the code book of all classes."""

    by_path = False
    _codebook_loss: CodebookLoss | None = None

    def start(self) -> Metrics:
        """Solve the code book on the whole training set; its metrics may be the best already."""
        model, rows = self.model.eval(), self.data.training
        scores = map(to_numpy, in_chunks(model, model.scores, self.data.chunked(rows)))
        labels = self.data.labels[rows]
        n_classes, penalties = len(model.codebook), self.config.penalties
        codebook = solve_codebook(scores, labels, n_classes, model.shape, **penalties)
        model.codebook.copy_(torch.from_numpy(codebook))
        return self.validate()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self._codebook_loss is None:  # the code book is fixed for the whole stage
            book, sharpness = self.model.codebook.cpu().numpy(), self.config.sharpness
            self._codebook_loss = CodebookLoss(
                book, self.model.shape, sharpness=sharpness, device=outputs.device
            )
        return self._codebook_loss(outputs, labels)


def search_metrics(encoded: Encoded, labels: Ints, shape: CodeShape) -> Metrics:
    """Precision at 1, speed-up and bucket NMI of items searched among themselves."""
    index = HashIndex.build(encoded.bucket_ids, encoded.vectors, shape=shape)
    fill = "none" if encoded.ranked is None and not encoded.by_path else "path"
    assert encoded.scores is not None
    result = index.search(
        encoded.vectors, **encoded.where_to_look(), n_neighbors=1, fill=fill, exclude_self=True
    )
    ids, candidates = result.ids, result.candidates
    # A query without candidates continues with the buckets of the next best sums. Each of them but
    # its own has another item, so one more is enough; its own need not have the best sums.
    for n_probe in range(1, shape.sparsity + 2):
        unmatched = np.flatnonzero(candidates == 0)
        if len(unmatched):
            retry = index.search(
                encoded.vectors[unmatched], scores=encoded.scores[unmatched], n_probe=n_probe,
                n_neighbors=1, fill="none", exclude_self=unmatched,
            )  # fmt: skip
            ids[unmatched], candidates[unmatched] = retry.ids, retry.candidates
    return {
        "precision_at_1": precision_at(ids, labels, labels),
        "speedup_factor": speedup_factor(candidates, len(labels) - 1),
        "bucket_nmi": bucket_nmi(encoded.bucket_ids, labels),
    }
