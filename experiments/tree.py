"""A picture of the tree of buckets with images of their items (figure 3 of the paper)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from PIL import Image

from hashcade.codes import CodeShape

_SHOWN = 6  # images under a bucket
_COLOURS = ("#c0392b", "#b7950b", "#2471a3", "#1e8449", "#7d3c98", "#ca6f1e", "#148f77", "#566573")

Ints = npt.NDArray[np.int64]


def draw_tree(
    path: Path,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[Any],
    shape: CodeShape,
    buckets: Ints,
    *,
    class_names: Sequence[object] | None = None,
    max_leaves: int | None = None,
    min_items: int = 1,
) -> Figure:
    """Draw the occupied buckets as leaves of a tree, write the picture and return the figure.

    A bucket is titled with its most frequent class and the part it has. With ``max_leaves``,
    branches of the root are drawn whole or not at all, those with the most leaves first; buckets
    with fewer than ``min_items`` are left out.
    """
    ids = select_leaves(buckets, shape, max_leaves=max_leaves, min_items=min_items)
    paths = shape.paths(ids)  # (n_leaves, depth)
    branches = np.unique(paths[:, 0]) if len(ids) else np.empty(0, np.int64)
    figure = Figure(figsize=(max(6.0, 0.62 * len(ids)), 2.0 + 0.6 * (_SHOWN + 2)))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.93))

    def colour(slot: int) -> str:
        if shape.depth == 1:
            return "0.6"
        return _COLOURS[int(np.searchsorted(branches, slot)) % len(_COLOURS)]

    # ---- branches: a node is drawn in the middle of its leaves, level by level
    for level in range(shape.depth):
        for node in np.unique(paths[:, : level + 1], axis=0):
            below = np.flatnonzero((paths[:, : level + 1] == node).all(axis=1))
            above = np.flatnonzero((paths[:, :level] == node[:level]).all(axis=1))
            ends = ([above.mean(), below.mean()], [-2.0 * level, -2.0 * (level + 1)])
            axes.plot(*ends, color=colour(node[0]), linewidth=1, zorder=1)
            axes.text(ends[0][1], ends[1][1] + 0.12, str(node[-1]), ha="center", fontsize=7,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip

    # ---- leaves: what is in the bucket
    floor = -2.0 * shape.depth
    for leaf, bucket in enumerate(ids):
        inside = np.flatnonzero(buckets == bucket)
        names, counts = np.unique(labels[inside], return_counts=True)
        main = counts.argmax()
        name = names[main] if class_names is None else class_names[int(names[main])]
        title = f"{_two_lines(str(name))}\n{counts[main]} of {len(inside)}"
        axes.text(leaf, floor - 0.1, title, ha="center", va="top", fontsize=5.5,
                  color=colour(paths[leaf, 0]) if shape.depth > 1 else "black")  # fmt: skip
        for row, item in enumerate(inside[:: max(1, len(inside) // _SHOWN)][:_SHOWN]):
            bottom = floor - 2.1 - row
            axes.imshow(images[item], extent=(leaf - 0.42, leaf + 0.42, bottom, bottom + 0.84))
    axes.set_xlim(-0.7, max(1, len(ids)) - 0.3)
    axes.set_ylim(floor - 2.4 - _SHOWN + 0.8, 0.4)
    axes.set_aspect("auto")
    axes.axis("off")
    n_occupied = len(np.unique(buckets))
    shown = "" if len(ids) == n_occupied else f", {len(ids)} of them shown"
    figure.suptitle(f"{n_occupied} occupied of {shape.n_buckets} buckets{shown}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    png = io.BytesIO()
    figure.savefig(png, dpi=130)
    with Image.open(png) as picture:  # 256 colours: half the file, and no visible difference
        picture.convert("RGB").quantize(256).save(path, format="PNG", optimize=True)
    return figure


def select_leaves(
    buckets: Ints, shape: CodeShape, *, max_leaves: int | None = None, min_items: int = 1
) -> Ints:
    """Ids of the buckets to draw, ascending: whole branches of the root, the richest first."""
    ids, counts = np.unique(buckets, return_counts=True)
    enough = counts >= min_items
    ids, counts = ids[enough], counts[enough]
    if max_leaves is None or len(ids) <= max_leaves:
        return np.asarray(ids, np.int64)
    slots = shape.paths(ids)[:, 0]
    branches = [
        (-int((slots == slot).sum()), -int(counts[slots == slot].sum()), int(slot))
        for slot in np.unique(slots)
    ]
    selected: list[int] = []
    room = max_leaves
    for n_leaves, _, slot in sorted(branches):
        if -n_leaves <= room:
            selected.append(slot)
            room += n_leaves
    if not selected:  # even one branch is too much: its fullest buckets
        slot = sorted(branches)[0][2]
        inside = np.flatnonzero(slots == slot)
        return np.sort(ids[inside[np.argsort(-counts[inside], kind="stable")[:max_leaves]]])
    return np.asarray(ids[np.isin(slots, selected)], np.int64)


def _two_lines(name: str) -> str:
    """Long names are broken where there is a word to break at."""
    name = name.replace("_", " ")
    if len(name) <= 9 or " " not in name:
        return name
    at = min(
        (i for i, sign in enumerate(name) if sign == " "), key=lambda i: abs(i - len(name) / 2)
    )
    return f"{name[:at]}\n{name[at + 1 :]}"
