"""The page of the benchmark of filters: tables and a plot from stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]
_NAMES = {"clinc150": "CLINC150", "million": "A million"}


def write_page(
    rows: list[Row], machine: dict[str, Any], versions: dict[str, str], n: int, folder: Path
) -> None:
    """Write filters.md and filters.png."""
    used = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        "# Search with a filter, beside LanceDB and pgvector",
        "",
        "Written by `make bench-filters`. Raw results: `rows/filters.jsonl`.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; {used}.",
        "",
        "A search is for the nearest items with a price below a bound, which 50 %, 10 %, 1 % or "
        f"0.1 % of the items have, at random. Recall: the share of the exact filtered top {n} that "
        "is found. CLINC150: sentence embeddings, table learned from the labels, the test set "
        "asks. A million: points around 1,000 means, table of clusters, without labels.",
        "",
    ]
    names = list(dict.fromkeys(row["data"] for row in rows))
    default = [row for row in rows if row["part"] == "default"]
    if default:
        lines += [
            "## With default settings",
            "",
            "First: milliseconds of the first query with a filter, on a table just loaded; "
            "further queries with the same filter do not prepare it again.",
            "",
            "| data | items that pass | share | recall | first ms |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {_title(row)} | {row['n_passing']:,} | {_share(row)} | {row['recall']:.3f} "
            f"| {row['first_ms']:.1f} |"
            for row in default
        ]
        lines.append("")
    speed = [row for row in rows if row["part"] == "speed"]
    if speed:
        asked = dict.fromkeys(f"{_title(row)}: {row['queries']} queries" for row in speed)
        lines += [
            "## At the same recall",
            "",
            "Milliseconds per query, one at a time, medians of interleaved rounds with quartiles "
            "in brackets. Every system has the fastest of its settings that finds 95 %: hashcade "
            "`n_probe`; LanceDB its kinds of index, or none, with partitions and refine factor or "
            "candidates of the graph; pgvector `hnsw.ef_search` with iterative scans, or sorting "
            "all rows that pass, which is left where no `ef_search` up to its largest, 1000, finds "
            "enough. LanceDB may use all cores for a query, the others use one. "
            f"{'; '.join(asked)}.",
            "",
            "![Milliseconds per query by share of items that pass](filters.png)",
            "",
            "| data | share | system | recall | ms | setting |",
            "|---|---:|---|---:|---:|---|",
        ]
        lines += [
            f"| {_title(row)} | {_share(row)} | {row['system']} | {row['recall']:.3f} "
            f"| {row['ms']:.3f} ({row['ms_low']:.3f}–{row['ms_high']:.3f}) | {_setting(row)} |"
            for row in speed
        ]
        lines.append("")
        _plot(speed, names, folder / "filters.png")
    (folder / "filters.md").write_text("\n".join(lines))


def _title(row: Row) -> str:
    return f"{_NAMES[row['data']]}, {row['n_items']:,} × {row['dim']}"


def _share(row: Row) -> str:
    return "no filter" if row["share"] == 1 else f"{row['share']:.1%}"


def _setting(row: Row) -> str:
    setting = row["setting"]
    return f"n_probe {setting}" if isinstance(setting, int) else " ".join(map(str, setting))


def _plot(rows: list[Row], names: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(names), figsize=(4.5 * len(names), 3.4), squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        for system in dict.fromkeys(row["system"] for row in rows):
            some = [row for row in rows if row["data"] == name and row["system"] == system]
            axes.plot([r["share"] for r in some], [r["ms"] for r in some], "o-", label=system)
        axes.set(xscale="log", yscale="log", xlabel="share of items that pass", title=_NAMES[name])
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel("ms per query at recall 0.95")
    panels[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
