"""The speed-up that a table of a given shape can be expected to reach (section 3 of the paper)."""

from __future__ import annotations

from fractions import Fraction
from math import comb

from hashcade.codes.shape import CodeShape


def expected_speedup(shape: CodeShape, *, limit: bool = False) -> float:
    """Expected ratio of database size to candidates, if buckets are used evenly.

    Let d = ``width``, k = ``depth`` and s = ``sparsity``, and let every item choose uniformly at
    random: one slot at each of the levels 1 to k-1, and s different slots at level k. An item is a
    candidate if it shares a bucket with the query, that is all upper slots and at least one slot
    of the last level::

        P(share all upper slots)      = 1 / d^(k-1)
        P(share a slot at level k)    = 1 - C(d-s, s) / C(d, s)

        speed-up = d^(k-1) / (1 - C(d-s, s) / C(d, s))

    For k = 1 this is the formula of the paper. For d ≫ s the last factor tends to s²/d, and the
    speed-up to its limit d^k / s².

    ``limit=True`` gives the limit instead, which is never larger; with sparsity 1 they are equal.
    This is a statement about even use of the buckets, not a forecast: with C balanced classes and
    pure buckets the speed-up is about C, however large the table is.

    Examples
    --------
    >>> expected_speedup(CodeShape(width=32, depth=2))
    1024.0
    >>> expected_speedup(CodeShape(width=4, depth=1, sparsity=2))
    1.2
    >>> expected_speedup(CodeShape(width=4, depth=1, sparsity=2), limit=True)
    1.0
    """
    d, s = shape.width, shape.sparsity
    if limit:
        return float(Fraction(shape.n_buckets, s * s))
    choices = comb(d, s)
    meeting = choices - comb(d - s, s)  # choices that share a slot with a given one; >= 1
    return float(Fraction(d ** (shape.depth - 1) * choices, meeting))
