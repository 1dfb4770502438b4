"""The methods of the paper's tables by name, with the sizes that make them comparable."""

from __future__ import annotations

from typing import Any

from experiments.baselines.base import Baseline
from experiments.baselines.dch import DCH
from experiments.baselines.unsupervised import LSH, VQ, Exhaustive, Threshold
from hashcade.learn import Hasher

METHODS = ("metric", "lsh", "dch", "th", "vq", "flat", "ours-r", "ours", "ours+")


def make_method(
    name: str,
    *,
    width: int,
    depth: int = 2,
    sparsity: int = 1,
    random_state: int = 0,
    **settings: Any,
) -> Baseline | Hasher:
    """Make a method of the paper's tables, with as many outputs as a table of this shape has.

    ``"flat"`` is Jeong & Song 2018 (one level), ``"ours"`` the paper's method, ``"ours-r"`` the
    same without remapping of labels, and ``"ours+"`` goes beyond the paper: an item goes to the
    code of the highest sum of scores.

    ``width`` and ``depth`` are those of the learned table. Others get ``width · depth`` buckets, as
    in the paper: VQ and flat so many centroids and slots; LSH and DCH ``n_bits`` with
    ``2 ** n_bits = width · depth``. Th takes its buckets from the size of the embedding.

    Examples
    --------
    >>> make_method("th", width=32)
    Threshold(sparsity=1)
    >>> make_method("vq", width=128, sparsity=2).n_centroids
    256
    """
    if name not in METHODS:
        raise ValueError(f"name={name!r} must be one of {', '.join(map(repr, METHODS))}")
    outputs = width * depth
    if name == "metric":
        return Exhaustive()
    if name == "th":
        return Threshold(sparsity=sparsity)
    common: dict[str, Any] = {"sparsity": sparsity, "random_state": random_state}
    if name == "vq":
        return VQ(**{"n_centroids": outputs, **common, **settings})
    if name in ("lsh", "dch"):
        if "n_bits" not in settings:
            if outputs & (outputs - 1):
                raise ValueError(
                    f"width={width} · depth={depth} = {outputs} must be a power of two for {name}"
                )
            settings["n_bits"] = outputs.bit_length() - 1
        return (LSH if name == "lsh" else DCH)(**common, **settings)
    if name == "flat":
        width, depth = outputs, 1
    if name == "ours-r":
        settings["remap"] = False
    assignment = "codebook" if name == "ours+" else "path"
    return Hasher(width=width, depth=depth, assignment=assignment, **common, **settings)
