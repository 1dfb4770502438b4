"""The page about the first pass over int8 codes."""

from __future__ import annotations

from typing import Any

from _timing import heading

_BATCHES = ("one query", "each bucket once", "all queries")
_READS = ("float32", "float32 at once", "int8", "int8, codes there")


def _kilobytes(n_bytes: float) -> str:
    return f"{n_bytes / 1024:,.0f}"


def _cluster_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The part about a cluster."""
    links = [name for name in rows[0]["cluster"] if name != "cached"]
    lines = [
        "",
        "## In a cluster",
        "",
        "A table published with `--first-pass int8` and without; one Redis server, one query at a",
        "time, `ClusterTable.search`, answers compared. First a query whose bucket is not cached:",
        "float32 fetches the block; int8 its codes, and then the vectors that they leave, in a",
        "second round trip. kB that were received, processor time of the server, and milliseconds",
        "with the time of int8 over that of float32, on loopback and through links of a given rate",
        "(without a delay of their own: on a real network the second round trip takes longer).",
        "",
        "| data | dim | kB | vectors fetched | server µs | " + " | ".join(links) + " |",
        "|---|---|---|---|---|" + "---|" * len(links),
    ]
    for row in rows:
        cells = []
        for name in links:
            found = row["cluster"][name]
            low, middle, high = found["ratio"]
            times = " / ".join(f"{found['ms'][key][1]:.2f}" for key in ("float32", "int8"))
            cells.append(f"{times}, **{middle:.2f}** ({low:.2f}–{high:.2f})")
        local = row["cluster"]["loopback"]
        size = " / ".join(_kilobytes(local["bytes"][key]) for key in ("float32", "int8"))
        server = " / ".join(f"{local['server_us'][key]:.0f}" for key in ("float32", "int8"))
        lines.append(
            f"| {row['data']} | {row['dim']} | {size} | {local['vectors']['int8']:.0f} | {server}"
            f" | {' | '.join(cells)} |"
        )
    lines += [
        "",
        "Then a query whose bucket is cached, with the vectors that it needs, and what the cache",
        "holds after all queries (vectors that were fetched by themselves count by the page).",
        "",
        "| data | dim | µs, float32 / int8 | cache MB, float32 / int8 |",
        "|---|---|---|---|",
    ]
    for row in rows:
        found = row["cluster"]["cached"]
        low, middle, high = found["ratio"]
        held = " / ".join(f"{found['cache_bytes'][key] / 1e6:.1f}" for key in ("float32", "int8"))
        lines.append(
            f"| {row['data']} | {row['dim']} | {found['float32_us']:.1f} / {found['int8_us']:.1f},"
            f" **{middle:.2f}** ({low:.2f}–{high:.2f}) | {held} |"
        )
    return lines


def write_page(result: dict[str, Any]) -> str:
    """The page as Markdown."""
    lines = heading("A first pass over int8 codes", "bench-int8", result)
    lines += [
        "Exact search among the items of a bucket, ten neighbours, with int8 codes in front of the",
        "float32 vectors (first_pass='int8') and without. Results were compared bit for bit (ids,",
        "distances, candidates, truncated) for Euclidean distances and inner products, queries one",
        "by one and together, in memory and from disk: equal in all cases, or the benchmark stops.",
        "",
        "## In memory",
        "",
        "Microseconds a query, float32 / int8, and the time of int8 over that of float32. Codes of",
        "fewer than 128 numbers are left alone in memory, and so are all where three queries or",
        "more look into a bucket together: vectors are as fast or faster there.",
        "",
        "| data | dim | candidates | survivors, mean (p99) | " + " | ".join(_BATCHES) + " |",
        "|---|---|---|---|" + "---|" * len(_BATCHES),
    ]
    for row in result["rows"]:
        cells = []
        for batch in _BATCHES:
            times = row["memory"][batch]
            low, middle, high = times["ratio"]
            cells.append(
                f"{times['float32_us']:.1f} / {times['int8_us']:.1f},"
                f" **{middle:.2f}** ({low:.2f}–{high:.2f})"
            )
        mean, most = row["survivors"]
        lines.append(
            f"| {row['data']} | {row['dim']} | {row['candidates']:,.0f} | {mean:.0f} ({most:.0f})"
            f" | {' | '.join(cells)} |"
        )
    lines += [
        "",
        "## From disk, nothing of it in memory",
        "",
        "One query from mapped files whose blocks were checked before (the first read of a block",
        "in a process reads all of it, to compare codes and vectors). Milliseconds, and kB that",
        "the system read from the disk. `float32`: as it is, the system reads ahead as the disk is",
        "set to; `float32 at once`: the benchmark asks for the bytes of the block beforehand, the",
        "best there is without codes; `int8`: codes of the block, then the pages of the survivors;",
        "`int8, codes there`: the codes are in memory already, the vectors are not.",
        "",
        "| data | dim | " + " | ".join(_READS) + " | stored, MB |",
        "|---|---|" + "---|" * (len(_READS) + 1),
    ]
    for row in result["rows"]:
        disk = row["disk"]
        cells = [
            f"{disk['ms'][name][1]:.2f} ms, {_kilobytes(disk['bytes'][name])} kB" for name in _READS
        ]
        sizes = " / ".join(f"{disk['bytes_stored'][k] / 1e6:,.0f}" for k in ("float32", "int8"))
        lines.append(f"| {row['data']} | {row['dim']} | {' | '.join(cells)} | {sizes} |")
    lines += _cluster_lines(result["rows"])
    return "\n".join(lines) + "\n"
