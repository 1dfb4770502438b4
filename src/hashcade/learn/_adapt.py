"""A code book for a database that training never saw, without labels.

1. Pseudo-classes: k-means on what the hash network has just before its last layer and, for
   vectors, on the vectors themselves. The last layer has thrown away whatever does not tell the
   classes of the training apart; for other classes it is this that counts.
2. Codes: the cascade over the pseudo-classes' mean scores, exact as in training, so buckets that
   share a slot hold what the network finds similar.
3. The last layer is trained anew, on the cross-entropy of the sums over the code book: so items
   and queries find their pseudo-class through slot scores, and a search can probe the tree.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from hashcade.learn._codebook import joint_loss, solve_codebook
from hashcade.learn._kmeans import kmeans_labels
from hashcade.learn._layer import train_layer
from hashcade.learn._model import HashModel
from hashcade.learn._plan import Plan
from hashcade.learn._trainer import in_chunks

_ITEMS_PER_CODE, _FEWEST_ITEMS = 64, 16_384  # more items than this change little


def adapt_model(
    model: HashModel, plan: Plan, items: Tensor, n_codes: int, *, seed: int
) -> tuple[HashModel, Plan]:
    """A copy of the model whose code book and last layer fit the items.

    Parameters
    ----------
    items : float32[n, size] or uint8[n, h, w, 3]
        The database, or a part of it; at least ``n_codes`` items. Of many items, those that are
        looked at are drawn at random.
    """
    generator = torch.Generator().manual_seed(seed)
    n_used = max(_ITEMS_PER_CODE * n_codes, _FEWEST_ITEMS)
    items = items[torch.randperm(len(items), generator=generator)[:n_used]]

    # ---- pseudo-classes
    hidden = torch.from_numpy(in_chunks(model, "hidden", items))
    parts = [hidden, items] if items.ndim == 2 else [hidden]
    labels = kmeans_labels(torch.cat([_unit_spread(part) for part in parts], 1), n_codes, seed=seed)

    # ---- their codes
    stage = plan.stages[-1]
    n_found = int(labels.max()) + 1
    codebook = solve_codebook(
        in_chunks(model, "scores", items),
        labels,
        n_found,
        plan.shape,
        sibling_penalty=stage.sibling_penalty,
        collision_penalty=stage.collision_penalty,
    )

    # ---- a last layer that finds them
    adapted = copy.deepcopy(model)
    adapted.set_codebook(torch.from_numpy(codebook))
    last, places = adapted.head[-1], torch.from_numpy(labels)
    assert isinstance(last, nn.Linear)

    def loss_of(outputs: Tensor, rows: Tensor) -> Tensor:
        scores = adapted.slot_scores(outputs)
        return joint_loss(
            scores, places[rows], adapted.codebook, plan.shape, sharpness=stage.sharpness
        )

    layer = train_layer(hidden, last.out_features, loss_of, seed=seed)
    last.load_state_dict(layer.state_dict())
    return adapted, replace(plan, n_codes=n_found, codes_of="clusters")


def _unit_spread(values: Tensor) -> Tensor:
    """Centred, and the mean squared length brought to 1, so that parts weigh the same."""
    centred = values - values.mean(dim=0)
    length = centred.square().sum(dim=1).mean().sqrt()
    return centred / length if length > 0 else centred
