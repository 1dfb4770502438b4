"""A linear layer trained on fixed inputs, in seconds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hashcade.learn.model import new_linear

_STEPS, _BATCH, _LEARNING_RATE = 1000, 256, 3e-3


def train_linear_head(
    hidden: Tensor, outputs: int, loss: Callable[[Tensor, Tensor], Tensor], *, seed: int
) -> nn.Linear:
    """A layer from hidden values, float[n, units], to outputs that makes a loss small.

    ``loss`` takes the outputs of a batch, float[batch, outputs], and its rows in ``hidden``.
    """
    mean, spread = hidden.mean(dim=0), float(hidden.std()) or 1.0
    inputs = (hidden - mean) / spread
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = new_linear(hidden.shape[1], outputs)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_LEARNING_RATE, weight_decay=5e-4)
    for step in range(_STEPS):
        rows = torch.randint(len(inputs), (_BATCH,), generator=generator)
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * (1 - step / _STEPS)
        optimizer.zero_grad(set_to_none=True)
        loss(layer(inputs[rows]), rows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():  # it will see hidden values as they are: mean and spread go into it
        layer.weight.div_(spread)
        layer.bias.sub_(F.linear(mean, layer.weight))
    return layer
