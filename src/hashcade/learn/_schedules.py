"""How the learning rate goes over a run, as a factor of its peak."""

from __future__ import annotations

import math

SCHEDULES = ("one-cycle", "paper", "constant")
_DECAY = 0.3


def rate_factor(schedule: str | int, step: int, steps: int) -> float:
    """Factor on the peak rate at a step, from 0 to ``steps - 1``.

    ``one-cycle`` rises for the first tenth and falls to zero along half a cosine: for short runs.
    ``paper`` falls to 0.3 of what it was, at 2/7 and so on of the run (after every 20k of 70k
    steps); a number does so after every so many steps. ``constant`` stays.
    """
    if isinstance(schedule, int):
        return float(_DECAY ** (step // schedule))
    if schedule == "constant":
        return 1.0
    if schedule == "paper":
        return float(_DECAY ** (step * 7 // (2 * steps)))
    if schedule == "one-cycle":
        rise = max(1, steps // 10)
        if step < rise:
            return (step + 1) / rise
        return 0.5 + 0.5 * math.cos(math.pi * (step - rise) / max(1, steps - rise))
    raise ValueError(f"schedule={schedule!r} must be one of {SCHEDULES}")
