"""The page of the index benchmark: tables and a plot from its results."""

from __future__ import annotations

import itertools
import statistics


def spread(row):
    """The ratio of a row, with its quartiles."""
    return f"{row['ratio']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"


def times(row):
    """How many times as long a search takes after ten calls of ``add``."""
    return f"{row['after_adds']:.2f} ×" if "after_adds" in row else "–"


def write_page(results, folder):
    """Write docs/results/index.md and index.png from what was measured."""
    lines = [
        "# Index benchmarks against faiss, hnswlib and usearch",
        "",
        "Written by `make bench-index`. Raw results: `index.json`.",
        "",
        f"{results['machine']['cpu']}, {results['machine']['cores']} cores, "
        f"Python {results['machine']['python']}, numpy {results['machine']['numpy']}, "
        f"faiss {results['machine']['faiss']}. Medians of interleaved rounds.",
        "",
    ]
    rows = results.get("lists", [])
    if rows:
        ratios = [r["ratio"] for r in rows]
        shares = [r["bandwidth_share"] for r in rows]
        lines += [
            "## The same candidate lists, through faiss `search_preassigned`",
            "",
            "Ratio: time of faiss divided by time of hashcade, median of rounds with quartiles in "
            f"brackets; at least {min(ratios):.2f}, {statistics.mean(ratios):.2f} on average. "
            "Bandwidth: bytes of all candidates per second, relative to a plain streaming sum in "
            f"one thread; at least {min(shares):.0%}. It exceeds 100 % where a bucket is read once "
            "for several queries, or where two threads read. Before each measurement there is a "
            "pause of 50 ms and one call that is not counted, because threads of faiss stay active "
            "for a while after a search and would disturb the next measurement. With two threads, "
            "both libraries have rounds in which the system ran both threads on one core. After "
            "adds: time of an index to which the last tenth of the items was added in ten calls of "
            "`add`, divided by that of an index built at once; at most "
            f"{max(r.get('after_adds', 0) for r in rows):.2f}.",
            "",
            "| data | dim | batch | threads | candidates | hashcade µs | faiss µs | ratio "
            "| bandwidth | after adds |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['data']} | {r['dim']} | {r['batch']} ({r['queries']}) | {r['threads']} "
            f"| {r['candidates']:.0f} | {r['ours_us']:.2f} | {r['faiss_us']:.2f} "
            f"| {spread(r)} | {r['bandwidth_share']:.0%} | {times(r)} |"
            for r in rows
        ]
        worst = min(r["same_ids"] for r in rows)
        lines += ["", f"Share of results with the same id as faiss: at least {worst:.4%}.", ""]
        if results.get("note"):
            lines += [results["note"], ""]
    if results.get("single"):
        lines += [
            "One query per call, one thread, including the overhead of the call.",
            "",
            "| data | dim | hashcade µs | faiss µs | ratio | after adds |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['data']} | {r['dim']} | {r['ours_us']:.1f} | {r['faiss_us']:.1f} "
            f"| {spread(r)} | {times(r)} |"
            for r in results["single"]
        ]
        lines.append("")
    if results.get("curves"):
        lines += [
            "## Queries per second against label precision@10",
            "",
            "![Queries per second against label precision](index.png)",
            "",
            "In hashcade the bucket of a query is that of the nearest class mean of the training "
            "items. The time to find it is included; it uses one thread, because a second thread "
            "of numpy stays active for longer than the search takes and occupies its core (with "
            "it, two threads were no faster than one). The last column says how many times faster "
            "hashcade is than each point of another library at the same precision or higher; a "
            "dash where it does not reach that precision. The hash function has seen class labels, "
            "which the other libraries cannot use. On the Gaussian million the class means are the "
            "best possible classifier, so that half shows the value of a good hash function more "
            "than that of the index. The candidate lists above compare the index alone.",
            "",
            "| data | dim | threads | method | setting | precision@10 | queries/s "
            "| hashcade is faster by |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for key in sorted({panel_of(p) for p in results["curves"]}):
            points = [p for p in results["curves"] if panel_of(p) == key]
            start = "| {0} | {2} | {1} |".format(*key)
            lines += [
                f"{start} **hashcade** | n_probe={p['setting']} "
                f"| {p['precision']:.4f} | {p['queries_per_s']:,.0f} | |"
                for p in points
                if p["method"] == "hashcade"
            ]
            lines += [
                f"{start} {p['method']} | {p['setting']} "
                f"| {p['precision']:.4f} | {p['queries_per_s']:,.0f} | "
                + ("– |" if p["times"] is None else f"{p['times']:.1f} × |")
                for p in times_faster(points)
            ]
        lines.append("")
        plot(results["curves"], folder / "index.png")
    if results.get("life"):
        lines += ["## Build, load, memory and updates", ""]
        keys = [key for key in results["life"][0] if key != "data"]
        lines += ["| |" + " |" * len(results["life"]), "|---|" + "---|" * len(results["life"])]
        lines += [
            f"| {key.replace('_', ' ')} | "
            + " | ".join(f"{row[key]:,.4g}" for row in results["life"])
            + " |"
            for key in keys
        ]
        lines.append("")
    (folder / "index.md").write_text("\n".join(lines))


def panel_of(point):
    """Which curves a point is drawn with: data, threads, dimensions."""
    return point["data"], point.get("threads", 1), point["dim"]


def plot(points, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {panel_of(p) for p in points}
    rows, columns = sorted({key[:2] for key in panels}), sorted({key[2] for key in panels})
    figure, axes = plt.subplots(
        len(rows), len(columns), figsize=(4.4 * len(columns), 3.4 * len(rows)), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for (row, (data, threads)), (column, dim) in itertools.product(
        enumerate(rows), enumerate(columns)
    ):
        axis = axes[row, column]
        here = [p for p in points if panel_of(p) == (data, threads, dim)]
        if not here:
            axis.set_axis_off()
            continue
        for method in dict.fromkeys(p["method"] for p in here):
            line = [p for p in here if p["method"] == method]
            ours = method == "hashcade"
            axis.plot(
                [p["precision"] for p in line], [p["queries_per_s"] for p in line],
                marker="o", markersize=4, label=method,
                color="black" if ours else None, linewidth=2.2 if ours else 1.2,
            )  # fmt: skip
        count = "one thread" if threads == 1 else f"{threads} threads"
        axis.set(yscale="log", title=f"{data}, {dim} dimensions, {count}")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=7)
    figure.supxlabel("label precision@10")
    figure.supylabel("queries per second")
    figure.savefig(path, dpi=110)


def times_faster(points):
    """How many times faster hashcade is than each point of the others, at least as precise."""
    ours = [p for p in points if p["method"] == "hashcade"]
    rows = []
    for method in dict.fromkeys(p["method"] for p in points if p["method"] != "hashcade"):
        for peer in (p for p in points if p["method"] == method):
            reach = [p for p in ours if p["precision"] >= peer["precision"]]
            best = max((p["queries_per_s"] for p in reach), default=None)
            rows.append(
                {
                    "data": peer["data"],
                    "dim": peer["dim"],
                    "method": method,
                    "setting": peer["setting"],
                    "threads": peer.get("threads", 1),
                    "precision": peer["precision"],
                    "queries_per_s": peer["queries_per_s"],
                    "times": None if best is None else best / peer["queries_per_s"],
                }
            )
    return rows
