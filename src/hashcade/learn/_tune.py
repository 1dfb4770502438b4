"""Settings that were left open, tried for a short time on the items set aside.

One group of settings after another: the shape of the table, the collision penalty, the
regulariser, the sibling penalty. Each group starts from the best found so far, so that what helps
adds up. Of all trials that keep nine tenths of the speed-up that the defaults have, the one with
the highest precision wins: a search that looks at more is not a better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hashcade.codes._check import checked_count
from hashcade.learn._defaults import default_width
from hashcade.learn._display import Display
from hashcade.learn._plan import Plan

Figures = dict[str, float]
Changes = dict[str, Any]

_MOST_TRIALS = 9
_KEPT_SPEEDUP = 0.9
_SHARE_OF_STEPS, _FEWEST_STEPS = 4, 200


def checked_trials(tune: object, n_validation: int) -> int:
    """How many trials to make; 0 for no tuning."""
    if tune is False:
        return 0
    n_trials = _MOST_TRIALS if tune is True else checked_count("tune", tune)
    if n_validation == 0:
        raise ValueError(f"tune={tune!r} needs items set aside, there are none")
    return n_trials


def shortened(plan: Plan) -> Plan:
    """The plan with a quarter of the steps in each stage, though at least 200 (if it has them)."""
    stages = []
    for stage in plan.stages:
        steps = min(stage.steps, max(_FEWEST_STEPS, stage.steps // _SHARE_OF_STEPS))
        stages.append(replace(stage, steps=steps, validate_every=max(1, -(-steps // 4))))
    return replace(plan, stages=tuple(stages))


def tune(
    settings: Mapping[str, Any],
    plan: Plan,
    n_classes: int,
    try_out: Callable[[Changes], Figures],
    *,
    n_trials: int,
    display: Display,
) -> tuple[Changes, list[dict[str, Any]]]:
    """Find changes of the settings that do better than the defaults.

    Parameters
    ----------
    settings
        As the user gave them: what is not None there is not touched.
    plan
        What the settings come to without changes.
    try_out
        Trains for a short time with changes, and returns the figures of the validation.
    n_trials
        At most so many, the defaults included.

    Returns
    -------
    changes
        Settings by name; empty if the defaults won.
    table
        One row per trial: its changes, its figures, and whether it was chosen.
    """
    table: list[dict[str, Any]] = []

    def run(changes: Changes) -> dict[str, Any]:
        row = {"changes": changes, **try_out(changes), "chosen": False}
        table.append(row)
        display.say(f"tune {len(table)}: {_named(changes)}: {_said(row)}")
        return row

    defaults = best = run({})
    least_speedup = _KEPT_SPEEDUP * defaults["speedup_factor"]
    for group in _groups(settings, plan, n_classes):
        start = best
        for changes in group:
            if len(table) >= n_trials:
                break
            row = run({**start["changes"], **changes})
            if row["speedup_factor"] >= least_speedup and _merit(row) > _merit(best):
                best = row
    best["chosen"] = True
    reason = "" if best is defaults else f"; the defaults: {_said(defaults)}"
    display.say(
        f"tune: chose {_named(best['changes'])}: {_said(best)}, the best precision of {len(table)} "
        f"trials at a speed-up of {least_speedup:.1f} or more{reason}"
    )
    return best["changes"], table


def _groups(settings: Mapping[str, Any], plan: Plan, n_classes: int) -> Iterator[list[Changes]]:
    """What to try, group by group; settings that were given are left alone."""
    shape, stage = plan.shape, plan.stages[-1]
    if settings["width"] is None:
        tables = [(2 * shape.width, shape.depth), (shape.width // 2, shape.depth)]
        tables.append((default_width(n_classes, shape.depth + 1), shape.depth + 1))
        yield [
            {"width": width, "depth": depth}
            for width, depth in tables
            if width**depth >= n_classes and width >= shape.sparsity
        ]
    yield from (
        [{name: factor * getattr(stage, name)} for factor in factors]
        for name, factors in (
            ("collision_penalty", (10.0, 0.1)),
            ("regulariser", (3.0, 1 / 3)),
            ("sibling_penalty", (0.01,)),
        )
        if settings[name] is None and not (name == "regulariser" and stage.loss == "triplet")
    )


def _merit(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["precision_at_1"], row["speedup_factor"]


def _named(changes: Changes) -> str:
    if not changes:
        return "defaults"
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in changes.items()
    )


def _said(row: Mapping[str, Any]) -> str:
    return f"Pr@1 {row['precision_at_1']:.1f} at SUF {row['speedup_factor']:.1f}"
