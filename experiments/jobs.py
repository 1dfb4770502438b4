"""The rows of each experiment, as jobs: a job fits one table and gives all rows of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOSSES = ("npairs", "triplet")
SEEDED = ("metric", "vq", "vq-train", "vq-test", "flat", "ours", "ours+", "ours+adapt",
          "softmax", "prototype", "prototype-learned")  # fmt: skip
SEARCHED = {  # methods, sparsities, databases, losses of the paper's tables
    "cifar100": (
        (
            "metric",
            "lsh",
            "dch",
            "th",
            "vq",
            "flat",
            "softmax",
            "ours-r",
            "ours",
            "ours-end-to-end",
            "ours+",
            "prototype",
            "prototype-learned",
        ),
        (1, 2, 3, 4),
        ("test", "train"),
        LOSSES,
    ),
    "imagenet": (
        ("metric", "lsh", "dch", "th", "vq", "flat", "ours", "ours+"),
        (1, 2, 3),
        ("val",),
        LOSSES,
    ),
    "imagenet-split": (
        ("metric", "lsh", "th", "vq-train", "vq-test", "flat", "ours", "ours+", "ours+adapt"),
        (1, 2, 3),
        ("val",),
        ("triplet",),
    ),
}
EXPERIMENTS = (*SEARCHED, "solver-time", "ablation")
_ONLY_SPARSITY_1 = ("lsh", "dch", "softmax", "prototype", "prototype-learned", "ours-end-to-end")

# Points of the curves between and beyond the rows of the tables, at sparsity 1.
_CURVE_CHANGES: dict[str, list[dict[str, Any]]] = {
    "lsh": [{"n_bits": n} for n in (3, 4, 5, 7, 9)],
    "dch": [{"n_bits": n} for n in (4, 5, 7, 8)],
    "vq": [{"n_centroids": n} for n in (16, 32, 96, 128, 192, 256, 384, 512)],
    "vq-train": [{"n_centroids": n} for n in (32, 64, 96, 192, 256)],
    "vq-test": [{"n_centroids": n} for n in (32, 64, 96, 192, 256)],
    "flat": [{"width": n, "depth": 1} for n in (128, 256)],
    "ours+": [{"n_codes": n} for n in (150, 200, 300, 400, 600, 800, 1200, 1600)],
    "ours+adapt": [{"n_codes": n} for n in (32, 64, 96, 192, 256)],
}
_CURVE_PROBES = {"ours": (2, 3, 4, 6), "ours+": (2, 3, 4, 6), "ours+adapt": (2, 3)}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A table to fit, and what to measure of it."""

    method: str
    loss: str
    sparsity: int
    seed: int
    databases: tuple[str, ...]  # what the queries are searched in
    change: Mapping[str, Any] = field(default_factory=dict)  # settings that a variant changes
    probes: tuple[int, ...] = ()  # further rows, each with this n_probe

    @property
    def name(self) -> str:
        """For messages."""
        parts = [self.method, self.loss, f"k_s={self.sparsity}", self.variant, f"seed {self.seed}"]
        return " ".join(part for part in parts if part)

    @property
    def variant(self) -> str:
        """``"width=128"``; empty for the rows of the tables."""
        return ",".join(f"{name}={value}" for name, value in self.change.items())

    def variants(self) -> list[tuple[str, int]]:
        """Names of the rows' variants, with the ``n_probe`` of each."""
        others = [(f"{self.variant},n_probe={n}".lstrip(","), n) for n in self.probes]
        return [(self.variant, 1), *others]


def search_jobs(
    experiment: str, *, seeds: Sequence[int], points: int | None = None
) -> Iterator[Job]:
    """Jobs of a table of the paper, those that share a base one after the other.

    The first seed has all methods and the curves, the others the main methods; a curve has at most
    ``points`` points beyond the rows of the tables.
    """
    methods, sparsities, databases, losses = SEARCHED[experiment]
    for seed in seeds:
        for loss in losses:
            for method in methods:
                if seed != seeds[0] and method not in SEEDED:
                    continue
                for sparsity in sparsities_of(method, sparsities):
                    n_points = points if seed == seeds[0] and sparsity == 1 else 0
                    probes = _CURVE_PROBES.get(method, ())[:n_points]
                    yield Job(method=method, loss=loss, sparsity=sparsity, seed=seed,
                              databases=databases, probes=probes)  # fmt: skip
                    for change in _CURVE_CHANGES.get(method, [])[:n_points]:
                        yield Job(method=method, loss=loss, sparsity=1, seed=seed,
                                  databases=databases, change=change)  # fmt: skip


def ablation_jobs(*, seeds: Sequence[int], n_outputs: int) -> Iterator[Job]:
    """One setting changed at a time, with the npairs loss on Cifar-100 at sparsity 1.

    ``n_outputs``, the outputs of the hash network, stay the same when the depth changes.
    """
    changes: list[dict[str, Any]] = [
        *({"depth": depth, "width": _width(n_outputs, depth)} for depth in (1, 2, 3)),
        *({"sibling_penalty": alpha} for alpha in (0.0, 0.05, 0.5, 5.0, 50.0)),
        *({"collision_penalty": beta} for beta in (0.0, 0.005, 0.05, 0.5, 5.0)),
    ]
    for seed in seeds:
        for method in ("ours-r", "ours", "ours+"):
            yield Job(method=method, loss="npairs", sparsity=1, seed=seed, databases=("test",))
        # The code book alone, without training for it.
        yield Job(method="ours+", loss="npairs", sparsity=1, seed=seed, databases=("test",),
                  change={"joint_steps": 0})  # fmt: skip
        for change in changes:
            yield Job(method="ours", loss="npairs", sparsity=1, seed=seed, databases=("test",),
                      change=change)  # fmt: skip


def _width(n_outputs: int, depth: int) -> int:
    """The largest power of two with at most so many outputs over the levels."""
    return int(2 ** ((n_outputs // depth).bit_length() - 1))


def sparsities_of(method: str, sparsities: Sequence[int]) -> tuple[int, ...]:
    """Sparsities that a method has in the tables."""
    if method == "metric":
        return (0,)
    return tuple(sparsities[:1] if method in _ONLY_SPARSITY_1 else sparsities)


def select_jobs(jobs: Iterable[Job], only: Sequence[str] | None) -> list[Job]:
    """Jobs that match: methods, losses and sparsities (``k2``), one of each kind that is given."""
    all_jobs = list(jobs)
    if not only:
        return all_jobs
    kinds: dict[str, set[str]] = {
        "method": {job.method for job in all_jobs},
        "loss": {job.loss for job in all_jobs},
        "sparsity": {f"k{job.sparsity}" for job in all_jobs},
    }
    for word in only:
        if not any(word in kind for kind in kinds.values()):
            choices = ", ".join(sorted(set().union(*kinds.values())))
            raise ValueError(f"only={word!r} must be one of {choices}")
    allowed = {name: kind & set(only) or kind for name, kind in kinds.items()}
    return [
        job
        for job in all_jobs
        if job.method in allowed["method"]
        and job.loss in allowed["loss"]
        and f"k{job.sparsity}" in allowed["sparsity"]
    ]
