"""The page and the figure of benchmarks/end_to_end.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _timing import heading

OURS, USUAL = "HashTable", "n_probe=1"
DEFAULTS = {  # what a user gets who changes nothing
    "faiss flat": "all items",
    "faiss HNSW": "ef=16",
    "usearch": "ef=64",
    "hnswlib": "ef=10",
    "hnswlib, learned vectors": "ef=10",
    "prototypes, flat": "classes=1",
    "prototypes, hnsw": "classes=1",
    "softmax classifier": "classes=1",
    "class means": "classes=1",
}
TARGET = 1.7  # times of HNSW, one query per call
CLOSE = 0.5  # points of precision


def write_page(results: dict[str, Any], out: Path) -> Path:
    """Write the page and the figure; return the path of the page."""
    draw(results["sets"], out / "end-to-end.png")
    title = "End to end: from an embedding to the nearest items"
    lines = [
        *heading(title, "bench-end-to-end", results["about"]),
        "Every method is given the embedding of a query and finds ten items. Time is all that it"
        " takes, a network or classifier included. `HashTable` has all settings by default: items"
        " lie in the bucket of their label, and are ranked by learned vectors. `prototypes` are"
        " the same table, but the nearest prototype is found by comparing all, or by a graph"
        " (hnswlib) that decides like it as often as the codes do. The classifier and the class"
        " means say in which classes to look, and items are ranked by the given embeddings. The"
        " other indexes use no labels; `hnswlib, learned vectors` has the vectors of our network,"
        " whose time is included.",
        "",
        "![Precision against microseconds a query](end-to-end.png)",
        "",
    ]
    for measured in results["sets"]:
        lines += set_lines(measured)
    path = out / "end-to-end.md"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return path


def set_lines(measured: dict[str, Any]) -> list[str]:
    points = measured["points"]
    at = [f"precision@{k}" for k in measured["ranks"]]
    lines = [
        f"## {measured['title']}: {measured['items']:,} items",
        "",
        "One query per call: time of `HashTable` over that of others, at their defaults and at the"
        f" fastest setting within {CLOSE} points of their best precision.",
        "",
        f"| | setting | {at[0]} | µs | `HashTable` / this |",
        "|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {point['method']} | {point['setting']} | {point['precision'][0]:.1f}"
        f" | {spread(point['alone_us'])} | {spread(point['alone_ratio'])} |"
        for point in compared(points)
    ]
    graphs = [p for p in compared(points) if p["method"] in ("faiss HNSW", "hnswlib")]
    if graphs:
        worst = max(graphs, key=lambda p: p["alone_ratio"][1])
        value = worst["alone_ratio"][1]
        kept = "within" if value <= TARGET else "**above**"
        lines += [
            "",
            f"The largest ratio to HNSW is {value:.2f} ({worst['method']} {worst['setting']}),"
            f" {kept} the limit of {TARGET}.",
        ]
    lines += [
        "",
        f"All settings; in batches of {measured['queries']:,}. Compared: items per query, where a"
        " library tells. Dominated by: the fastest method"
        f" that is at least as precise ({at[0]}) and as fast, one query per call.",
        "",
        f"| | setting | {at[0]} | {at[1]} | compared | alone, µs | in batches, µs | dominated by |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for point in points:
        mark = "**" if point["method"] == OURS else ""
        rival = dominated_by(point, points) if mark else None
        by = "none" if mark and rival is None else ""
        if rival is not None:
            by = f"{rival['method']} {rival['setting']}"
        lines.append(
            f"| {mark}{point['method']}{mark} | {point['setting']} | {point['precision'][0]:.1f}"
            f" | {point['precision'][1]:.1f} | {compared_items(point)}"
            f" | {spread(point['alone_us'])} | {spread(point['batch_us'])} | {by} |"
        )
    return [*lines, ""]


def compared(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours, and of each other method the default and the fastest that is close to its best."""
    chosen = [p for p in points if (p["method"], p["setting"]) == (OURS, USUAL)]
    for method in dict.fromkeys(p["method"] for p in points if p["method"] != OURS):
        own = [p for p in points if p["method"] == method]
        default = DEFAULTS.get(method, "nprobe=1")
        best = max(p["precision"][0] for p in own)
        close = [p for p in own if p["precision"][0] >= best - CLOSE]
        fastest = min(close, key=lambda p: p["alone_us"][1])
        chosen += [p for p in own if p["setting"] == default or p is fastest]
    return chosen


def dominated_by(point: dict[str, Any], points: list[dict[str, Any]]) -> dict[str, Any] | None:
    better = [
        p
        for p in points
        if p["method"] != OURS
        and p["precision"][0] >= point["precision"][0]
        and p["alone_us"][1] <= point["alone_us"][1]
    ]
    return min(better, key=lambda p: p["alone_us"][1], default=None)


def compared_items(point: dict[str, Any]) -> str:
    candidates = point.get("candidates")
    return "" if candidates is None else f"{candidates:,.0f}"


def spread(values: list[float]) -> str:
    """A median with its quartiles."""
    low, middle, high = values
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def draw(sets: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.5 * len(sets)), layout="constrained")
    for axes_row, measured in zip(figure.subplots(len(sets), 2, squeeze=False), sets, strict=True):
        for axes, kind, words in zip(
            axes_row, ("alone_us", "batch_us"), ("one query per call", "in batches"), strict=True
        ):
            for method in dict.fromkeys(p["method"] for p in measured["points"]):
                line = sorted(
                    (p[kind][1], p["precision"][0])
                    for p in measured["points"]
                    if p["method"] == method
                )
                ours = method == OURS
                axes.plot(*zip(*line, strict=True), marker="*" if ours else "o", label=method,
                          markersize=11 if ours else 4, linewidth=2 if ours else 1)  # fmt: skip
            axes.set(xlabel=f"µs a query, {words}, one thread", xscale="log",
                     ylabel=f"precision@{measured['ranks'][0]}, %",
                     title=measured["title"])  # fmt: skip
            axes.grid(visible=True, which="both", alpha=0.25)
        axes_row[1].legend(fontsize=7)
    figure.savefig(path, dpi=120)
