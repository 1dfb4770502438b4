"""An SVG plot of a run: loss and precision over time, from the records of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 360, 220, 44, 20
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951")  # of the stages, in their order
_PANELS = (("loss", "loss"), ("precision_at_1", "precision at 1, validation (%)"))


def log_plot(records: Sequence[Mapping[str, Any]]) -> str:
    """Plot the records of a log; stages follow each other along the time axis."""
    stages, minutes, offset, last = list(dict.fromkeys(r["stage"] for r in records)), [], 0.0, 0.0
    for number, record in enumerate(records):
        if number and record["stage"] != records[number - 1]["stage"]:
            offset += last
        last = record["seconds"] / 60
        minutes.append(offset + last)
    parts = []
    for number, stage in enumerate(stages):
        x, colour = _MARGIN + 110 * number, _COLOURS[number % len(_COLOURS)]
        parts.append(f'<circle cx="{x}" cy="12" r="4" fill="{colour}"/>')
        parts.append(_text(x + 8, 16, stage))
    for panel, (name, title) in enumerate(_PANELS):
        pairs = zip(minutes, records, strict=True)
        values = [(minute, r["stage"], r[name]) for minute, r in pairs if name in r]
        parts += _panel(panel * _WIDTH, title, values, stages, max(minutes, default=0.0))
    size = f'width="{len(_PANELS) * _WIDTH}" height="{_HEIGHT + _LEGEND}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"
    )


def _panel(
    left: int, title: str, values: Sequence[tuple[float, str, float]], stages: Sequence[str],
    max_minutes: float,
) -> list[str]:  # fmt: skip
    top, bottom = _LEGEND + 30, _LEGEND + _HEIGHT - 34
    start, end = left + _MARGIN, left + _WIDTH - 16
    lowest, highest = 0.0, max((value for *_, value in values), default=1.0) or 1.0

    def place(minute: float, value: float) -> tuple[float, float]:
        x = start + (end - start) * minute / (max_minutes or 1.0)
        return x, bottom - (bottom - top) * (value - lowest) / (highest - lowest)

    parts = [
        f'<path d="M{start} {top}V{bottom}H{end}" fill="none" stroke="#888"/>',
        _text(start, top - 10, title),
        _text(left + 6, top + 4, f"{highest:.3g}"),
        _text(left + 6, bottom + 4, "0"),
        _text(end - 60, bottom + 18, f"{max_minutes:.3g} minutes"),
    ]
    for number, stage in enumerate(stages):
        points = [place(minute, value) for minute, name, value in values if name == stage]
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in points]
    return parts


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="#333">{escape(text)}</text>'
