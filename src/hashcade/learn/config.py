"""Resolved settings: checked against each other and the data, with all defaults filled in.

The default penalties are the paper's. They depend on the scale of the scores, which is the same for
all data: embeddings are standardized, npairs is regularized, triplet normalizes scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from hashcade._validate import checked_choice, checked_count, checked_number
from hashcade.codes import CodeShape
from hashcade.errors import ConfigError, add_hint

if TYPE_CHECKING:
    from torch import nn

    from hashcade.data import FeatureRecord

ASSIGNMENTS = ("prototype", "codebook", "path")
SCHEDULES = ("one-cycle", "paper", "constant")

VALIDATIONS = 10  # per stage
# For training of prototypes: batch size, factor on cosines, weight decay, mixup.
_BATCH, _SCALE, _DECAY = 256, 10.0, 1e-3
_MIXUP, _MIXUP_OF_FEW = 0.2, 0.1
_FEW_CLASSES = 512
_MANY_CLASSES = 4096  # beyond this half the hidden units are enough
_SHORTLIST, _POINT_SIZE = 16, 128
_NOISE = 1024
_CODE_EPOCHS = 3  # of the stage that trains the linear layer of the codes
# λ of npairs by sparsity: more active slots share the softmax; 0.001 from 4 on.
_REGULARIZATION = {1: 0.03, 2: 0.01, 3: 0.003}
_BY_CLASS = ("base", "hash", "joint")  # stages with batches of n classes × m items
_MODULE = "module "  # prefix of a user-defined backbone in a file


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """Settings of one stage of training; most fields are settings of ``Hasher``."""

    name: str  # "warmup", "base", "hash", "joint" (stages.py), "prototype", "codes" (prototypes.py)
    loss: str
    steps: int
    validate_every: int  # steps
    learning_rate: float  # peak rate of the new layers
    schedule: str | int
    base_learning_rate: float  # factor on it for the network below the new layers
    weight_decay: float  # of the new layers
    base_weight_decay: float  # of the network below
    margin: float
    regularization: float
    sibling_penalty: float
    collision_penalty: float
    classes_per_batch: int
    items_per_class: int
    augment: str
    remap: bool
    sharpness: float  # factor on the sums of scores in the softmax of the joint stage
    dropout: float
    mixup: float
    balanced: bool = False  # classes of few items count as much as others

    @property
    def penalties(self) -> dict[str, float]:
        """Penalties of the code problem, as arguments of the solver."""
        return {n: getattr(self, n) for n in ("sibling_penalty", "collision_penalty")}

    def with_steps(self, steps: int) -> StageConfig:
        """The same with another number of steps, over which the learning rate decays."""
        return replace(self, steps=steps, validate_every=_validate_every(steps))


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """All settings of a model and its training, with defaults filled in."""

    shape: CodeShape
    item_shape: tuple[int, ...]  # (size,) for embeddings, (height, width, 3) for images
    backbone: str | nn.Module | None
    embedding_size: int | None  # of the base network's vectors; None: the given embeddings
    hidden_size: int  # 0 for a linear head
    unit_length: bool  # the base network's vectors, and the scores of each level, are normalized
    stages: tuple[StageConfig, ...]
    assignment: str  # of items to buckets: one of ASSIGNMENTS
    rerank: str  # by which vectors: "given" (or of the base network), or "learned" (the points)
    point_size: int = 0  # of the points that prototypes are compared with; 0: the given embeddings
    shortlist: int  # groups of codes whose prototypes are compared
    n_codes: int = 0  # rows of the code book
    codes_of: str = "classes"  # what has codes; or "clusters" (adapted), "parts" (refined)
    features: FeatureRecord | None = None  # the network that turns images into the items

    @property
    def takes_images(self) -> bool:
        """Whether items are images; with ``features`` they are not, but features."""
        return len(self.item_shape) == 3

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images; None for embeddings."""
        if self.features is not None:
            return self.features.image_size
        return (self.item_shape[0], self.item_shape[1]) if self.takes_images else None

    @property
    def uses_codebook(self) -> bool:
        """Whether items are assigned to a code of the book, not to the end of their path."""
        return self.n_codes > 0

    @property
    def uses_prototypes(self) -> bool:
        """Whether items are assigned to the code of the nearest prototype."""
        return self.assignment == "prototype"

    @property
    def has_parts(self) -> bool:
        """Whether items are assigned to classes by prototypes, and then to parts of them."""
        return self.uses_prototypes and self.codes_of == "parts"

    @property
    def prototype_size(self) -> int:
        """Size of prototypes: points; or of parts, whose prototypes are means of vectors."""
        size = self.embedding_size if self.has_parts and self.rerank == "given" else self.point_size
        return size or self.item_shape[0]

    @property
    def spreads_prototypes(self) -> bool:
        """Whether prototypes start orthogonal, instead of at the means of their classes.

        Few classes have enough dimensions for it; of many, similar ones should start close.
        """
        return self.point_size > 0 and self.n_codes <= _FEW_CLASSES

    @property
    def is_dense(self) -> bool:
        """Whether the network is a few matrix products, and needs no torch."""
        return not self.takes_images and self.backbone in (None, "mlp")

    @property
    def mirrored(self) -> bool:
        """Whether images are mirrored at random in training."""
        return any(stage.augment == "crop-mirror" for stage in self.stages)

    @property
    def with_inputs(self) -> bool:
        """Whether the last layers take the embeddings in addition to the hidden layer."""
        return self.uses_prototypes and self.backbone is None and self.hidden_size > 0

    @property
    def recalls_classes(self) -> bool:
        """Whether the model stores means and noise of its classes, for later classes."""
        return self.with_inputs and self.codes_of == "classes"

    @property
    def n_noise(self) -> int:
        """Rows of that noise: enough for its covariance, at most 1024."""
        return min(_NOISE, 8 * self.item_shape[0])

    @property
    def vectors_are_items(self) -> bool:
        """Whether vectors for re-ranking are the items themselves."""
        return self.rerank == "given" and self.embedding_size is None

    @property
    def vector_size(self) -> int:
        """Size of the vectors for re-ranking."""
        if self.rerank == "learned":
            return self.point_size
        return self.embedding_size or self.item_shape[0]

    def check_base(self, base: ResolvedConfig) -> None:
        """Raise ``ValueError`` unless a model can share the base network of another one."""
        if self.rerank == "learned":
            reason = "with rerank='learned' every hasher learns vectors of its own"
            error = ValueError(f"base would share nothing: {reason}")
            raise add_hint(error, "set rerank='given', or leave out base")
        self._check_equal("base", base, "embedding_size", "unit_length")

    def check_start(self, start: ResolvedConfig, base: object) -> None:
        """Raise ``ValueError`` unless training can start from the network of another model."""
        if base is not None:
            raise ValueError(
                "start and base exclude each other: the network of base stays as it is"
            )
        if self.embedding_size is None:
            raise ValueError("start would share nothing: there is no backbone")
        self._check_equal("start", start)

    def _check_equal(self, name: str, model: ResolvedConfig, *extra_fields: str) -> None:
        own_fields, other_fields = self.to_json(), model.to_json()
        fields = ["item_shape", "backbone", "features", *extra_fields]
        for field in [*fields, "hidden_size"] if self.backbone == "mlp" else fields:
            if own_fields[field] != other_fields[field]:
                value, expected = other_fields[field], own_fields[field]
                raise ValueError(f"{name} has {field}={value!r}, this hasher has {expected!r}")

    def to_json(self) -> dict[str, Any]:
        """Values that JSON can represent, for files."""
        backbone = self.backbone
        if not isinstance(backbone, str | None):  # its code is not stored
            backbone = f"{_MODULE}{type(backbone).__qualname__}"
        plain = json.dumps(asdict(replace(self, backbone=backbone)))
        return json.loads(plain)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], backbone: nn.Module | None = None) -> Self:
        """The inverse of :meth:`to_json`; a user-defined network must be passed again."""
        name = stored["backbone"]
        if isinstance(name, str) and name.startswith(_MODULE):
            if backbone is None:
                text = f"a backbone of your own ({name.removeprefix(_MODULE)}), which is not stored"
                hint = "pass one: Hasher.load(path, backbone=...)"
                raise ConfigError(f"the model was trained with {text}", hint=hint)
            name = backbone
        elif backbone is not None:
            raise ConfigError(f"the model was trained with backbone={name!r}, takes no other")
        fields = dict(stored, backbone=name, item_shape=tuple(stored["item_shape"]))
        fields["shape"] = CodeShape(**stored["shape"])
        fields["stages"] = tuple(StageConfig(**stage) for stage in stored["stages"])
        if (record := stored["features"]) is not None:
            from hashcade.data import FeatureRecord

            size = tuple(record["image_size"])
            fields["features"] = FeatureRecord(**{**record, "image_size": size})
        config = cls(**fields)
        config._check_stored()
        return config

    def _check_stored(self) -> None:
        """Raise ``ValueError`` unless the values of a file are valid."""
        checked_choice("assignment", self.assignment, ASSIGNMENTS)
        checked_choice("rerank", self.rerank, ("given", "learned"))
        checked_choice("codes_of", self.codes_of, ("classes", "clusters", "parts"))
        if len(self.item_shape) not in (1, 3):
            raise ValueError(f"item_shape={self.item_shape} must have 1 or 3 sides")
        for side in self.item_shape:
            checked_count("item_shape", side)
        for name in ("hidden_size", "point_size", "n_codes"):
            checked_count(name, getattr(self, name), at_least=0)
        checked_count("shortlist", self.shortlist)
        if self.embedding_size is not None:
            checked_count("embedding_size", self.embedding_size)
        if self.n_codes == 0 and self.assignment != "path":
            raise ValueError(f"n_codes={self.n_codes} with assignment={self.assignment!r}")
        if self.rerank == "learned" and not self.point_size:
            raise ValueError("rerank='learned' needs a point_size")


def resolve(
    settings: Mapping[str, Any], n_classes: int, n_items: int, item_shape: tuple[int, ...]
) -> ResolvedConfig:
    """Check settings against each other and the training set, and fill in defaults."""

    def number(name: str, default: float) -> float:
        return default if settings[name] is None else checked_number(name, settings[name])

    def count(name: str, default: Any, at_least: int = 1) -> Any:
        value = settings[name]
        return default if value is None else checked_count(name, value, at_least=at_least)

    from hashcade.learn.networks import IMAGE_NETWORKS, MLP

    loss = checked_choice("loss", settings["loss"], ("npairs", "triplet"))
    assignment = checked_choice("assignment", settings["assignment"], ASSIGNMENTS)
    augment = checked_choice("augment", settings["augment"], ("crop-mirror", "crop", "none"))
    schedule, backbone = settings["schedule"], settings["backbone"]
    if isinstance(schedule, str):
        checked_choice("schedule", schedule, SCHEDULES)
    else:
        schedule = checked_count("schedule", schedule)
    images, triplet, prototypes = len(item_shape) == 3, loss == "triplet", assignment == "prototype"
    no_backbone = backbone is None
    rerank = settings["rerank"] or ("learned" if prototypes and no_backbone else "given")
    checked_choice("rerank", rerank, ("given", "learned") if prototypes else ("given",))

    # ---- the table
    depth = checked_count("depth", settings["depth"])
    width = count("width", default_width(n_classes, depth, prototypes=prototypes))
    shape = CodeShape(width=width, depth=depth, sparsity=settings["sparsity"])
    # In a flat table classes may share slots (Jeong & Song), in a tree they never have to.
    if n_classes > shape.n_buckets and depth > 1:
        formula = f"n_buckets = width**depth = {shape.width}**{shape.depth} = {shape.n_buckets}"
        error = ValueError(f"y has {n_classes} classes, must be <= {formula}")
        raise add_hint(error, "set a larger width or depth")

    # ---- batches
    per_batch = min(checked_count("classes_per_batch", settings["classes_per_batch"]), n_classes)
    per_class = count("items_per_class", default_items_per_class(per_batch, n_items // n_classes))
    if per_class < 2 or (per_class % 2 and not triplet):
        even = "" if triplet else " and even"
        raise ValueError(f"items_per_class={per_class} must be >= 2{even} for loss={loss!r}")

    # ---- layers
    point_size = embedding_size = None
    many_classes = n_classes > _MANY_CLASSES
    if prototypes and no_backbone:
        point_size = count("embedding_size", _POINT_SIZE)
    else:
        embedding_size = count("embedding_size", None if no_backbone else 256 if triplet else 64)
        point_size = _POINT_SIZE * prototypes
    units = 1024 if prototypes and not many_classes else 512
    units = units if backbone in (None, "mlp") else 0
    hidden_size = count("hidden_size", units, at_least=int(backbone == "mlp"))
    network = IMAGE_NETWORKS.get(backbone, MLP) if isinstance(backbone, str) else backbone

    # ---- training
    default_rate = 1e-3 if images else 3e-3  # NIN diverges above 1e-3
    rate = number("learning_rate", getattr(network, "learning_rate", default_rate))
    if rate == 0.0:
        raise ValueError(f"learning_rate={settings['learning_rate']!r} must be > 0")
    dropout = number("dropout", 0.0)
    usual_mixup = _MIXUP if n_classes > _FEW_CLASSES else _MIXUP_OF_FEW
    mixup = number("mixup", usual_mixup if prototypes and not images else 0.0)
    if dropout >= 1.0:
        raise ValueError(f"dropout={dropout!r} must be >= 0 and < 1")
    for name, value in (("dropout", dropout), ("mixup", mixup)):
        if value and images:
            raise ValueError(f"{name}={value!r} must be 0 for images: they have augment")
    balanced = settings["class_weight"] == "balanced"
    if not balanced and settings["class_weight"] is not None:
        raise ValueError(f"class_weight={settings['class_weight']!r} must be None or 'balanced'")
    if balanced and not prototypes:
        other = f"batches of {assignment!r} always have as many items of each class"
        raise ValueError(f"class_weight='balanced' needs assignment='prototype': {other}")
    if not isinstance(settings["remap"], bool):
        raise ValueError(f"remap={settings['remap']!r} must be True or False")

    warmup = count("warmup_steps", 0, at_least=0) > 0
    if warmup and embedding_size is None:
        raise ValueError(
            f"warmup_steps={settings['warmup_steps']} needs a backbone, whose network it trains"
        )

    # Ten epochs for embeddings, twenty with mixup, thirty for images, at least 1000 steps; 70,000
    # in the paper.
    def default_steps(batch_size: int, epochs: int) -> int:
        return 70_000 if schedule == "paper" else max(1000, -(-epochs * n_items // batch_size))

    def stage(name: str) -> StageConfig:
        by_class = name in _BY_CLASS
        doubles_epochs = name == "prototype" and mixup > 0 and not many_classes
        epochs = _CODE_EPOCHS if name == "codes" else 30 if images else 20 if doubles_epochs else 10
        usual_steps = default_steps(per_batch * per_class if by_class else _BATCH, epochs)
        setting = {"hash": "steps", "prototype": "steps", "codes": "joint_steps"}.get(name)
        setting = setting or f"{name}_steps"
        default = count("steps", usual_steps) if name == "joint" else usual_steps
        if name == "codes" and settings["steps"] is not None:
            default = min(usual_steps, count("steps", usual_steps))
        solves_only = setting == "joint_steps" and settings[setting] == 0
        steps = 0 if solves_only else count(setting, default)
        config = StageConfig(
            name=name, loss=loss, steps=steps, validate_every=_validate_every(steps),
            learning_rate=rate, schedule=schedule, weight_decay=5e-4, margin=number("margin", 0.3),
            base_learning_rate=number("base_learning_rate", 0.1),
            base_weight_decay=float(getattr(network, "weight_decay", 0.0)),
            regularization=number("regularization", _REGULARIZATION.get(shape.sparsity, 0.001)),
            sibling_penalty=number("sibling_penalty", 50.0),  # siblings are separated if possible
            collision_penalty=number("collision_penalty", 0.5 if triplet else 0.05),
            classes_per_batch=per_batch, items_per_class=per_class, dropout=dropout, mixup=0.0,
            augment=augment if images else "none", remap=settings["remap"],
            sharpness=16.0 if triplet else 1.0,  # sums of unit-length scores are small
        )  # fmt: skip
        if name == "base":
            factor = config.base_learning_rate if warmup else 1.0
            return replace(config, base_learning_rate=factor, regularization=0.003, dropout=0.0)
        if not by_class:  # plain batches of items, sharpness of a cosine softmax
            batch: Any = {"classes_per_batch": _BATCH, "items_per_class": 1}
            config = replace(config, **batch, sharpness=_SCALE)
        if name == "prototype":
            return replace(config, mixup=mixup, weight_decay=_DECAY, balanced=balanced)
        return replace(config, base_learning_rate=1.0) if name == "warmup" else config

    names = {"prototype": ["prototype", "codes"], "codebook": ["hash", "joint"], "path": ["hash"]}
    stages = ["base"] * (embedding_size is not None) + names[assignment]
    stages = ["warmup"] * warmup + stages
    return ResolvedConfig(
        shape=shape, item_shape=tuple(item_shape), backbone=backbone, unit_length=triplet,
        embedding_size=embedding_size, hidden_size=hidden_size, stages=tuple(map(stage, stages)),
        assignment=assignment, rerank=rerank, point_size=point_size, shortlist=_SHORTLIST,
        n_codes=0 if assignment == "path" else n_classes,
    )  # fmt: skip


def _validate_every(steps: int) -> int:
    return max(1, -(-steps // VALIDATIONS))


def default_width(n_classes: int, depth: int, *, prototypes: bool = False) -> int:
    """Slots per level: a power of two, with enough buckets.

    About a quarter of the classes if codes are chosen by the sum of scores (the paper has 32 and
    128 for 100 classes, 512 and 256 for 1000). With prototypes codes only give a shortlist: 1.5
    buckets per class, so that ``depth * width`` grows like a root of the classes.
    """
    width = 4
    while width**depth < (1.5 if prototypes else 1) * n_classes or (
        4 * width < n_classes and not prototypes
    ):
        width *= 2
    return width


def default_items_per_class(classes_per_batch: int, class_size: int) -> int:
    """Even, at least 2: the paper's batch is 64 × 2, and fewer classes have more items."""
    return max(2, min(128 // classes_per_batch, class_size) // 2 * 2)
