"""What a preset says about one loss: all settings of all methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEARNED = ("flat", "ours-r", "ours", "ours+", "ours+adapt")  # fine-tune the base, or a head on it


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings for one loss.

    Attributes
    ----------
    width, depth
        Of the table. VQ and flat get ``width · depth`` buckets, LSH and DCH bits for as many.
    features
        Settings of ``efficientnet_features``; None: items are taken as they are.
    base
        Settings of the ``Hasher`` that trains the base network.
    frozen
        Whether learned tables leave the base network as it is, and are networks on its features.
        These are computed once for all tables.
    learned
        What is changed for the tables on it, and per method in ``by_method``.
    by_sparsity
        What is changed again, for one sparsity.
    by_method
        Settings of each method, learned or not.
    seconds
        Expected time of ``"base"``, ``"learned"`` and ``"other"`` jobs, for the estimate.
    """

    width: int
    depth: int = 2
    features: Mapping[str, Any] | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    learned: Mapping[str, Any] = field(default_factory=dict)
    by_sparsity: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def limited(self, max_steps: int | None) -> Recipe:
        """The same with at most so many steps in every stage, to see that it runs."""
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
        learned = {**self.learned, "steps": min(self.learned.get("steps", max_steps), max_steps)}
        return replace(self, base=base, learned=learned, by_method=by_method)

    def base_settings(self, loss: str, seed: int) -> dict[str, Any]:
        """Settings of the ``Hasher`` whose base is shared; its own table is a by-product."""
        return {
            **self.base,
            "width": self.width,
            "depth": self.depth,
            "loss": loss,
            "steps": 1,
            "random_state": seed,
        }

    def method_settings(
        self, method: str, loss: str, sparsity: int, seed: int, change: Mapping[str, Any]
    ) -> dict[str, Any]:
        """All settings of a method. ``change`` is what a variant has otherwise."""
        extra = self.by_method.get(method, {})
        if method not in LEARNED:
            return {**extra, **change}
        shared = {} if self.frozen else self.base
        return {
            **{name: value for name, value in shared.items() if name != "base_steps"},
            "loss": loss,
            **self.learned,
            **extra,
            **self.by_sparsity.get(sparsity, {}),
            **change,
        }
