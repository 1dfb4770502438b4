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
from torch.nn import functional as F  # noqa: N812

from hashcade.learn._codebook import joint_loss, solve_codebook
from hashcade.learn._kmeans import kmeans_labels
from hashcade.learn._model import HashModel, new_linear
from hashcade.learn._plan import Plan
from hashcade.learn._trainer import in_chunks

_STEPS, _BATCH, _RATE = 1000, 256, 3e-3
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
    _train_last_layer(adapted, hidden, torch.from_numpy(labels), stage.sharpness, generator)
    return adapted, replace(plan, n_codes=n_found)


def _unit_spread(values: Tensor) -> Tensor:
    """Centred, and the mean squared length brought to 1, so that parts weigh the same."""
    centred = values - values.mean(dim=0)
    length = centred.square().sum(dim=1).mean().sqrt()
    return centred / length if length > 0 else centred


def _train_last_layer(
    model: HashModel, hidden: Tensor, labels: Tensor, sharpness: float, generator: torch.Generator
) -> None:
    mean, spread = hidden.mean(dim=0), float(hidden.std()) or 1.0
    old = model.head[-1]
    assert isinstance(old, nn.Linear)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        layer = new_linear(old.in_features, old.out_features)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_RATE, weight_decay=5e-4)
    ready = (hidden - mean) / spread
    for step in range(_STEPS):
        chosen = torch.randint(len(ready), (_BATCH,), generator=generator)
        optimizer.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS)
        loss = joint_loss(
            model.slot_scores(layer(ready[chosen])),
            labels[chosen],
            model.codebook,
            model.shape,
            sharpness=sharpness,
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():  # the layer sees hidden values as they are: mean and spread go into it
        old.weight.copy_(layer.weight / spread)
        old.bias.copy_(layer.bias - F.linear(mean / spread, layer.weight))
