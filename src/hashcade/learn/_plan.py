"""From settings and the size of the data to a model and the stages of its training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from hashcade.codes._check import checked_count, checked_penalty
from hashcade.codes._shape import CodeShape
from hashcade.learn._defaults import (
    default_collision_penalty,
    default_items_per_class,
    default_rate,
    default_regulariser,
    default_sharpness,
    default_sibling_penalty,
    default_steps,
    default_width,
)
from hashcade.learn._model import HashModel
from hashcade.learn._networks import IMAGE_NETWORKS, MLP, make_backbone
from hashcade.learn._schedules import SCHEDULES
from hashcade.learn._stage import AUGMENTATIONS, LOSSES, Stage

_VALIDATIONS = 10  # looks at the items set aside, in a stage
_STEPS = {"base": "base_steps", "hash": "steps", "joint": "joint_steps"}  # setting of each stage
ASSIGNMENTS = ("path", "codebook")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All settings, none of them left open."""

    shape: CodeShape
    item_shape: tuple[int, ...]
    backbone: str | nn.Module | None
    embedding_size: int | None
    hidden_size: int
    unit_length: bool
    stages: tuple[Stage, ...]
    n_codes: int = 0
    codes_of: str = "classes"  # or "clusters" (adapted), "parts" of classes (refined)

    def make_model(self) -> HashModel:
        """A model with first weights from torch's global generator."""
        backbone = self.backbone
        by_mlp = backbone == "mlp"  # then the hidden layer is that of the network
        if backbone is not None:  # the user's own module stays as it is
            backbone = copy.deepcopy(
                make_backbone(backbone, self.item_shape[0], hidden_size=self.hidden_size)
            )
        return HashModel(
            self.shape,
            self.item_shape,
            backbone=backbone,
            embedding_size=self.embedding_size,
            hidden_size=0 if by_mlp else self.hidden_size,
            unit_length=self.unit_length,
            n_codes=self.n_codes,
        )

    def describe(self) -> dict[str, Any]:
        """The plan in plain values, for files."""
        backbone = self.backbone
        if isinstance(backbone, nn.Module):
            backbone = f"module {type(backbone).__qualname__}"
        return {
            "shape": asdict(self.shape),
            "item_shape": list(self.item_shape),
            "backbone": backbone,
            "embedding_size": self.embedding_size,
            "hidden_size": self.hidden_size,
            "unit_length": self.unit_length,
            "stages": [asdict(stage) for stage in self.stages],
            "n_codes": self.n_codes,
            "codes_of": self.codes_of,
        }


def make_plan(
    settings: Mapping[str, Any], n_classes: int, n_items: int, item_shape: tuple[int, ...]
) -> Plan:
    """Check all settings against each other and the data, and fill in what was left open."""
    loss, schedule, backbone = settings["loss"], settings["schedule"], settings["backbone"]
    _one_of("loss", loss, LOSSES)
    if isinstance(schedule, str):
        _one_of("schedule", schedule, SCHEDULES)
    else:
        schedule = checked_count("schedule", schedule)
    _one_of("augment", settings["augment"], AUGMENTATIONS)
    _one_of("assignment", settings["assignment"], ASSIGNMENTS)
    images = len(item_shape) == 3

    # ---- the table
    depth = checked_count("depth", settings["depth"])
    width = settings["width"]
    if width is None:
        width = default_width(n_classes, depth)
    shape = CodeShape(width=width, depth=depth, sparsity=settings["sparsity"])
    # In a flat table classes may share slots (Jeong & Song have 64 for 100 classes); in a tree
    # they never need to, so a small one is a slip.
    if n_classes > shape.n_buckets and depth > 1:
        raise ValueError(
            f"y has {n_classes} classes, must be <= n_buckets = width**depth = "
            f"{shape.width}**{shape.depth} = {shape.n_buckets}"
        )

    # ---- batches
    per_batch = min(checked_count("classes_per_batch", settings["classes_per_batch"]), n_classes)
    per_class = settings["items_per_class"]
    if per_class is None:
        per_class = default_items_per_class(per_batch, n_items // n_classes)
    per_class = checked_count("items_per_class", per_class)
    if per_class < 2 or (loss == "npairs" and per_class % 2):
        even = " and even" if loss == "npairs" else ""
        raise ValueError(f"items_per_class={per_class} must be >= 2{even} for loss={loss!r}")

    # ---- layers
    embedding_size = settings["embedding_size"]
    if embedding_size is None and backbone is not None:
        embedding_size = 256 if loss == "triplet" else 64
    if embedding_size is not None:
        embedding_size = checked_count("embedding_size", embedding_size)
    hidden_size = settings["hidden_size"]
    if hidden_size is None:
        hidden_size = 512 if backbone in (None, "mlp") else 0
    elif hidden_size != 0 or backbone == "mlp":
        hidden_size = checked_count("hidden_size", hidden_size)
    decay_of = IMAGE_NETWORKS.get(backbone, MLP) if isinstance(backbone, str) else backbone

    # ---- stages
    dropout = checked_penalty("dropout", settings["dropout"])
    if dropout >= 1.0:
        raise ValueError(f"dropout={dropout!r} must be >= 0 and < 1")
    if dropout and images:
        raise ValueError(f"dropout={dropout!r} must be 0 for images: they have augment")
    remap = settings["remap"]
    if not isinstance(remap, bool):
        raise ValueError(f"remap={remap!r} must be True or False")

    def stage(name: str) -> Stage:
        steps = settings[_STEPS[name]]
        if steps is None and name == "joint":  # as many as those that come before
            steps = settings["steps"]
        if steps is None:
            steps = default_steps(n_items, per_batch * per_class, images=images, schedule=schedule)
        if not (name == "joint" and steps == 0):  # the book alone, and no training with it
            steps = checked_count(_STEPS[name], steps)
        return Stage(
            name=name,
            loss=loss,
            steps=steps,
            validate_every=max(1, -(-steps // _VALIDATIONS)),
            rate=default_rate(images=images)
            if settings["rate"] is None
            else _positive("rate", settings["rate"]),
            schedule=schedule,
            base_rate=1.0
            if name == "base"
            else checked_penalty("base_rate", settings["base_rate"]),
            weight_decay=5e-4,
            base_weight_decay=float(getattr(decay_of, "weight_decay", 0.0)),
            margin=checked_penalty("margin", settings["margin"]),
            regulariser=_given(
                settings, "regulariser", name != "base", default_regulariser(name, shape.sparsity)
            ),
            sibling_penalty=_given(settings, "sibling_penalty", True, default_sibling_penalty()),
            collision_penalty=_given(
                settings, "collision_penalty", True, default_collision_penalty(loss)
            ),
            classes_per_batch=per_batch,
            items_per_class=per_class,
            augment=settings["augment"] if images else "none",
            remap=remap,
            sharpness=default_sharpness(loss),
            dropout=0.0 if name == "base" else dropout,
        )

    by_book = settings["assignment"] == "codebook"
    names = [*(["base"] if embedding_size is not None else []), "hash"]
    names += ["joint"] if by_book else []
    return Plan(
        shape=shape,
        item_shape=tuple(item_shape),
        backbone=backbone,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        unit_length=loss == "triplet",
        stages=tuple(stage(name) for name in names),
        n_codes=n_classes if by_book else 0,
    )


def _given(settings: Mapping[str, Any], name: str, applies: bool, default: float) -> float:
    value = settings[name]
    return checked_penalty(name, value) if applies and value is not None else default


def _positive(name: str, value: object) -> float:
    number = checked_penalty(name, value)
    if number == 0.0:
        raise ValueError(f"{name}={value!r} must be > 0")
    return number


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
