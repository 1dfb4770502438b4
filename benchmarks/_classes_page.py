"""The page and the figure of benchmarks/classes_growth.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _timing import heading

LIMITS = {  # of exponents: name, words, limit; without a limit for comparison alone
    "step_s": ("time of a training step", 0.6),
    "alone_us": ("time of a query alone", 0.6),
    "batch_us": ("time of a query in a batch", 0.6),
    "train_mb": ("peak memory of training", 1.05),
    "train_mb_last": ("peak memory of training, between the two largest sizes", 1.05),
    "query_mb": ("peak memory of queries", 1.05),
    "query_mb_last": ("peak memory of queries, between the two largest sizes", 1.05),
    "flat_alone_us": ("for comparison: a query alone, all prototypes compared", None),
    "flat_batch_us": ("for comparison: a query in a batch, all prototypes compared", None),
}


def write_page(results: dict[str, Any], out: Path) -> Path:
    """Write the page and the figure; return the path of the page."""
    draw(results, out / "classes-growth.png")
    lines = [
        *heading("What classes cost", "bench-classes", results["about"]),
        "![Time and memory over the number of classes](classes-growth.png)",
        "",
        *growth_lines(results),
        *(line for decided in results["decide"] for line in decide_lines(decided)),
    ]
    path = out / "classes-growth.md"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return path


# -- growth ----------------------------------------------------------------------------------------


def growth_lines(results: dict[str, Any]) -> list[str]:
    rows, fitted = results["growth"], results["exponents"]
    lines = [
        f"## From {rows[0]['classes']:,} to {rows[-1]['classes']:,} classes",
        "",
        "Gaussian classes in 128 dimensions; the spread of their centres falls evenly from the"
        " first direction to the last, about as that of the prototypes of Han characters does. Two"
        " items a class, but at least 20,480. Hidden layer of 512 units, points and prototypes of"
        " 128 numbers, all else by default. A training step is that of the prototype stage, a batch"
        " of 256 items; the model of each size is trained for 40 steps, enough to measure with and"
        " not to be good. A query is `Hasher.encode`, network and decision, alone or in a batch of"
        " 1,000. Beside it, by turns, the same network and a comparison with all prototypes"
        " (numpy). Decided alike: queries that get the class of the comparison with all.",
        "",
        "| classes | width | step, ms | query alone, µs | in a batch, µs"
        " | all compared: alone, µs | in a batch, µs | codes / all, alone | in a batch"
        " | decided alike |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        values = [
            f"{row['classes']:,}",
            f"{row['width']:,}",
            spread([1000 * value for value in row["step_s"]]),
            *(spread(row[name]) for name in ("alone_us", "batch_us")),
            *(spread(row[name]) for name in ("flat_alone_us", "flat_batch_us")),
            *(spread(row[name]) for name in ("alone_ratio", "batch_ratio")),
            f"{100 * row['equal']:.1f} %",
        ]
        lines.append(f"| {' | '.join(values)} |")
    lines += [
        "",
        "Memory is the peak of a process beyond what it takes before it has data or a model (the"
        f" interpreter, numpy, torch: {rows[0]['train_base_mb']:,.0f} MB for training,"
        f" {rows[0]['query_base_mb']:,.0f} MB for queries). That of training includes the items,"
        " copies of them, and Adam's state. Codes are solved once for all classes, at the end of"
        " training; up to 8 million scores, of classes times slots, at once, more in blocks.",
        "",
        "| classes | training, MB | queries, MB | items, MB | prototypes, MB | codes, s |"
        " classes with a code of their own |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        values = [
            f"{row['classes']:,}",
            f"{row['train_mb']:,.0f}",
            f"{row['query_mb']:,.0f}",
            f"{row['items'] * 512 / 2**20:,.0f}",
            f"{row['classes'] * 512 / 2**20:,.1f}",
            f"{row['codes_s']:,.1f}",
            f"{100 * row['codes_differ']:.1f} %",
        ]
        lines.append(f"| {' | '.join(values)} |")
    lines += [
        "",
        "Exponents: the slope of a line of least squares through the logarithms of all sizes.",
        "",
        "| | exponent | limit | |",
        "|---|---:|---:|---|",
    ]
    for name, (words, limit) in LIMITS.items():
        if name in fitted:
            kept = "" if limit is None else "within" if fitted[name] <= limit else "**above**"
            lines.append(f"| {words} | {fitted[name]:.2f} | {limit or ''} | {kept} |")
    return [*lines, ""]


# -- decide ----------------------------------------------------------------------------------------


def decide_lines(decided: dict[str, Any]) -> list[str]:
    lines = [
        f"## Which prototype is nearest: {decided['data']}",
        "",
        f"{decided['classes']:,} prototypes, and points to compare with them. `codes m`: of the m"
        " groups of codes whose means are nearest the nearest prototype. `all`: the largest product"
        " with all prototypes. Graphs: 16 links, 200 visited when built, and the smallest `ef` with"
        " which at least as many decisions as through the codes are those of `all`.",
        "",
        "| | decided alike | alone, µs | in batches of 1,000, µs |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row['way']} | {100 * row['equal']:.1f} % | {spread(row['alone_us'])}"
        f" | {spread(row['batch_us'])} |"
        for row in decided["rows"]
    ]
    lines += [
        "",
        "Time through the codes over that of a rival; above 1 codes are slower.",
        "",
        "| | rival | alone | in batches |",
        "|---|---|---:|---:|",
    ]
    for pair in decided["ratios"]:
        alone, batch = spread(pair["alone"]), spread(pair["batch"])
        lines.append(f"| {pair['codes']} | {pair['rival']} | {alone} | {batch} |")
    usual = decided["usual"]
    for kind, words in (("alone", "One query at a time"), ("batch", "In batches")):
        pairs = [pair for pair in decided["ratios"] if pair["codes"] == usual]
        slower = [pair["rival"] for pair in pairs if pair[kind][1] > 1.0]
        than = f"slower than {'; '.join(slower)}" if slower else "no slower than any of these"
        lines += ["", f"{words} `{usual}`, the default, is {than}."]
    return [*lines, ""]


def spread(values: list[float]) -> str:
    """A median with its quartiles."""
    low, middle, high = values
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


# -- the figure ------------------------------------------------------------------------------------


def draw(results: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    rows, fitted = results["growth"], results["exponents"]
    classes = [row["classes"] for row in rows]
    figure = Figure(figsize=(10.0, 4.5), layout="constrained")
    times, memory = figure.subplots(1, 2)
    for name, words, style, factor in (
        ("step_s", "training step", "o-", 1e6),
        ("alone_us", "query alone", "o-", 1.0),
        ("batch_us", "query in a batch", "o-", 1.0),
        ("flat_alone_us", "query alone, all compared", "x--", 1.0),
        ("flat_batch_us", "query in a batch, all compared", "x--", 1.0),
    ):
        values = [factor * row[name][1] for row in rows]
        times.plot(classes, values, style, label=f"{words}: {fitted[name]:.2f}")
    for name, words in (("train_mb", "training"), ("query_mb", "queries")):
        values = [row[name] for row in rows]
        memory.plot(classes, values, "o-", label=f"{words}: {fitted[name]:.2f}")
    for axes, unit in ((times, "µs"), (memory, "peak memory, MB")):
        axes.set(xlabel="classes", ylabel=unit, xscale="log", yscale="log")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize=8, title="exponent")
    figure.savefig(path, dpi=120)
