"""The methods of the paper's tables by name, with the sizes that make them comparable."""

from __future__ import annotations

from typing import Any

from hashcade.baselines._base import Baseline
from hashcade.baselines._dch import DCH
from hashcade.baselines._exhaustive import Exhaustive
from hashcade.baselines._lsh import LSH
from hashcade.baselines._threshold import Threshold
from hashcade.baselines._vq import VQ
from hashcade.codes._check import checked_count
from hashcade.learn._hasher import Hasher

METHODS = ("metric", "lsh", "dch", "th", "vq", "flat", "ours-r", "ours", "ours+")


def flat(*, width: int | None = None, sparsity: int = 1, **settings: Any) -> Hasher:
    """The method of Jeong & Song 2018: one level, so ``width`` buckets.

    The other settings are those of ``Hasher``.
    """
    return Hasher(width=width, depth=1, sparsity=sparsity, assignment="path", **settings)


def ours(*, width: int | None = None, depth: int = 2, sparsity: int = 1, **settings: Any) -> Hasher:
    """The paper's method: a ``Hasher`` that assigns by path."""
    return Hasher(width=width, depth=depth, sparsity=sparsity, assignment="path", **settings)


def ours_without_remapping(
    *, width: int | None = None, depth: int = 2, sparsity: int = 1, **settings: Any
) -> Hasher:
    """The paper's ablation Ours-r: classes with equal codes are still pushed apart."""
    return ours(width=width, depth=depth, sparsity=sparsity, remap=False, **settings)


def ours_codebook(
    *, width: int | None = None, depth: int = 2, sparsity: int = 1, **settings: Any
) -> Hasher:
    """Beyond the paper, Ours+: an item goes to the code of the highest sum of scores."""
    return Hasher(width=width, depth=depth, sparsity=sparsity, assignment="codebook", **settings)


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

    Parameters
    ----------
    name
        ``"metric"`` (Exhaustive), ``"lsh"``, ``"dch"``, ``"th"``, ``"vq"``, ``"flat"``,
        ``"ours-r"``, ``"ours"`` or ``"ours+"``.
    width, depth
        Of the learned table. Others get ``width · depth`` buckets, as in the paper: VQ and flat so
        many centroids and slots; LSH and DCH ``n_bits`` with ``2 ** n_bits = width · depth``, which
        must be a power of two. Th takes its buckets from the size of the embedding.
    sparsity
        Buckets per item; exhaustive search has one whatever this is.
    random_state
        Seed, for those that have one.
    **settings
        Settings of the method itself.

    Examples
    --------
    >>> make_method("lsh", width=32)
    LSH()
    >>> make_method("vq", width=128, sparsity=2)
    VQ(n_centroids=256, sparsity=2)
    """
    outputs = checked_count("width", width) * checked_count("depth", depth)
    if name == "metric":
        return Exhaustive(**settings)
    if name == "th":
        return Threshold(sparsity=sparsity, **settings)
    if name == "vq":
        settings = {"n_centroids": outputs, **settings}
        return VQ(sparsity=sparsity, random_state=random_state, **settings)
    if name in {"lsh", "dch"}:
        if "n_bits" not in settings:
            if outputs & (outputs - 1):
                raise ValueError(
                    f"width={width} · depth={depth} = {outputs} must be a power of two for {name}"
                )
            settings = {"n_bits": outputs.bit_length() - 1, **settings}
        kind = LSH if name == "lsh" else DCH
        return kind(sparsity=sparsity, random_state=random_state, **settings)
    learned = {"sparsity": sparsity, "random_state": random_state, **settings}
    if name == "flat":
        return flat(width=outputs, **learned)
    if name == "ours":
        return ours(width=width, depth=depth, **learned)
    if name == "ours-r":
        return ours_without_remapping(width=width, depth=depth, **learned)
    if name == "ours+":
        return ours_codebook(width=width, depth=depth, **learned)
    raise ValueError(f"name={name!r} must be one of {', '.join(map(repr, METHODS))}")
