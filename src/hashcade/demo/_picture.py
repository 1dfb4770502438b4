"""A picture of the tree of buckets, with the images that lie in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.codes._shape import CodeShape

_SHOWN = 6  # images under a bucket


def draw_tree(
    path: Path,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[Any],
    shape: CodeShape,
    buckets: npt.NDArray[np.int64],
) -> None:
    """Draw the occupied buckets as leaves of a tree and write the picture to ``path``.

    Parameters
    ----------
    images : uint8[n, h, w, 3]
        Images of the items.
    labels : [n]
        Their classes: a bucket is titled with its most frequent one and the part it has.
    buckets : int64[n]
        The bucket of each item.
    """
    figure_module = require_extra("matplotlib.figure", "report")
    ids = np.unique(buckets)
    paths = shape.paths(ids)  # (n_leaves, depth)
    figure = figure_module.Figure(figsize=(max(6.0, 0.62 * len(ids)), 2.0 + 0.6 * (_SHOWN + 2)))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.93))

    # ---- branches: a node stands in the middle of its leaves, level by level
    for level in range(shape.depth):
        for node in np.unique(paths[:, : level + 1], axis=0):
            below = np.flatnonzero((paths[:, : level + 1] == node).all(axis=1))
            above = np.flatnonzero((paths[:, :level] == node[:level]).all(axis=1))
            ends = ([above.mean(), below.mean()], [-2.0 * level, -2.0 * (level + 1)])
            axes.plot(*ends, color="0.6", linewidth=1, zorder=1)
            axes.text(ends[0][1], ends[1][1] + 0.12, int(node[-1]), ha="center", fontsize=7,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip

    # ---- leaves: what is in the bucket
    floor = -2.0 * shape.depth
    for leaf, bucket in enumerate(ids):
        inside = np.flatnonzero(buckets == bucket)
        names, counts = np.unique(labels[inside], return_counts=True)
        main = counts.argmax()
        title = f"{names[main]}\n{counts[main]} of {len(inside)}"
        axes.text(leaf, floor - 0.2, title, ha="center", va="top", fontsize=6)
        for row, item in enumerate(inside[:: max(1, len(inside) // _SHOWN)][:_SHOWN]):
            bottom = floor - 2.1 - row
            axes.imshow(images[item], extent=(leaf - 0.42, leaf + 0.42, bottom, bottom + 0.84))
    axes.set_xlim(-0.7, len(ids) - 0.3)
    axes.set_ylim(floor - 2.4 - _SHOWN + 0.8, 0.4)
    axes.set_aspect("auto")
    axes.axis("off")
    figure.suptitle(f"{len(ids)} occupied of {shape.n_buckets} buckets", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
