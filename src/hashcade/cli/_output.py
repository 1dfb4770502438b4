"""Results, to stdout: for people as aligned text, for programs as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{name:{width}}  {value}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns: numbers to the right, text to the left. Nothing is cut off."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    numeric = [
        all(isinstance(row[at], (int, float)) or _is_number(row[at]) for row in rows)
        for at in range(len(head))
    ]
    for line in [list(head), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  " + "  ".join(cells).rstrip())


def say(text: str) -> None:
    """Say something that is no result, on stderr."""
    print(text, file=sys.stderr, flush=True)


def percent(share: float) -> str:
    """A share as per cent."""
    return f"{100 * share:.1f} %"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 bucket, 2 buckets."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def bytes_text(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError


def _is_number(cell: object) -> bool:
    return isinstance(cell, str) and cell.replace(".", "", 1).isdigit()


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
