"""A base network that several hashers share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from hashcade.learn._model import HashModel
from hashcade.learn._plan import Plan

_PARTS = ("prepare.", "base.", "embedding.")  # what gives the vectors for re-ranking


def base_weights(plan: Plan, there: HashModel, plan_there: Plan) -> dict[str, Tensor]:
    """What gives the vectors in a trained model, for a new model to take over.

    Raises
    ------
    ValueError
        If the two are not built alike.
    """
    here, other = plan.describe(), plan_there.describe()
    alike = ["item_shape", "backbone", "embedding_size", "unit_length"]
    if plan.backbone == "mlp":  # the hidden layer is that of the base
        alike.append("hidden_size")
    for name in alike:
        if here[name] != other[name]:
            raise ValueError(f"base has {name}={other[name]!r}, this hasher has {here[name]!r}")
    return parts_of_base(there)


def parts_of_base(model: HashModel) -> dict[str, Tensor]:
    """The weights of a model that give its vectors, by name."""
    state = model.state_dict()
    return {name: state[name] for name in state if name.startswith(_PARTS)}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """A digest that tells weights apart."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
