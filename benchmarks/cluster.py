"""Queries on one, two and three servers: routed to the bucket's server, or scattered over all.

``make bench-cluster``; writes ``docs/results/cluster.md``, ``cluster.json`` and ``cluster.png``.
Every server is in a cpu cgroup of its own, so that several "machines" fit on one; it needs root.
All systems take turns in every round. Which share of their quota the servers used is reported: it
is near one where the servers, and not the clients, were what limited the throughput.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _cluster_clients import KINDS, PROCESSES, THREADS, Clients
from _cluster_data import DIM, N_NEIGHBORS, Data
from _cluster_hit import cache_hit
from _cluster_page import draw, page
from _cluster_systems import Quotas, System, faiss_system, postgres_systems, redis_systems
from _timing import machine, say, versions

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MS = (1, 2, 3)


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--buckets", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6)
    share = "of a core, for each server: so little that two cores of clients do not run out first"
    parser.add_argument("--share", type=float, default=0.06, help=share)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--without", nargs="*", default=[], choices=["faiss", "postgres"])
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    data, large = Data(options.items, options.buckets), Data(200_000, 20)
    queries, buckets = data.queries(20_000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hold = Quotas(stack, options.share)
        systems: dict[str, System] = {}
        for m in MS:
            say(f"filling {m} servers")
            made = redis_systems(stack, hold, folder, m, data, large if m == 3 else None)
            systems |= {f"{name}-{m}": system for name, system in made.items()}
            if "faiss" not in options.without:
                systems[f"faiss-{m}"] = faiss_system(stack, hold, folder, m, data)
        if "postgres" not in options.without:
            made = postgres_systems(stack, hold, data)
            systems |= {f"postgres-{m}": system for m, system in made.items()}
        wrong = disagreements(systems, data, queries[:200], buckets[:200])
        say(f"answers that differ from an exact scan of the bucket: {wrong}")
        clients = Clients({"": (queries, buckets), "large": large.queries(2_000)})
        stack.callback(clients.close)
        rows = measure(systems, clients, options)
    results = {
        "machine": machine(),
        "versions": versions("redis", "hiredis", "numpy", "faiss-cpu"),
        "note": options.note,
        "data": {"items": options.items, "buckets": options.buckets, "dim": DIM,
                 "neighbors": N_NEIGHBORS, "block_bytes": options.items // options.buckets
                 * (8 + 4 * DIM)},
        "load": {"share_of_a_core": options.share, "clients": PROCESSES * THREADS,
                 "rounds": options.rounds, "seconds": options.seconds},
        "wrong": wrong,
        "rows": rows,
        "cache_hit": cache_hit(data, queries[:2000], buckets[:2000]),
    }  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "cluster.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "cluster.md").write_text(page(results))
    draw(results, options.output / "cluster.png")
    return 0


def disagreements(
    systems: dict[str, System], data: Data, queries: np.ndarray, buckets: np.ndarray
) -> dict[str, int]:
    """For each system, queries whose ten ids are not the nearest of the bucket.

    faiss looks into the cluster with the nearest centre, which need not be the bucket asked for;
    its answers are compared where it is.
    """
    wrong = {}
    for name, system in systems.items():
        if name.startswith(("large", "four")):
            continue
        client = KINDS[system.kind](**system.settings)
        count = 0
        for query, bucket in zip(queries, buckets.tolist(), strict=True):
            if system.kind == "faiss":
                distances = ((data.centres - query) ** 2).sum(1)
                if distances.argmin() != bucket:
                    continue
            rows = data.rows_of(bucket)
            squares = ((data.vectors[rows].astype(np.float64) - query) ** 2).sum(1)
            best = np.sort(rows[np.argsort(squares)[:N_NEIGHBORS]])
            found = client.search(query[None], np.array([bucket]))
            count += not np.array_equal(found, best)
        wrong[name] = count
    return wrong


def measure(
    systems: dict[str, System], clients: Clients, options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """For each system a record per round; the first round is not counted."""
    tasks = [(name, name, 1) for name in systems]
    tasks += [(f"{way}-3, batch 64", f"{way}-3", 64) for way in ("routed", "scattered")]
    rows: dict[str, list[dict[str, Any]]] = {task: [] for task, _, _ in tasks}
    began = time.perf_counter()
    rounds = options.rounds
    for number in range(rounds + 1):
        for task, name, batch in tasks:
            system = systems[name]
            order = {"name": name, "kind": system.kind, "settings": system.settings,
                     "batch": batch, "round": number,
                     "queries": "large" if name.startswith("large") else "",
                     "seconds": options.seconds if number else 0.3}  # fmt: skip
            record = one_run(system, clients, order, options.share)
            if number:
                rows[task].append(record)
        left = (time.perf_counter() - began) / (number + 1) * (rounds - number)
        say(f"round {number} of {rounds}, about {left:.0f} s left")
    return rows


def one_run(
    system: System, clients: Clients, order: dict[str, Any], share: float
) -> dict[str, Any]:
    before = system.cpu_seconds()
    answers = clients.run(**order)
    cpu = system.cpu_seconds() - before
    runs = [run for answer in answers for run in answer["runs"]]
    latencies = np.concatenate([run["latencies"] for run in runs])
    seconds = float(np.mean([run["seconds"] for run in runs]))
    n = max(1, len(latencies) * order["batch"])
    counts: dict[str, float] = {}
    for run in runs:
        for name, value in run["counts"].items():
            counts[name] = counts.get(name, 0) + value / n
    return {
        "queries_per_second": n / seconds,
        "server_us": 1e6 * cpu / n,
        "client_us": 1e6 * sum(answer["cpu"] for answer in answers) / n,
        "quota_used": cpu / (share * len(system.quotas) * seconds),
        "p50_ms": 1e3 * float(np.quantile(latencies, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(latencies, 0.99)),
        **{f"{name}_per_query": value for name, value in counts.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
