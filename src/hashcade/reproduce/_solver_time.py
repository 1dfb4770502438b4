"""Supplement B: seconds of one level, on the paper's grid of classes and widths."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hashcade.codes._solve import solve_level

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
            from hashcade.codes._reference import PaperNetwork

            call = PaperNetwork(levels[1], sparsity=1, **problem).solve
        else:

            def call(scores: Any = levels[1], problem: dict[str, Any] = problem) -> Any:
                return solve_level(scores, sparsity=1, **problem)

        start = time.perf_counter()
        call()
        if number >= 0:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
