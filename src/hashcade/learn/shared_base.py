"""A base network that several hashers share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from hashcade.learn.config import ResolvedConfig
from hashcade.learn.model import HashModel

_PARTS = ("prepare.", "base.", "embedding.")  # what makes the vectors for re-ranking


def base_weights(model: HashModel) -> dict[str, Tensor]:
    """The weights of a model that make its vectors, by name."""
    state = model.state_dict()
    return {name: state[name] for name in state if name.startswith(_PARTS)}


def check_same_base(config: ResolvedConfig, base: ResolvedConfig) -> None:
    """Raise ``ValueError`` unless a model can take over the base of another one."""
    one, other = config.to_json(), base.to_json()
    names = ["item_shape", "backbone", "embedding_size", "unit_length"]
    if config.backbone == "mlp":  # the hidden layer is that of the base
        names.append("hidden_size")
    for name in names:
        if one[name] != other[name]:
            raise ValueError(f"base has {name}={other[name]!r}, this hasher has {one[name]!r}")


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Tells weights apart."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
