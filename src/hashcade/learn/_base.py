"""A base network that several hashers share."""

from __future__ import annotations

import hashlib

from hashcade.learn._model import HashModel
from hashcade.learn._plan import Plan

_PARTS = ("prepare", "base", "embedding")  # what gives the vectors for re-ranking


def take_base(model: HashModel, plan: Plan, there: HashModel, plan_there: Plan) -> None:
    """Copy what gives the vectors from a trained model into a new one.

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
    weights = there.state_dict()
    taken = {name: weights[name] for name in weights if name.partition(".")[0] in _PARTS}
    missing = model.load_state_dict(taken, strict=False)
    left = [name for name in missing.missing_keys if name.partition(".")[0] in _PARTS]
    if left or missing.unexpected_keys:  # modules of the user's own with one name
        raise ValueError(f"base has other layers: {', '.join([*left, *missing.unexpected_keys])}")


def base_digest(model: HashModel) -> str:
    """A digest of the weights that give the vectors."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if name.partition(".")[0] in _PARTS:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
