"""The page and the figure of the benchmark of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _timing import quartiles

MS = (1, 2, 3)
SYSTEMS = {
    "routed": "Redis, routed",
    "scattered": "Redis, scattered",
    "postgres": "pgvector, bucket as a column, routed",
    "faiss": "faiss IVF, random shards, scattered",
}
# What must be seen: (quantity, comparison, bound).
TARGETS = {
    "routed 2 / 1": 1.8, "routed 3 / 1": 2.6, "routed / scattered, 2": 1.3,
    "routed / scattered, 3": 1.6,
}  # fmt: skip


def values(results: dict[str, Any], task: str, what: str) -> np.ndarray:
    """One quantity of a system, by round."""
    return np.array([row[what] for row in results["rows"][task]])


def ratios(results: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Quartiles of the ratios of throughput, round by round."""

    def rate(task: str) -> np.ndarray:
        return values(results, task, "queries_per_second")

    pairs = {
        "routed 2 / 1": ("routed-2", "routed-1"),
        "routed 3 / 1": ("routed-3", "routed-1"),
        "scattered 2 / 1": ("scattered-2", "scattered-1"),
        "scattered 3 / 1": ("scattered-3", "scattered-1"),
        "routed / scattered, 2": ("routed-2", "scattered-2"),
        "routed / scattered, 3": ("routed-3", "scattered-3"),
        "routed / scattered, 3, batches of 64": ("routed-3, batch 64", "scattered-3, batch 64"),
        "routed / scattered, 3, buckets of 10,000": ("large-routed-3", "large-scattered-3"),
    }
    return {name: quartiles((rate(a) / rate(b)).tolist()) for name, (a, b) in pairs.items()}


def page(results: dict[str, Any]) -> str:
    """The results to be read."""
    data, load = results["data"], results["load"]
    packages = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    lines = [
        "# A cluster: routed and scattered queries",
        "",
        f"Written by `make bench-cluster`. {results['machine']['cpu']}, "
        f"{results['machine']['cores']} cores; {packages}. {results['note']}".rstrip(),
        "",
        f"{data['items']:,} items × {data['dim']} in {data['buckets']:,} buckets"
        f" ({data['block_bytes'] / 1000:.0f} KB a block), {data['neighbors']} neighbours. Each"
        f" server is a process in a cpu cgroup of its own with {load['share_of_a_core']:g} of a"
        f" core (1 of {1 / load['share_of_a_core']:.0f} ms); {load['clients']} clients in 8"
        " processes;"
        f" medians with quartiles of {load['rounds']} rounds of {load['seconds']:g} s in which"
        " all systems take turns. Loopback: there is no network in these latencies. The figures to"
        " rely on are ratios and processor time per query.",
        "",
        "*Routed*: a bucket is at one server, and its server is asked. *Scattered*: the same items,"
        " each bucket's in random parts at all servers, all asked at once, as an index that does"
        " not know where a query looks must. Answers that were not those of an exact scan of the"
        f" bucket, of 200 a system: {sum(results['wrong'].values())}.",
        "",
        "![Throughput by number of servers](cluster.png)",
        "",
        "## Servers 1, 2, 3",
        "",
        "| | servers | queries/s | ×1 server | server CPU µs/query | client CPU µs/query"
        " | p50 / p99 ms | servers asked per query | quota used |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, title in SYSTEMS.items():
        if f"{kind}-1" in results["rows"]:
            lines += [system_row(results, kind, title, m) for m in MS]
    lines += [
        "",
        "Where less than nine tenths of the quota were used, something else was the limit (clients,"
        " or the wait for the slowest server), and the processor time per query says more than the"
        " throughput. faiss' shards are a loop in Python around `IndexIVFFlat` on raw sockets;"
        " its cells are the same clusters. Postgres has all rows on each server, and only those of"
        " its buckets are asked for.",
        "",
        "## Ratios",
        "",
        "| throughput | ratio (quartiles) | target |",
        "|---|---|---|",
    ]
    for name, (low, middle, high) in ratios(results).items():
        target = TARGETS.get(name)
        verdict = "" if target is None else f"≥ {target}: {'yes' if middle >= target else '**no**'}"
        lines.append(f"| {name} | {middle:.2f} ({low:.2f}–{high:.2f}) | {verdict} |")
    cpu = [float(np.median(values(results, f"routed-{m}", "server_us"))) for m in MS]
    spread = max(cpu) / min(cpu) - 1
    four = results["rows"]["four-3"]
    hit = results["cache_hit"]
    lines += [
        "",
        f"- Server CPU of a routed query on 1, 2, 3 servers: {cpu[0]:.0f}, {cpu[1]:.0f},"
        f" {cpu[2]:.0f} µs, a spread of {100 * spread:.0f} % (target: 20 %).",
        f"- Keys and servers per query on three servers: with one bucket"
        f" {np.mean(values(results, 'routed-3', 'keys_per_query')):.2f} and"
        f" {np.mean(values(results, 'routed-3', 'nodes_per_query')):.2f}, with four"
        f" {np.mean([row['keys_per_query'] for row in four]):.2f} and"
        f" {np.mean([row['nodes_per_query'] for row in four]):.2f}.",
        f"- A query whose bucket is cached takes {hit['cluster_us'][1]:.1f} µs, the library call"
        f" {hit['library_us'][1]:.1f} µs: {hit['ratio'][1]:.2f} times ({hit['ratio'][0]:.2f}–"
        f"{hit['ratio'][2]:.2f}; target: at most 2). {hit['equal']} of {hit['queries']} answers"
        " are equal.",
        "",
        *formula(results),
    ]
    return "\n".join(lines) + "\n"


def system_row(results: dict[str, Any], kind: str, title: str, m: int) -> str:
    task = f"{kind}-{m}"
    rate = values(results, task, "queries_per_second")
    low, times, high = quartiles(
        (rate / values(results, f"{kind}-1", "queries_per_second")).tolist()
    )
    middle = {
        what: float(np.median(values(results, task, what)))
        for what in ("server_us", "client_us", "p50_ms", "p99_ms", "nodes_per_query", "quota_used")
    }
    growth = "1" if m == 1 else f"{times:.2f} ({low:.2f}–{high:.2f})"
    return (
        f"| {title if m == 1 else ''} | {m} | {np.median(rate):,.0f} | {growth}"
        f" | {middle['server_us']:.0f} | {middle['client_us']:.0f}"
        f" | {middle['p50_ms']:.1f} / {middle['p99_ms']:.1f}"
        f" | {middle['nodes_per_query']:.2f} | {100 * middle['quota_used']:.0f} % |"
    )


def formula(results: dict[str, Any]) -> list[str]:
    """What follows for other numbers of servers, and where it ends."""
    one, three = (float(np.median(values(results, f"scattered-{m}", "server_us"))) for m in (1, 3))
    fixed = max((three - one) / 2, 0.1)
    scan = max(one - fixed, 0.1)

    def gain(m: int, k: float, share: float = 1.0) -> float:
        return (m * fixed * share + scan) / (k * fixed * share + scan)

    return [
        "## The formula, and its limits",
        "",
        "With `o` the fixed processor time of a request at a server, `s` that of the candidates of"
        " a query, `k` the servers that a query asks and `m` all of them, a server answers"
        " `(m·o + s) / (k·o + s)` times as many routed queries as scattered ones. From the"
        f" scattered rows on 1 and 3 servers: o = {fixed:.0f} µs, s = {scan:.0f} µs, hence",
        "",
        "| | m = 2 | 3 | 16 | 64 |",
        "|---|---|---|---|---|",
        "| one bucket a query | " + " | ".join(f"{gain(m, 1):.1f}" for m in (2, 3, 16, 64)) + " |",
        "| four buckets a query | "
        + " | ".join(f"{gain(m, m * (1 - (1 - 1 / m) ** 4)):.1f}" for m in (2, 3, 16, 64))
        + " |",
        "| one bucket, 64 queries a request | "
        + " | ".join(f"{gain(m, 1, 1 / 64):.1f}" for m in (2, 3, 16, 64))
        + " |",
        "",
        "Columns above 3 are computed, not measured. The gain is that of the fixed cost, so it goes"
        " away where that does not matter: in batches, where a server is asked once for many"
        " queries, in buckets of thousands of entries, and where a query's buckets are at nearly"
        " all servers anyway. It says nothing of the query nodes: the network that hashes a query,"
        " and the scan of the blocks, run there and grow with their number.",
    ]


def draw(results: dict[str, Any], path: Path) -> None:
    """Throughput by number of servers, each system by its own at one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 3.6))
    for kind, title in SYSTEMS.items():
        if f"{kind}-1" not in results["rows"]:
            continue
        first = values(results, f"{kind}-1", "queries_per_second")
        growth = [
            quartiles((values(results, f"{kind}-{m}", "queries_per_second") / first).tolist())
            for m in MS
        ]
        low, middle, high = zip(*growth, strict=True)
        (line,) = axes.plot(MS, middle, marker="o", label=title)
        axes.fill_between(MS, low, high, alpha=0.2, color=line.get_color())
    axes.plot(MS, MS, color="grey", linestyle=":", label="proportional")
    axes.set(
        xlabel=f"servers, {results['load']['share_of_a_core']:g} of a core each",
        ylabel="queries/s, by those of one server",
    )
    axes.set_xticks(MS)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
