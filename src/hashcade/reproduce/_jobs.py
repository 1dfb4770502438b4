"""The rows of each experiment, as jobs: a job fits one table, and gives all rows that it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOSSES = ("npairs", "triplet")
SEEDED = ("metric", "vq", "vq-train", "vq-test", "flat", "ours", "ours+", "ours+adapt")
SEARCHED = {  # methods, sparsities, databases, losses of the paper's tables
    "cifar100": (
        ("metric", "lsh", "dch", "th", "vq", "flat", "ours-r", "ours", "ours+"),
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
_ONLY_SPARSITY_1 = ("lsh", "dch")

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
    """A table to be fitted, and what is measured of it.

    Attributes
    ----------
    method, loss, sparsity, seed
        As in the key of a row.
    change
        Settings that a variant has otherwise.
    probes
        Further rows: so many of the best buckets are visited.
    databases
        What it is searched in.
    """

    method: str
    loss: str
    sparsity: int
    seed: int
    databases: tuple[str, ...]
    change: Mapping[str, Any] = field(default_factory=dict)
    probes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """For messages."""
        parts = [self.method, self.loss, f"k_s={self.sparsity}", self.variant, f"seed {self.seed}"]
        return " ".join(part for part in parts if part)

    @property
    def variant(self) -> str:
        """``"width=128"``; empty for the rows of the tables."""
        return ",".join(f"{name}={value}" for name, value in self.change.items())

    def variants(self) -> list[tuple[str, int | None]]:
        """Names of the rows' variants, and how many buckets each visits."""
        others = [(f"{self.variant},n_probe={n}".lstrip(","), n) for n in self.probes]
        return [(self.variant, None), *others]


def search_jobs(
    experiment: str, *, seeds: Sequence[int], points: int | None = None
) -> Iterator[Job]:
    """Jobs of a table of the paper, those that share a base one after the other.

    Parameters
    ----------
    seeds
        The first of them for all methods and the curves, the others for the main methods.
    points
        Most points of a curve beyond the rows of the tables. None: all there are.
    """
    methods, sparsities, databases, losses = SEARCHED[experiment]
    for seed in seeds:
        for loss in losses:
            for method in methods:
                if seed != seeds[0] and method not in SEEDED:
                    continue
                for sparsity in sparsities_of(method, sparsities):
                    some = points if seed == seeds[0] and sparsity == 1 else 0
                    probes = _CURVE_PROBES.get(method, ())[:some]
                    yield Job(method=method, loss=loss, sparsity=sparsity, seed=seed,
                              databases=databases, probes=probes)  # fmt: skip
                    for change in _CURVE_CHANGES.get(method, [])[:some]:
                        yield Job(method=method, loss=loss, sparsity=1, seed=seed,
                                  databases=databases, change=change)  # fmt: skip


def ablation_jobs(*, seeds: Sequence[int], n_outputs: int) -> Iterator[Job]:
    """One setting changed at a time, with the npairs loss on Cifar-100 at sparsity 1.

    Parameters
    ----------
    n_outputs
        Outputs of the hash network, which stay as they are when the depth changes.
    """
    changes: list[dict[str, Any]] = [
        *({"depth": depth, "width": _width(n_outputs, depth)} for depth in (1, 2, 3)),
        *({"sibling_penalty": alpha} for alpha in (0.0, 0.05, 0.5, 5.0, 50.0)),
        *({"collision_penalty": beta} for beta in (0.0, 0.005, 0.05, 0.5, 5.0)),
    ]
    for seed in seeds:
        for method in ("ours-r", "ours", "ours+"):
            yield Job(method=method, loss="npairs", sparsity=1, seed=seed, databases=("test",))
        # The book alone, without training for it.
        yield Job(method="ours+", loss="npairs", sparsity=1, seed=seed, databases=("test",),
                  change={"joint_steps": 0})  # fmt: skip
        for change in changes:
            yield Job(method="ours", loss="npairs", sparsity=1, seed=seed, databases=("test",),
                      change=change)  # fmt: skip


def _width(n_outputs: int, depth: int) -> int:
    """The power of two that comes nearest to so many outputs over the levels, from below."""
    return int(2 ** ((n_outputs // depth).bit_length() - 1))


def sparsities_of(method: str, sparsities: Sequence[int]) -> tuple[int, ...]:
    """Sparsities that a method has in the tables."""
    if method == "metric":
        return (0,)
    return tuple(sparsities[:1] if method in _ONLY_SPARSITY_1 else sparsities)


def chosen(jobs: Iterator[Job], only: Sequence[str] | None) -> list[Job]:
    """Jobs that match: a method, a loss or ``k2`` for a sparsity; of each kind one of those given.

    Raises
    ------
    ValueError
        If a word is none of these.
    """
    found = list(jobs)
    if not only:
        return found
    kinds: dict[str, set[str]] = {
        "method": {job.method for job in found},
        "loss": {job.loss for job in found},
        "sparsity": {f"k{job.sparsity}" for job in found},
    }
    for word in only:
        if not any(word in kind for kind in kinds.values()):
            choices = ", ".join(sorted(set().union(*kinds.values())))
            raise ValueError(f"only={word!r} must be one of {choices}")
    wanted = {name: kind & set(only) or kind for name, kind in kinds.items()}
    return [
        job
        for job in found
        if job.method in wanted["method"]
        and job.loss in wanted["loss"]
        and f"k{job.sparsity}" in wanted["sparsity"]
    ]
