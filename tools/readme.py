"""The figures of the README, from stored results: ``python tools/readme.py README.md``.

The table between its two markers is made of docs/results/end-to-end.json and the stored rows of
``python -m experiments.classes``, the picture docs/figures/precision.svg of those of
``python -m experiments.curves``. tests/test_docs.py compares the table with what this would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PICTURE = ROOT / "docs" / "figures" / "precision.svg"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

SETS = {"cifar100": "Cifar-100 embeddings", "han-20902": "20,902 Han characters"}
DRAWN = {"cifar100": "Cifar-100 embeddings", "clinc150": "CLINC150 sentences"}
ROWS = {  # (method, setting) of the benchmark: name in the README
    ("faiss flat", "all items"): "faiss flat: exhaustive search",
    ("faiss IVF", "nprobe=8"): "faiss IVF, eight lists",
    ("faiss HNSW", "ef=16"): "faiss HNSW",
    ("hnswlib", "ef=10"): "hnswlib",
    ("usearch", "ef=64"): "usearch",
    ("softmax classifier", "classes=1"): "softmax classifier, its class as the bucket",
    ("HashTable", "n_probe=1"): "**hashcade**",
}
TIMED_SEEDS = (0, 1, 2)  # as in docs/results/classes.md: others ran beside other programs
LEARNED = {"HashTable": "prototype", "softmax classifier": "softmax"}
LINES = {  # method and vectors of the curves: name, color, and where the name stands
    ("prototype", "learned"): ("hashcade", "#d1495b", "end"),
    ("softmax", "given"): ("classifier", "#3b7dd8", "middle"),
    ("means", "given"): ("class means", "#8a6fb0", "above"),
    ("kmeans", "given"): ("k-means (IVF)", "#2a9d6f", "before"),
}


def stored_rows(name: str) -> list[dict[str, Any]]:
    text = (RESULTS / "rows" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def seconds_to_learn(data: str, method: str) -> float:
    """The mean over seeds of a fit, as it was stored."""
    spent = {
        row["seed"]: row["seconds"]["fit"]
        for row in stored_rows("classes")
        if (row["preset"], row["method"]) == (data, method) and row["seed"] in TIMED_SEEDS
    }
    return sum(spent.values()) / len(spent)


def table() -> str:
    """The table of the README, in Markdown."""
    measured = json.loads((RESULTS / "end-to-end.json").read_text(encoding="utf-8"))["sets"]
    lines = []
    for found in (found for found in measured if found["data"] in SETS):
        points = [(key_of(p), p) for p in found["points"]]
        lists = max((p["method"] for p in found["points"] if "IVF" in p["method"]), key=n_lists)
        lines += [
            f"| {SETS[found['data']]}, {found['items']:,} items"
            f" | precision@{found['ranks'][0]} | precision@{found['ranks'][1]}"
            " | compared | µs, alone | µs, in batches | learned in |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for key, name in ROWS.items():
            for own, point in points:
                if own == key and ("IVF" not in key[0] or point["method"] == lists):
                    lines.append(line(found["data"], name, point))
        lines.append("")
    return "\n".join(lines)


def n_lists(method: str) -> int:
    return int(method.rpartition("IVF")[2])


def key_of(point: dict[str, Any]) -> tuple[str, str]:
    method = "faiss IVF" if "IVF" in point["method"] else point["method"]
    return method, point["setting"]


def line(data: str, name: str, point: dict[str, Any]) -> str:
    candidates = point.get("candidates")
    learned = LEARNED.get(point["method"])
    mark = "**" if name.startswith("**") else ""
    cells = [
        name,
        *(f"{mark}{precision:.1f}{mark}" for precision in point["precision"]),
        "" if candidates is None else f"{candidates:,.0f}",
        f"{point['alone_us'][1]:.0f}",
        f"{point['batch_us'][1]:.0f}",
        f"{seconds_to_learn(data, learned):.0f} s" if learned else "",
    ]
    return f"| {' | '.join(cells)} |"


def name_at(
    points: list[tuple[float, float]], place: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The point of a line that its name stands at, and how far from it: beside all lines."""
    if place == "middle":
        half = sum(f(precision for _, precision in points) for f in (min, max)) / 2
        return min(points, key=lambda point: abs(point[1] - half)), (8, 2)
    return {
        "end": (points[-1], (8, -4)),
        "above": (points[0], (0, 7)),
        "before": (points[0], (-8, -4)),
    }[place]


def draw(path: Path) -> None:
    """Precision over the items that are compared with a query."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"font.size": 11, "svg.fonttype": "path", "svg.hashsalt": "hashcade"})
    ink = "#808890"  # readable on white and on black
    figure = Figure(figsize=(10, 4), layout="constrained")
    rows = [row for row in stored_rows("curves") if row["database"] == "train"]
    for axes, (data, title) in zip(figure.subplots(1, 2), DRAWN.items(), strict=True):
        for (method, vectors), (name, color, place) in LINES.items():
            points = sorted(
                (
                    row["settings"]["data"]["n_train"] / row["metrics"]["suf_16"],
                    row["metrics"]["pr_16"],
                )
                for row in rows
                if (row["preset"], row["method"]) == (data, method)
                and f"rerank={vectors}," in row["variant"]
                and not {"lists=2", "lists=5"} & set(row["variant"].split(","))
                and "suf_16" in row["metrics"]
            )
            axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3.5,
                      linewidth=2.5 if method == "prototype" else 1.5)  # fmt: skip
            at, offset = name_at(points, place)
            axes.annotate(name, at, xytext=offset, textcoords="offset points", color=color,
                          horizontalalignment="right" if place == "before" else "left")  # fmt: skip
        axes.set_xscale("log")
        left, right = axes.get_xlim()
        axes.set_xlim(left, right * (right / left) ** 0.2)  # room for names
        axes.set_title(title, color=ink)
        axes.set_xlabel("items compared with a query", color=ink)
        axes.set_ylabel("precision@16, %", color=ink)
        axes.tick_params(colors=ink, which="both")
        axes.grid(visible=True, alpha=0.25)
        axes.set_facecolor("none")
        for spine in axes.spines.values():
            spine.set_color(ink)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None})


def main() -> int:
    readme = Path(sys.argv[1])
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{after}", encoding="utf-8")
    draw(PICTURE)
    print(f"written {readme}, {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
