"""Supplement B: seconds of one level, on the paper's grid of classes and widths."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from experiments.progress import Progress, machine, versions
from experiments.rows import ResultRow, RowFile, RowKey, fingerprint
from hashcade.codes import solve_level

CLASSES = (64, 128, 256, 512)
WIDTHS = (16, 32, 64, 128)
# Level 2 of npairs on Cifar-100, as it is trained: siblings from a solved level 1.
PENALTIES = {"sibling_penalty": 50.0, "collision_penalty": 0.05}
SOLVERS = ("hashcade", "ortools")


def solver_settings(n_classes: int, width: int, repetitions: int) -> dict[str, Any]:
    """What a time depends on, as plain values."""
    return {
        "n_classes": n_classes,
        "width": width,
        "repetitions": repetitions,
        "scores": "class means of two random items",
        **PENALTIES,
    }


def solver_seconds(
    solver: str, n_classes: int, width: int, *, repetitions: int, seed: int
) -> float:
    """Median seconds of one solution, over problems made of random activations.

    ``"ortools"`` is the flow network of the paper in OR-tools, its solve call alone.
    """
    seconds = []
    for number in range(-1, repetitions):  # the first one compiles, and does not count
        rng = np.random.default_rng([seed, n_classes, width, number + 1])
        levels = rng.normal(size=(2, n_classes, 2, width)).mean(axis=2)
        groups = solve_level(levels[0], collision_penalty=PENALTIES["collision_penalty"])
        problem: dict[str, Any] = {"sibling_groups": groups.argmax(axis=1), **PENALTIES}
        call: Callable[[], Any]
        if solver == "ortools":
            from benchmarks._paper_network import PaperNetwork

            call = PaperNetwork(levels[1], sparsity=1, **problem).solve
        else:

            def call(scores: Any = levels[1], problem: dict[str, Any] = problem) -> Any:
                return solve_level(scores, sparsity=1, **problem)

        start = time.perf_counter()
        call()
        if number >= 0:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def run_solver_time(
    file: RowFile, preset: str, *, seeds: Sequence[int], only: Sequence[str] | None, verbose: bool
) -> int:
    """Measure the missing times; how many there were."""
    repetitions, step = (3, 3) if preset == "smoke" else (20, 1)
    solvers = [s for s in SOLVERS if s != "ortools" or find_spec("ortools") is not None]
    unknown = [word for word in only or () if word not in SOLVERS]
    if unknown:
        raise ValueError(f"only={unknown[0]!r} must be one of {', '.join(SOLVERS)}")
    fingerprints = {row.key: row.fingerprint for row in file.rows()}
    todo = []
    for seed in seeds:
        for n_classes in CLASSES[::step]:
            for width in WIDTHS[::step]:
                settings = solver_settings(n_classes, width, repetitions)
                for solver in [s for s in solvers if not only or s in only]:
                    key = RowKey(
                        experiment="solver-time",
                        preset=preset,
                        method=solver,
                        loss="none",
                        sparsity=1,
                        database="random",
                        variant=f"{n_classes}x{width}",
                        seed=seed,
                    )
                    if fingerprints.get(key) != fingerprint(settings):
                        todo.append((key, settings))
    progress = Progress(0.2 * len(todo), len(todo), verbose=verbose)
    for key, settings in todo:
        progress.begin(f"{key.method} {key.variant}")
        n_classes, width = settings["n_classes"], settings["width"]
        seconds = solver_seconds(
            key.method, n_classes, width, repetitions=repetitions, seed=key.seed
        )
        file.append(
            ResultRow(
                key=key,
                settings=settings,
                metrics={"seconds": seconds},
                details={"machine": machine()},
                versions=versions(),
            )
        )
        progress.end(0.2)
    return len(todo)
