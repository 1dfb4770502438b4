"""Phrases that error messages share."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_NAMED = 10


def list_rows(rows: Sequence[int]) -> str:
    """Name rows by their numbers: ``rows 3, 17``, ten at most."""
    named = ", ".join(str(row) for row in rows[:_MAX_NAMED])
    more = f" and {len(rows) - _MAX_NAMED} more" if len(rows) > _MAX_NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {named}{more}"
