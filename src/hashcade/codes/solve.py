"""Exact solutions of the code problem (equation 5 of the paper) for one level.

Every class picks ``sparsity`` of ``width`` slots, so that all codes together minimise the energy:
see :func:`hashcade.code_energy`. That is a minimum cost flow (theorem 1): the penalty depends only
on *how many* classes share a slot. Y classes in one slot are Y(Y-1) ordered pairs, and ::

    β·Y(Y-1) = 2β·0 + 2β·1 + ... + 2β·(Y-1)

so the first class in a slot pays nothing, the second 2β, the third 4β: the price of a slot rises
with every class. The same holds, with α, for y siblings of one group in one slot. Now let each
class send ``sparsity`` units of flow to slots, at most one to each, at cost -c. The units of a
group that go to slot q pass a node (group, q), from which parallel arcs of capacity 1 and costs 0,
2α, 4α, ... lead to the slot; such arcs of costs 0, 2β, 4β, ... lead from each slot to the sink.
Their costs rise, so a cheapest flow fills them in this order, and costs exactly E(z). Conversely,
every choice of codes is such a flow. Capacities are integers, so there is an integer optimum.

It is solved on a smaller network, without parallel arcs, classes and unused (group, slot) nodes:
`prices.py` estimates prices of the slots (the dual solution), and `flow.py` completes the flow that
belongs to them by shortest paths. The result is exact, whatever the prices are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import checked_number
from hashcade.codes.checks import checked_groups, checked_scores, checked_sparsity


def solve_level(
    class_scores: ArrayLike,
    *,
    sparsity: int = 1,
    sibling_groups: ArrayLike | None = None,
    sibling_penalty: float = 0.0,
    collision_penalty: float = 0.0,
) -> NDArray[np.bool_]:
    """Codes of one level with the least energy, bool[n_classes, width].

    Scores, float[n_classes, width], are class means of the level's activations. Each class has
    ``sparsity`` slots. Classes with equal numbers in ``sibling_groups``, int[n_classes], share the
    slots of all levels above; by default there are no siblings, as on the first level. The
    penalties, α and β, are the cost per ordered pair, of siblings and of any classes, in one slot.

    Optimal up to the rounding of float64: costs are not rounded to integers. Deterministic also
    where several codes have the least energy. Time grows about like n_classes · width, the size
    of the input; see ``docs/results/solver.md``.

    Both classes prefer slot 0; sharing it would cost 2 · 0.5, moving one of them 0.1:

    >>> from hashcade import solve_level
    >>> solve_level([[0.9, 0.2, 0.0], [0.8, 0.7, 0.1]], collision_penalty=0.5).astype(int)
    array([[1, 0, 0],
           [0, 1, 0]])
    """
    scores = checked_scores(class_scores)
    n_classes, width = scores.shape
    sparsity = checked_sparsity(sparsity, width)
    sibling_step = 2.0 * checked_number("sibling_penalty", sibling_penalty)
    collision_step = 2.0 * checked_number("collision_penalty", collision_penalty)
    groups = None if sibling_groups is None else checked_groups(sibling_groups, n_classes)
    if n_classes == 0 or sparsity == width:
        return np.ones((n_classes, width), np.bool_)

    arrange_groups, estimate_prices, optimal_codes = _kernels()
    if groups is None or sibling_step == 0.0:
        order = np.arange(n_classes)
        group_start = np.array([0, n_classes])
    else:
        order, group_start = arrange_groups(groups)
    problem = (scores, sparsity, order, group_start, sibling_step, collision_step)
    scratch = scratch_for(n_classes, width, sparsity)
    n_iterations = _iteration_counts(n_classes * sparsity, width, group_start)
    prices = estimate_prices(*problem, *n_iterations, scratch[0])
    codes: NDArray[np.bool_] = optimal_codes(*problem, *prices, *scratch)[0]
    return codes


def warmup() -> None:
    """Compile what :func:`solve_level` needs, or load it from the cache."""
    solve_level(np.eye(4), sibling_groups=[0, 0, 1, 1], sibling_penalty=1.0, collision_penalty=1.0)


class _Scratch(threading.local):
    """Buffer for the large arrays, reused per thread: page faults cost a quarter of the time."""

    buffer = np.empty(0)


_scratch = _Scratch()
_MAX_SCRATCH = 2**23  # numbers; larger problems allocate a new one


def scratch_for(
    n_classes: int, width: int, sparsity: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return buffers for one call of the kernels; their contents are undefined."""
    table_size = width * (width + n_classes * sparsity // 2)
    n_floats = (n_classes + 8) * width + table_size
    size = n_floats + table_size
    buffer = _scratch.buffer if len(_scratch.buffer) >= size else np.empty(size)
    if size <= _MAX_SCRATCH:
        _scratch.buffer = buffer
    return buffer[:n_floats], buffer[n_floats:].view(np.int64)


@cache
def _kernels() -> tuple[Callable[..., Any], ...]:
    """Import the compiled kernels late: `import hashcade` must not import numba."""
    from hashcade.codes.flow import optimal_codes
    from hashcade.codes.prices import arrange_groups, estimate_prices

    return arrange_groups, estimate_prices, optimal_codes


def _iteration_counts(n_units: int, width: int, group_start: NDArray[np.int64]) -> tuple[int, int]:
    """Number of corrections and sweeps, by benchmarks; they only affect the time.

    A shortest path search is expensive with many small groups: there better prices pay off.
    """
    if n_units < width:
        return 0, 0
    n_groups = len(group_start) - 2
    if n_groups == 0:
        if width >= 128 and n_units <= 2 * width:
            return 4, 1
        return (6 if width >= 32 else 4), 0
    group_units = n_units / n_groups
    if group_units >= 2 * width or n_units < 128:
        return 6, 0
    if group_units >= width:
        return (6, 0) if n_units <= 256 else (4, 1)
    if group_units <= 8:
        return (6, 0) if n_units < 512 else (4, 1)
    return 6, 1 if n_units <= 1024 else 2
