"""The settings of one stage of training, and the loss that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hashcade.codes._relabel import relabel_by_code
from hashcade.learn._npairs import hash_npairs_loss, npairs_loss
from hashcade.learn._triplet import hash_triplet_loss, triplet_loss

LOSSES = ("npairs", "triplet")
AUGMENTATIONS = ("crop-mirror", "crop", "none")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is trained, by which loss, for how long.

    Attributes
    ----------
    name
        ``"base"`` trains the vectors for re-ranking, ``"hash"`` the slot scores, ``"joint"`` the
        sums of slot scores over the code book.
    loss
        ``"npairs"`` or ``"triplet"``.
    steps, validate_every
        Batches in all, and between two looks at the items set aside.
    rate, schedule
        Peak learning rate of the new layers, and how it goes (see ``_schedules``).
    base_rate
        Factor on the rate for the network below the new layers; 0 freezes it.
    weight_decay, base_weight_decay
        L2 penalty on the new layers and on the network below.
    margin, regulariser
        Of triplet and npairs.
    sibling_penalty, collision_penalty
        Of the code problem, per ordered pair.
    remap
        Whether equal codes count as equal labels in the hash loss.
    sharpness
        Factor on the sums of scores in the softmax of the joint stage.
    classes_per_batch, items_per_class
        Composition of a batch.
    augment
        ``"crop-mirror"``, ``"crop"`` or ``"none"``: what is done to images at random.
    dropout
        Part of the values of embeddings that is left out at random; in the base stage none.
    """

    name: str
    loss: str
    steps: int
    validate_every: int
    rate: float
    schedule: str | int
    base_rate: float
    weight_decay: float
    base_weight_decay: float
    margin: float
    regulariser: float
    sibling_penalty: float
    collision_penalty: float
    classes_per_batch: int
    items_per_class: int
    augment: str
    remap: bool = True  # files of the first format have nothing from here on
    sharpness: float = 1.0
    dropout: float = 0.0

    def base_loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Loss of plain vectors, float[n, size], of a batch made by the sampler."""
        if self.loss == "triplet":
            return triplet_loss(vectors, labels, margin=self.margin)
        # The items of a class stand side by side: anchors and positives in turn.
        return npairs_loss(vectors[0::2], vectors[1::2], labels[0::2], regulariser=self.regulariser)

    def hash_loss(self, scores: Tensor, class_codes: npt.NDArray[np.bool_]) -> Tensor:
        """Loss of slot scores given the codes: the sum over the levels (equation 7).

        Parameters
        ----------
        scores : float[n_classes * items_per_class, depth, width]
            Scores of a batch made by the sampler.
        class_codes : bool[depth, n_classes, width]
            The solver's answer for the classes of the batch, in their order.
        """
        total = scores.new_zeros(())
        for level, level_codes in enumerate(class_codes):
            classes = relabel_by_code(level_codes) if self.remap else np.arange(len(level_codes))
            labels = torch.from_numpy(classes).to(scores.device)
            codes = torch.from_numpy(level_codes).to(scores.device)
            if self.loss == "triplet":
                total = total + hash_triplet_loss(
                    scores[:, level],
                    codes.repeat_interleave(self.items_per_class, dim=0),
                    labels.repeat_interleave(self.items_per_class),
                    margin=self.margin,
                )
            else:
                pairs = self.items_per_class // 2
                total = total + hash_npairs_loss(
                    scores[0::2, level],
                    scores[1::2, level],
                    codes.repeat_interleave(pairs, dim=0),
                    labels.repeat_interleave(pairs),
                    regulariser=self.regulariser,
                )
        return total
