"""A trained hasher as a directory: ``config.json`` and ``model.safetensors``, never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hashcade._version import __version__
from hashcade.codes._shape import CodeShape
from hashcade.errors import ConfigError, CorruptIndexError
from hashcade.learn._files import read_tensors, write_tensors
from hashcade.learn._model import HashModel
from hashcade.learn._plan import Plan
from hashcade.learn._stage import Stage

KIND = "hashcade model"
VERSION = 2
READABLE = (1, 2)  # the first format knew no code book


@dataclass(frozen=True)
class StoredHasher:
    """What was read from a directory."""

    settings: dict[str, Any]
    plan: Plan
    model: HashModel
    classes: npt.NDArray[Any]
    validation: dict[str, float]
    tuned: list[dict[str, Any]] | None


def save_hasher(
    path: Path,
    settings: Mapping[str, Any],
    plan: Plan,
    model: HashModel,
    classes: npt.NDArray[Any],
    validation: Mapping[str, float],
    tuned: list[dict[str, Any]] | None,
) -> None:
    """Write a trained hasher."""
    plain = {
        name: None if name in {"backbone", "run_dir"} else value for name, value in settings.items()
    }
    config = {
        "hashcade_version": __version__,
        "settings": plain,
        "plan": plan.describe(),
        "classes": classes.tolist(),
        "validation": dict(validation),
        "tuned": tuned,
    }
    # A copy each: the hash base of an untouched network may share nothing, but must not.
    tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
    write_tensors(path, KIND, VERSION, config, tensors)


def load_hasher(path: Path, backbone: nn.Module | None) -> StoredHasher:
    """Read a trained hasher, or raise an error that says in one line why not."""
    config, tensors = read_tensors(path, KIND, READABLE)
    try:
        plan = _read_plan(config["plan"], path, backbone)
        model = plan.make_model()
        model.load_state_dict(tensors)
        settings = {**config["settings"], "backbone": plan.backbone}
        classes = np.asarray(config["classes"])
        validation = dict(config["validation"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorruptIndexError(f"{path} is damaged: its parts do not fit: {reason}") from None
    return StoredHasher(settings, plan, model.eval(), classes, validation, config.get("tuned"))


def _read_plan(stored: dict[str, Any], path: Path, backbone: nn.Module | None) -> Plan:
    name = stored["backbone"]
    needs_module = isinstance(name, str) and name.startswith("module ")
    if needs_module and backbone is None:
        raise ConfigError(
            f"{path} was trained with a backbone of your own ({name.removeprefix('module ')}): "
            "give one, Hasher.load(path, backbone=...)"
        )
    if not needs_module and backbone is not None:
        raise ConfigError(f"{path} was trained with backbone={name!r}, takes no other")
    return Plan(
        shape=CodeShape(**stored["shape"]),
        item_shape=tuple(stored["item_shape"]),
        backbone=backbone if needs_module else name,
        embedding_size=stored["embedding_size"],
        hidden_size=stored["hidden_size"],
        unit_length=stored["unit_length"],
        stages=tuple(Stage(**stage) for stage in stored["stages"]),
        n_codes=stored.get("n_codes", 0),
        codes_of=stored.get("codes_of", "classes"),
    )
