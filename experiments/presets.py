"""All settings of the experiments: by preset, experiment and loss.

``paper`` has the paper's settings. ``transfer`` learns on features of EfficientNet-Lite0, ``cpu``
trains a small network from scratch in minutes, ``scratch`` a better one in an hour, and ``smoke``
only shows that everything runs. How the settings were chosen is written on the pages in
``docs/results``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Settings = dict[str, Any]

# They fine-tune the base, or a head on it; the second always the base.
LEARNED = ("flat", "ours-r", "ours", "ours+", "ours+adapt")
END_TO_END = ("ours-end-to-end",)
CLASSIFIERS = ("softmax", "prototype", "prototype-learned")  # on features, and without the base


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of all methods for one loss."""

    # Of the table. VQ and flat get width · depth buckets, LSH and DCH bits for as many.
    width: int
    depth: int = 2
    # Of efficientnet_features; None: items are used as they are.
    features: Mapping[str, Any] | None = None
    # Of the Hasher that trains the base network.
    base: Mapping[str, Any] = field(default_factory=dict)
    # Learned tables leave the base network unchanged and are trained on its features.
    frozen: bool = False
    # Further settings of the learned tables, and of each method.
    learned: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Expected time of "base", "learned" and "other" jobs.
    seconds: Mapping[str, float] = field(default_factory=dict)

    def limited(self, max_steps: int | None) -> Recipe:
        """The same with at most so many steps in every stage, to check that it runs."""
        if max_steps is None:
            return self
        by_method = {name: dict(settings) for name, settings in self.by_method.items()}
        by_method.setdefault("ours+", {}).setdefault("joint_steps", max_steps)
        by_method.setdefault("ours+adapt", {}).setdefault("joint_steps", max_steps)
        by_method.setdefault("dch", {}).setdefault("steps", max_steps)
        for settings in by_method.values():
            for name in ("steps", "joint_steps"):
                if name in settings:
                    settings[name] = min(settings[name], max_steps)
        base = {**self.base, "base_steps": min(self.base.get("base_steps", max_steps), max_steps)}
        if "warmup_steps" in base:
            base["warmup_steps"] = min(base["warmup_steps"], max_steps)
        learned = {**self.learned, "steps": min(self.learned.get("steps", max_steps), max_steps)}
        return replace(self, base=base, learned=learned, by_method=by_method)

    def base_settings(self, loss: str, seed: int) -> Settings:
        """Settings of the ``Hasher`` whose base network is shared; its table is a by-product."""
        return {
            **self.base,
            "width": self.width,
            "depth": self.depth,
            "loss": loss,
            "steps": 1,
            "random_state": seed,
        }

    def method_settings(self, method: str, loss: str, change: Mapping[str, Any]) -> Settings:
        """All settings of a method; ``change`` is what a variant changes."""
        extra = self.by_method.get(method.removesuffix("-learned"), {})
        if method not in (*LEARNED, *END_TO_END):
            return {**extra, **change}
        whole = method in END_TO_END
        shared = self.base if whole or not self.frozen else {}
        done = ("base_steps", "warmup_steps")  # by the base
        return {
            **{name: value for name, value in shared.items() if name not in done},
            "loss": loss,
            **({} if whole else self.learned),
            **extra,
            **change,
        }

    def has(self, method: str) -> bool:
        """Whether the preset has a method that others do not have."""
        optional = (*CLASSIFIERS, *END_TO_END)
        return method not in optional or method.removesuffix("-learned") in self.by_method


# -- sizes -------------------------------------------------------------------------------------

# The paper's widths (depth 2).
_WIDTHS = {
    ("cifar100", "npairs"): 32,
    ("cifar100", "triplet"): 128,
    ("imagenet", "npairs"): 512,
    ("imagenet", "triplet"): 256,
    ("imagenet-split", "triplet"): 64,
}
_SAMPLE_WIDTHS = {  # a fifth of the classes, about a fifth of the slots
    ("imagenet", "npairs"): 128,
    ("imagenet", "triplet"): 64,
    ("imagenet-split", "triplet"): 64,
}
_BATCHES = {  # classes × items
    "npairs": {"classes_per_batch": 64, "items_per_class": 2},
    "triplet": {"classes_per_batch": 32, "items_per_class": 4},
}


def make_recipe(experiment: str, preset: str, loss: str, *, is_sample: bool) -> Recipe:
    """The settings of a preset for one loss of an experiment."""
    base_experiment = "cifar100" if experiment == "ablation" else experiment
    width = _WIDTHS[base_experiment, loss]
    if is_sample:
        width = _SAMPLE_WIDTHS.get((base_experiment, loss), width)
    return PRESETS[preset](base_experiment, loss, width)


# -- presets -----------------------------------------------------------------------------------


def _paper(experiment: str, loss: str, width: int) -> Recipe:
    """NIN, the paper's batches and iterations: about a day on one GPU for all rows."""
    batches: Settings = dict(_BATCHES[loss])
    learned: Settings = {"steps": 70_000}
    if experiment == "imagenet":  # the new layer alone is trained
        n_classes, steps = (512, 15_000) if loss == "npairs" else (128, 30_000)
        batches = {"classes_per_batch": n_classes, "items_per_class": 2 if loss == "npairs" else 4}
        decay = 6_000 if loss == "npairs" else 10_000  # 0.3 of the rate after so many steps
        learned = {"steps": steps, "base_learning_rate": 0.0, "schedule": decay}
    elif experiment == "imagenet-split":
        batches = {"classes_per_batch": 50, "items_per_class": 4}
        learned = {"steps": 50_000, "schedule": 40_000}
    base: Settings = {
        "backbone": "nin",
        "embedding_size": 64 if (experiment, loss) == ("cifar100", "npairs") else 256,
        "schedule": "paper",
        "learning_rate": 1e-3,
        "base_steps": 70_000,
        **batches,
    }
    return Recipe(
        width=width,
        base=base,
        learned=learned,
        seconds={"base": 3600, "learned": 3600, "other": 60},
    )


def _cpu(experiment: str, loss: str, width: int) -> Recipe:
    """From scratch with a network made for CPUs: less than two hours on two cores for all rows.

    To fine-tune the network for each of the tables would take most of that time. So it is trained
    once for each loss, and the tables are learned on its features.
    """
    base: Settings = {
        "backbone": "stride",
        "embedding_size": 64 if loss == "npairs" else 128,
        "base_steps": 4000 if experiment == "cifar100" else 2000,
        **_BATCHES[loss],
    }
    learned: Settings = {
        "hidden_size": 512,
        "steps": 3000 if loss == "npairs" else 500,
        "classes_per_batch": 100,
        "items_per_class": 4,
    }
    codebook: Settings = {"joint_steps": learned["steps"]}
    return Recipe(
        width=width,
        base=base,
        frozen=True,
        learned=learned,
        by_method={"ours+": codebook, "ours+adapt": codebook},
        seconds={"base": 1000, "learned": 40, "other": 10},
    )


def _scratch(experiment: str, loss: str, width: int) -> Recipe:
    """From scratch to the paper's level on two cores: an hour or two for all rows.

    One network is warmed up as a classifier, for 30 epochs. Each loss then trains a copy of it, and
    tables are learned on the features of that copy, as in ``cpu``.
    """
    fit: Settings = {"classes_per_batch": 100, "items_per_class": 4}
    base: Settings = {
        "backbone": "fast",
        "embedding_size": 64 if loss == "npairs" else 256,
        "warmup_steps": 5250,
        "base_steps": 500,
        **fit,
    }
    learned: Settings = {"hidden_size": 512, "steps": 1000, **fit}
    codebook: Settings = {"joint_steps": 2 * learned["steps"]}
    return Recipe(
        width=width,
        base=base,
        frozen=True,
        learned=learned,
        by_method={
            "ours+": codebook,
            "ours+adapt": codebook,
            "ours-end-to-end": {"steps": 500},
            "softmax": {"hidden_size": 512},
            "prototype": {"hidden_size": 512},
        },
        seconds={"base": 2400, "learned": 40, "other": 10},
    )


def _transfer(experiment: str, loss: str, width: int) -> Recipe:
    """A small network on frozen features of EfficientNet-Lite0."""
    base: Settings = {
        "backbone": "mlp",
        "embedding_size": 64 if loss == "npairs" else 256,
        "hidden_size": 512,
        "base_steps": 2500 if loss == "npairs" else 1200,
        "classes_per_batch": 100,
        "items_per_class": 4,
    }
    learned: Settings = {"steps": 1000 if loss == "npairs" else 500, "base_learning_rate": 1.0}
    codebook: Settings = {
        "joint_steps": 2 * learned["steps"],
        "base_learning_rate": 0.2 if loss == "npairs" else 1.0,
    }
    if experiment == "cifar100":
        codebook["dropout"] = 0.4
    elif (experiment, loss) == ("imagenet", "triplet"):  # few items per class: overfits without
        learned["dropout"] = 0.3
    return Recipe(
        width=width,
        features={"image_size": 160, "mirror": True},
        base=base,
        learned=learned,
        by_method={
            "ours+": codebook,
            "ours+adapt": codebook,
            "softmax": {"hidden_size": 512},
            "prototype": {"hidden_size": 512},
        },
        seconds={"base": 60, "learned": 40, "other": 10},
    )


def _smoke(experiment: str, loss: str, width: int) -> Recipe:
    """Two minutes for everything, on digits. Its numbers mean nothing."""
    base: Settings = {
        "backbone": "mlp",
        "embedding_size": 16,
        "hidden_size": 32,
        "base_steps": 60,
        "classes_per_batch": 10,
        "items_per_class": 4,
    }
    return Recipe(
        width=8,
        base=base,
        learned={"steps": 60},
        by_method={"dch": {"steps": 60, "hidden_size": 32}, "ours+": {"joint_steps": 30}},
        seconds={"base": 2, "learned": 2, "other": 0.5},
    )


PRESETS: dict[str, Callable[[str, str, int], Recipe]] = {
    "paper": _paper,
    "cpu": _cpu,
    "scratch": _scratch,
    "transfer": _transfer,
    "smoke": _smoke,
}
