"""A code book for a database that training never saw, without labels.

1. Clusters take the place of classes: k-means on the input of the last layer and, for embeddings,
   on the embeddings themselves. The last layer has discarded whatever does not tell the classes
   of the training apart; for other classes it is this that counts.
2. Codes: the cascade over the clusters' mean scores, exact as in training, so buckets that share
   a slot hold what the network finds similar.
3. The last layer is trained anew, on the cross-entropy of the sums over the code book: so items
   and queries find their cluster through slot scores, and a search can probe the tree.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from hashcade.learn.clustering import kmeans
from hashcade.learn.codebook import CodebookLoss, solve_codebook
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.linear_head import train_linear_head
from hashcade.learn.model import HashModel, for_all

_ITEMS_PER_CODE, _FEWEST_ITEMS = 64, 16_384  # more items than this change little


def adapt_model(
    model: HashModel, config: ResolvedConfig, items: Tensor, n_codes: int, *, seed: int
) -> tuple[HashModel, ResolvedConfig]:
    """A copy of the model whose code book and last layer fit the items.

    ``items`` are the database or a part of it, at least ``n_codes``; of many, some are drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    n_used = max(_ITEMS_PER_CODE * n_codes, _FEWEST_ITEMS)
    items = items[torch.randperm(len(items), generator=generator)[:n_used]]

    # ---- clusters
    hidden = torch.from_numpy(for_all(model, model.hidden, items))
    parts = [hidden] if config.takes_images else [hidden, items]
    points = torch.cat([_unit_spread(part) for part in parts], dim=1)
    labels = kmeans(points, n_codes, random_state=seed)[1]

    # ---- their codes
    stage = config.stages[-1]
    n_clusters = int(labels.max()) + 1
    codebook = solve_codebook(
        for_all(model, model.scores, items),
        labels,
        n_clusters,
        config.shape,
        sibling_penalty=stage.sibling_penalty,
        collision_penalty=stage.collision_penalty,
    )

    # ---- a last layer for them
    adapted = copy.deepcopy(model)
    adapted.set_codebook(codebook)
    last, clusters = adapted.head[-1], torch.from_numpy(labels)
    assert isinstance(last, nn.Linear)
    loss = CodebookLoss(codebook, config.shape, sharpness=stage.sharpness, device=hidden.device)

    def loss_of_outputs(outputs: Tensor, rows: Tensor) -> Tensor:
        return loss(adapted.slot_scores(outputs), clusters[rows])

    layer = train_linear_head(hidden, last.out_features, loss_of_outputs, seed=seed)
    last.load_state_dict(layer.state_dict())
    return adapted, replace(config, n_codes=n_clusters, codes_of="clusters")


def _unit_spread(values: Tensor) -> Tensor:
    """Centred, and the mean squared length brought to 1, so that parts weigh the same."""
    centred = values - values.mean(dim=0)
    length = centred.square().sum(dim=1).mean().sqrt()
    return centred / length if length > 0 else centred
