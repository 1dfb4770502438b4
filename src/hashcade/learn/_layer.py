"""A linear layer trained on values that stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.learn._model import new_linear

_STEPS, _BATCH, _RATE = 1000, 256, 3e-3


def train_layer(
    hidden: Tensor, outputs: int, loss_of: Callable[[Tensor, Tensor], Tensor], *, seed: int
) -> nn.Linear:
    """A layer from hidden values to outputs that makes a loss small.

    Parameters
    ----------
    hidden : float[n, units]
        What the layer will see.
    loss_of
        Loss of a batch, from its outputs, float[batch, outputs], and its rows in ``hidden``.
    """
    mean, spread = hidden.mean(dim=0), float(hidden.std()) or 1.0
    ready = (hidden - mean) / spread
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = new_linear(hidden.shape[1], outputs)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_RATE, weight_decay=5e-4)
    for step in range(_STEPS):
        rows = torch.randint(len(ready), (_BATCH,), generator=generator)
        optimizer.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS)
        loss = loss_of(layer(ready[rows]), rows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():  # it shall see hidden values as they are: mean and spread go into it
        layer.weight.div_(spread)
        layer.bias.sub_(F.linear(mean, layer.weight))
    return layer
