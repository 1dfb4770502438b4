"""Draw the figures of docs/method.md into docs/figures: ``python tools/figures.py``.

Plain SVG without a background, in colors that can be read on white and on black.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from hashcade.codes import solve_level

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures"
INK, ACCENT, BLUE, GREEN, PURPLE = "#78808b", "#d1495b", "#3b7dd8", "#2a9d6f", "#8a6fb0"
Point = tuple[float, float]


class Drawing:
    """Shapes, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="system-ui, sans-serif" font-size="15" role="img">',
            f"<title>{title}</title>",
        ]

    def text(
        self, at: Point, words: str, color: str = INK, anchor: str = "middle", bold: bool = False
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{at[0]:g}" y="{at[1] + 5:g}" fill="{color}" text-anchor="{anchor}"{weight}>'
            f"{words}</text>"
        )

    def line(
        self, start: Point, end: Point, color: str = INK, width: float = 1.2, bend: float = 0
    ) -> None:
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + bend
        path = f"M{start[0]:g} {start[1]:g}Q{middle[0]:g} {middle[1]:g} {end[0]:g} {end[1]:g}"
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"/>'
        )

    def box(
        self, at: Point, size: Point, words: str = "", color: str = INK, filled: float = 0
    ) -> None:
        """A rectangle around ``at``, filled as strongly as ``filled`` says."""
        x, y = at[0] - size[0] / 2, at[1] - size[1] / 2
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{size[0]:g}" height="{size[1]:g}" rx="5" '
            f'fill="{color}" fill-opacity="{filled:g}" stroke="{color}" stroke-width="1.2"/>'
        )
        self.text(at, words, color, bold=filled > 0)

    def circle(self, at: Point, radius: float, color: str = INK, filled: float = 0) -> None:
        self._parts.append(
            f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="{radius:g}" fill="{color}" '
            f'fill-opacity="{filled:g}" stroke="{color}" stroke-width="1.2"/>'
        )

    def finished(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


def tree() -> str:
    """Scores of an item, and the buckets that they lead to."""
    drawing = Drawing(900, 330, "Eight scores lead an item to two of sixteen buckets")
    scores = np.array([[0.1, 0.3, 0.9, 0.2], [0.7, 0.1, 0.2, 0.8]])
    taken = [[2], [0, 3]]  # the best slot of level 1, the best two of level 2
    drawing.text((130, 24), "d · k = 8 scores of an item", bold=True)
    drawing.text((582, 24), "dᵏ = 16 buckets: width d = 4, depth k = 2, sparsity kₛ = 2", bold=True)
    for level, row in enumerate(scores):
        base = 140 + 130 * level
        for slot, score in enumerate(row):
            color = ACCENT if slot in taken[level] else INK
            x = 70 + 44 * slot
            drawing.box((x, base - 35 * score), (26, 70 * score), "", color, filled=0.35)
            drawing.text((x, base + 14), str(slot), color)
        drawing.text((136, base + 36), f"level {level + 1}: the best {['slot', 'kₛ slots'][level]}")
    root, heights = (582.0, 62.0), (150, 255)
    drawing.box(root, (110, 30), "all items", ACCENT, filled=0.15)
    for slot in range(4):
        node = (342.0 + 160 * slot, float(heights[0]))
        chosen = slot in taken[0]
        color = ACCENT if chosen else INK
        drawing.line((root[0], 77), (node[0], node[1] - 15), color, 2.5 if chosen else 1.2)
        for below in range(4):
            leaf = (node[0] - 57 + 38 * below, float(heights[1]))
            hit = chosen and below in taken[1]
            shade = ACCENT if hit else INK
            drawing.line((node[0], node[1] + 15), (leaf[0], leaf[1] - 14), shade, 1.2 + 1.3 * hit)
            drawing.box(leaf, (35, 28), f"{slot}/{below}", shade, filled=0.25 * hit)
        drawing.box(node, (36, 30), str(slot), color, filled=0.15 * chosen)
    drawing.text((582, 300), "a search compares the query with the items of its buckets", ACCENT)
    return drawing.finished()


def flow() -> str:
    """The flow network of theorem 1, with the solution for four classes."""
    names, groups, alpha, beta = ["cat", "dog", "bus", "truck"], [0, 0, 1, 1], 0.3, 0.05
    scores = [[0.9, 0.4, 0.1], [0.8, 0.7, 0.0], [0.7, 0.2, 0.6], [0.2, 0.3, 0.9]]
    codes = solve_level(
        scores, sibling_groups=groups, sibling_penalty=alpha, collision_penalty=beta
    )
    slots = codes.argmax(axis=1).tolist()
    drawing = Drawing(900, 400, "The flow network whose cheapest flow gives classes their slots")
    source, sink = (40.0, 210.0), (860.0, 210.0)
    classes = [(190.0, 85.0 + 80 * row + 15 * groups[row]) for row in range(4)]
    shared = [[(430.0, 75.0 + 52 * q + 170 * r) for q in range(3)] for r in range(2)]
    ends = [(660.0, 110.0 + 100 * q) for q in range(3)]
    for p, at in enumerate(classes):
        drawing.line((source[0] + 18, source[1]), (at[0] - 32, at[1]), ACCENT, 2.5)
        for q in range(3):
            chosen = slots[p] == q
            goal = shared[groups[p]][q]
            color, width = (ACCENT, 2.5) if chosen else (INK, 1.0)
            drawing.line((at[0] + 32, at[1]), (goal[0] - 16, goal[1]), color, width)
    for r, group in enumerate(shared):
        for q, at in enumerate(group):
            n_flows = sum(groups[p] == r and slots[p] == q for p in range(4))
            _parallel(drawing, (at[0] + 16, at[1]), (ends[q][0] - 16, ends[q][1]), 2, n_flows)
            drawing.circle(at, 15, (BLUE, PURPLE)[r], filled=0.15)
            drawing.text(at, str(q), (BLUE, PURPLE)[r])
    for q, at in enumerate(ends):
        _parallel(drawing, (at[0] + 16, at[1]), (sink[0] - 18, sink[1]), 4, slots.count(q))
        drawing.circle(at, 15, GREEN, filled=0.15)
        drawing.text(at, str(q), GREEN)
    for p, at in enumerate(classes):
        drawing.box(at, (64, 30), names[p], (BLUE, PURPLE)[groups[p]], filled=0.15)
    for at, name in ((source, "s"), (sink, "t")):
        drawing.circle(at, 18)
        drawing.text(at, name, bold=True)
    heads = {
        115: ("", "kₛ, 0"),
        190: ("classes", ""),
        310: ("", "1, −score"),
        430: ("slots per siblings", ""),
        545: ("", "1, 2α·i"),
        660: ("slots", ""),
        760: ("", "1, 2β·j"),
    }
    for x, (above, below) in heads.items():
        drawing.text((x, 24), above, bold=True)
        drawing.text((x, 384), below, ACCENT)
    drawing.text((20, 384), "edge:", ACCENT, "start")
    return drawing.finished()


def _parallel(drawing: Drawing, start: Point, end: Point, n_edges: int, n_flows: int) -> None:
    """Edges side by side, the cheapest of which carry the flows."""
    for edge in range(n_edges):
        color, width = (ACCENT, 2.5) if edge < n_flows else (INK, 1.0)
        drawing.line(start, end, color, width, bend=22 * (edge - (n_edges - 1) / 2))


def decide() -> str:
    """A query, the groups that propose, and the prototype that decides."""
    drawing = Drawing(900, 380, "The nearest groups propose, the nearest prototype decides")
    rng = np.random.default_rng(4)
    means = np.array([[90, 125], [255, 115], [420, 130], [95, 295], [260, 300], [425, 290]])
    colors = [BLUE, GREEN, PURPLE, GREEN, PURPLE, BLUE]
    prototypes = means[:, None] + rng.uniform(-42, 42, size=(len(means), 5, 2)).round()
    query = np.array([178.0, 182.0])
    groups = np.argsort(np.linalg.norm(means - query, axis=1), kind="stable")[:3]
    gaps = np.linalg.norm(prototypes[groups] - query, axis=2)
    best_group, best = divmod(int(gaps.argmin()), gaps.shape[1])
    best_group = int(groups[best_group])
    for group, mean in enumerate(means):
        proposes = group in groups
        drawing.circle(tuple(mean), 66, colors[group], filled=0.12 if proposes else 0)
        for number, at in enumerate(prototypes[group]):
            decides = (group, number) == (best_group, best)
            if proposes:
                color, width = (ACCENT, 3) if decides else (INK, 0.8)
                drawing.line(tuple(query), tuple(at), color, width)
            color = ACCENT if decides else colors[group]
            drawing.circle(tuple(at), 6 if decides else 4, color, filled=0.9)
        drawing.text((mean[0], mean[1] - 78), f"slot {group}", colors[group])
    drawing.circle(tuple(query), 8, ACCENT, filled=1)
    drawing.text((query[0] + 14, query[1] + 6), "query", ACCENT, "start", bold=True)
    steps = [
        "the network makes a point of the query",
        "groups: classes whose codes begin alike;",
        "those with the nearest means propose",
        "the nearest of their prototypes decides:",
        f"code {best_group}/{best}, its bucket is searched",
    ]
    heights = [70, 135, 160, 225, 250]
    for height, step in zip(heights, steps, strict=True):
        drawing.text((560, height), step, ACCENT if height in (70, 225, 250) else INK, "start")
    for above, below in ((70, 135), (160, 225)):
        drawing.line((572, above + 18), (572, below - 16), INK, 2)
    for slot in range(5):
        filled = 0.25 * (slot == best)
        at = (588.0 + 56 * slot, 300.0)
        drawing.box(at, (50, 32), f"{best_group}/{slot}", ACCENT if filled else INK, filled)
    return drawing.finished()


FIGURES = {"tree": tree, "flow": flow, "decide": decide}


def main() -> int:
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
        print(f"written {FOLDER / name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
