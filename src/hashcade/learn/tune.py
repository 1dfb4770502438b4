"""Tuning: short trials of open settings, compared on the validation set.

Each group starts from the best settings so far, so that improvements add up. The highest precision
wins, among trials with at least nine tenths of the default speed-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from operator import itemgetter
from typing import Any

from hashcade._progress import Progress
from hashcade._validate import checked_count
from hashcade.errors import add_hint
from hashcade.learn.config import ResolvedConfig, default_width, resolve
from hashcade.learn.stages import Metrics
from hashcade.learn.trainer import Trainer

Settings = Mapping[str, Any]
Changes = dict[str, Any]

_MAX_TRIALS = 9
_merit = itemgetter("precision_at_1", "speedup_factor")
_MIN_SPEEDUP = 0.9  # relative to the defaults
_FACTORS = {
    "collision_penalty": (10.0, 0.1),
    "regularization": (3.0, 1 / 3),
    "sibling_penalty": (0.01,),
}


def tune(
    trainer: Trainer, config: ResolvedConfig, settings: Settings, sizes: tuple[Any, ...]
) -> tuple[ResolvedConfig, list[dict[str, Any]]]:
    """The best config of short trials, which share a base network, and a table of all trials."""
    setting = settings["tune"]
    n_trials = _MAX_TRIALS if setting is True else checked_count("tune", setting)
    if len(trainer.data.validation) == 0:
        error = ValueError(f"tune={setting!r} needs a validation set, which is empty")
        raise add_hint(error, "set validation_fraction above 0, and give 4 items of a class")
    shared_stages = tuple(stage for stage in config.stages if stage.name in ("warmup", "base"))
    if shared_stages and trainer.base is None:
        base_only = replace(config, stages=shared_stages, n_codes=0)
        trainer.base = trainer.train(base_only, "tune/base")[0].base_weights()
    numbers = count(1)

    def trial(changes: Changes) -> Metrics:
        short_config = shortened(resolve({**settings, **changes}, *sizes))
        return trainer.train(short_config, f"tune/{next(numbers):02d}")[1]

    changes, table = search_settings(
        settings, config, sizes[0], trial, n_trials=n_trials, progress=trainer.progress
    )
    return resolve({**settings, **changes}, *sizes), table


def shortened(config: ResolvedConfig) -> ResolvedConfig:
    """A quarter of the steps of each stage, but at least 200 if it has as many."""
    stages = []
    for stage in config.stages:
        steps = min(stage.steps, max(200, stage.steps // 4))
        stages.append(replace(stage, steps=steps, validate_every=max(1, -(-steps // 4))))
    return replace(config, stages=tuple(stages))


def search_settings(
    settings: Settings, config: ResolvedConfig, n_classes: int,
    trial: Callable[[Changes], Metrics], *, n_trials: int, progress: Progress,
) -> tuple[Changes, list[dict[str, Any]]]:  # fmt: skip
    """The changes of settings of the best trial, and a row for each trial."""
    table: list[dict[str, Any]] = []

    def run(changes: Changes) -> dict[str, Any]:
        table.append({"changes": changes, **trial(changes), "chosen": False})
        progress.say(f"tune {len(table)}: {_describe(table[-1])}")
        return table[-1]

    defaults = best = run({})
    min_speedup = _MIN_SPEEDUP * defaults["speedup_factor"]
    for group in _groups(settings, config, n_classes):
        start = best
        for changes in group[: max(0, n_trials - len(table))]:
            row = run({**start["changes"], **changes})
            if row["speedup_factor"] >= min_speedup and _merit(row) > _merit(best):
                best = row
    best["chosen"] = True
    reason = "" if best is defaults else f"; {_describe(defaults)}"
    progress.say(
        f"tune: chose {_describe(best)}, the best precision of {len(table)} trials at a speed-up "
        f"of {min_speedup:.1f} or more{reason}"
    )
    return best["changes"], table


def _groups(settings: Settings, config: ResolvedConfig, n_classes: int) -> Iterator[list[Changes]]:
    """Changes to try, group by group; settings given by the user are not changed."""
    shape, stage = config.shape, config.stages[-1]
    if settings["width"] is None:
        tables = [(2 * shape.width, shape.depth), (shape.width // 2, shape.depth)]
        new_depth, prototypes = shape.depth + 1, config.uses_prototypes
        tables.append((default_width(n_classes, new_depth, prototypes=prototypes), new_depth))
        yield [
            {"width": width, "depth": depth}
            for width, depth in tables
            if width**depth >= n_classes and width >= shape.sparsity
        ]
    has_regularization = stage.loss == "npairs" and not config.uses_prototypes
    for name, factors in _FACTORS.items():
        if settings[name] is None and (name != "regularization" or has_regularization):
            yield [{name: factor * getattr(stage, name)} for factor in factors]


def _describe(row: Mapping[str, Any]) -> str:
    changes = row["changes"].items()
    texts = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in changes]
    metrics = f"Pr@1 {row['precision_at_1']:.1f} at SUF {row['speedup_factor']:.1f}"
    return f"{', '.join(texts) or 'defaults'}: {metrics}"
