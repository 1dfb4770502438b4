"""The paper's flow network, arc by arc, solved by OR-tools: how the authors did it.

A reference to check the solver against and to measure it by; nothing in the package uses it.
It needs the development dependency ``ortools``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from ortools.graph.python import min_cost_flow

_LARGEST_SCALE = 1e9
_Array = npt.NDArray[Any]


class PaperNetwork:
    """The network G' of theorem 1 for one level, ready to be solved.

    Nodes are the source, the sink, the classes, the slots b_0 and, for groups of two or more, the
    slots b_r. OR-tools wants whole numbers: costs are multiplied by ``scale`` and rounded. The
    default scale is as large as its solver accepts for the size of the network, at most 1e9.
    """

    def __init__(
        self,
        class_scores: npt.NDArray[np.float64],
        *,
        sparsity: int,
        sibling_groups: npt.NDArray[np.int64] | None = None,
        sibling_penalty: float = 0.0,
        collision_penalty: float = 0.0,
        scale: float | None = None,
    ) -> None:
        n_classes, width = class_scores.shape
        groups = np.arange(n_classes) if sibling_groups is None else sibling_groups
        _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        size = sizes[index]  # of the group of each class
        has_siblings = size > 1
        _, group = np.unique(np.where(has_siblings, index, -1), return_inverse=True)
        group = group - group[has_siblings].min() if has_siblings.any() else group  # from 0 on
        n_groups = int(group[has_siblings].max()) + 1 if has_siblings.any() else 0
        group_sizes = np.bincount(group[has_siblings], minlength=n_groups)

        source, sink = 0, 1
        classes = 2 + np.arange(n_classes)
        slots = 2 + n_classes + np.arange(width)
        pairs = 2 + n_classes + width + np.arange(n_groups * width).reshape(n_groups, width)
        n_nodes = 2 + n_classes + width + n_groups * width

        entry = np.broadcast_to(slots, (n_classes, width)).copy()  # where a class enters slot q
        entry[has_siblings] = pairs[group[has_siblings]]
        bundles: list[tuple[_Array, _Array, int, _Array]] = [  # tails, heads, capacity, cost
            (np.full(n_classes, source), classes, sparsity, np.zeros(n_classes)),
            (np.repeat(classes, width), entry.ravel(), 1, -class_scores.ravel()),
        ]
        for h in range(n_groups):
            g = int(group_sizes[h])
            cost = 2.0 * sibling_penalty * np.tile(np.arange(g), width)
            bundles.append((np.repeat(pairs[h], g), np.repeat(slots, g), 1, cost))
        cost = 2.0 * collision_penalty * np.tile(np.arange(n_classes), width)
        bundles.append((np.repeat(slots, n_classes), np.full(len(cost), sink), 1, cost))

        costs = np.concatenate([b[3] for b in bundles])
        if scale is None:
            # Its solver multiplies costs by the number of nodes, in int64.
            largest = max(float(np.abs(costs).max()), 1e-9)
            scale = min(_LARGEST_SCALE, 2.0**60 / (n_nodes + 1) / largest)
        self.scale = scale
        self._shape = (n_classes, width)
        self._flow = min_cost_flow.SimpleMinCostFlow()
        arcs = self._flow.add_arcs_with_capacity_and_unit_cost(
            np.concatenate([b[0] for b in bundles]).astype(np.int32),
            np.concatenate([b[1] for b in bundles]).astype(np.int32),
            np.concatenate([np.full(len(b[0]), b[2]) for b in bundles]).astype(np.int64),
            np.rint(costs * scale).astype(np.int64),
        )
        self._class_arcs = arcs[n_classes : n_classes + n_classes * width]
        total = n_classes * sparsity
        self._flow.set_nodes_supplies(
            np.array([source, sink], np.int32), np.array([total, -total], np.int64)
        )

    def solve(self) -> None:
        """Solve it: the call that the benchmark times."""
        status = self._flow.solve()
        if status != self._flow.OPTIMAL:
            raise RuntimeError(f"OR-tools found no optimal flow: {status}")

    def codes(self) -> npt.NDArray[np.bool_]:
        """Codes of the solution, bool[n_classes, width]."""
        flows = np.asarray(self._flow.flows(self._class_arcs))
        codes: npt.NDArray[np.bool_] = flows.reshape(self._shape) > 0
        return codes
