"""The index against other libraries, interleaved. ``make bench-index`` writes docs/results.

Three parts:

1. ``lists``: the same candidate lists through faiss ``IndexIVFFlat.search_preassigned``, the share
   of the memory bandwidth of a plain streaming sum, and the same items in an index to which the
   last tenth came in ten calls of ``add``, all measured in the same rounds.
2. ``curves``: queries per second against label precision@10 for faiss IVF, faiss HNSW, hnswlib and
   usearch, each over a sweep of its own parameters. In hashcade the bucket of a query is that
   of the nearest class mean of the training items (a linear hash function; its time is included),
   over ``n_probe``.
3. ``life``: build, save, load, memory, add and remove.

Data: a million vectors in 1,000 gaussian classes, and the Cifar-100 embeddings from the folder in
HASHCADE_DATA (default: ../shared/data beside the repository), at 64 (the first 64 principal
components), 128, and 256 numbers (every vector followed by itself, divided by the root of two,
which leaves all distances as they are).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
from _graphs import graph_searches
from _index_page import write_page
from _timing import machine, say
from _vectors import DATA, cifar100, gaussian_classes
from numba import njit
from threadpoolctl import ThreadpoolController

from hashcade import CodeShape, HashIndex
from hashcade.index import warmup

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
GRAPHS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hashcade" / "bench-index"
N_NEIGHBORS = 10
REST = 0.05  # seconds before a measurement
ROUNDS = 15


# -- data ------------------------------------------------------------------------------------------


def class_means(vectors, labels):
    sums = np.zeros((labels.max() + 1, vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    return (sums / np.bincount(labels)[:, None]).astype(np.float32)


def scores_of(vectors, means):
    """Minus half the squared distance to each mean, without the part that all have in common."""
    return vectors @ means.T - 0.5 * (means * means).sum(axis=1)


# -- 1. the same lists -----------------------------------------------------------------------------


@njit(nogil=True, fastmath={"reassoc", "contract", "nsz"}, cache=True)
def streaming_sum(values):
    total = np.float32(0.0)
    for i in range(values.shape[0]):
        total += values[i]
    return total


def ivf_with_lists(vectors, lists, n_lists):
    """Return a faiss index with these very lists; its quantizer is never asked."""
    dim = vectors.shape[1]
    quantizer = faiss.IndexFlatL2(dim)
    quantizer.add(np.zeros((n_lists, dim), np.float32))
    index = faiss.IndexIVFFlat(quantizer, dim, n_lists)
    index.is_trained = True
    lists = np.ascontiguousarray(lists, np.int64)
    index.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(lists))
    index.nprobe = 1
    return index, quantizer


def grown(vectors, labels, shape):
    """Return an index to which the last tenth of the items came in ten calls."""
    n = len(vectors)
    cuts = [n - n // 10 + n // 100 * k for k in range(10)] + [n]
    index = HashIndex.build(labels[: cuts[0]], vectors[: cuts[0]], shape=shape)
    for start, stop in itertools.pairwise(cuts):
        index.add(labels[start:stop], vectors[start:stop])
    return index


def timed(function, repeat=1):
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - start) / repeat


def timed_in_peace(function, repeat):
    """Time calls that follow each other, as in a service that is in use.

    Threads of faiss stay active for a while after a search. The pause lets them go to sleep before
    the next measurement; one call that is not counted wakes the threads that are needed.
    """
    time.sleep(REST)
    function()
    return timed(function, repeat)


def spread_of(ratios):
    """The median of paired ratios, and their quartiles."""
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return {"ratio": float(middle), "ratio_low": float(low), "ratio_high": float(high)}


def compare_lists(name, vectors, labels, tests, test_labels, rounds):
    """Yield a row per batch size and number of threads."""
    n_lists = int(labels.max()) + 1
    shape = CodeShape(width=n_lists, depth=1)
    ours = HashIndex.build(labels, vectors, shape=shape)
    after_adds = grown(vectors, labels, shape)
    theirs, _quantizer = ivf_with_lists(vectors, labels, n_lists)
    flat = vectors.reshape(-1)
    rng = np.random.default_rng(0)
    once = np.sort(np.unique(test_labels, return_index=True)[1])  # one query per bucket
    batches = {
        "all queries": np.arange(len(tests)),
        "each bucket once": rng.permutation(once),
        "64 queries": rng.permutation(once)[:64],
    }
    for batch, rows in batches.items():
        queries = np.ascontiguousarray(tests[rows])
        lists = np.ascontiguousarray(test_labels[rows][:, None], np.int64)
        nothing = np.zeros((len(rows), 1), np.float32)
        for threads in (1, 2):
            faiss.omp_set_num_threads(threads)
            # In mode 0 search_preassigned leaves the threads to its caller; in mode 3 it divides
            # the queries among them itself.
            theirs.parallel_mode = 3 if threads > 1 else 0

            def our_search(index=ours, queries=queries, lists=lists, threads=threads):
                return index.search(
                    queries, bucket_ids=lists, n_neighbors=N_NEIGHBORS, fill="none", threads=threads
                )

            def their_search(queries=queries, lists=lists, nothing=nothing):
                return theirs.search_preassigned(queries, N_NEIGHBORS, lists, nothing)

            streaming_sum(flat)  # compiled
            result = our_search()
            same = float((result.ids == their_search()[1]).mean())
            read = float(result.candidates.sum()) * vectors.shape[1] * 4
            repeat = max(1, int(2e8 / read))  # rounds of tens of milliseconds at least
            ours_s, theirs_s, adds_s, sum_s = [], [], [], []
            for _ in range(rounds):
                ours_s.append(timed_in_peace(our_search, repeat))
                theirs_s.append(timed_in_peace(their_search, repeat))
                adds_s.append(timed_in_peace(lambda: our_search(after_adds), repeat))
                sum_s.append(timed(lambda: streaming_sum(flat)))
            ratios = np.divide(theirs_s, ours_s)
            share = statistics.median(
                (read / a) / (flat.nbytes / s) for a, s in zip(ours_s, sum_s, strict=True)
            )
            row = {
                "data": name, "dim": vectors.shape[1], "batch": batch, "queries": len(rows),
                "threads": threads, "candidates": float(result.candidates.mean()),
                "ours_us": statistics.median(ours_s) / len(rows) * 1e6,
                "faiss_us": statistics.median(theirs_s) / len(rows) * 1e6,
                **spread_of(ratios), "bandwidth_share": share,
                "after_adds": statistics.median(np.divide(adds_s, ours_s)),
                "segments": after_adds.stats()["n_segments"],
                "sum_gb_s": flat.nbytes / statistics.median(sum_s) / 1e9, "same_ids": same,
            }  # fmt: skip
            say(json.dumps(row))
            yield row


def single_queries(name, vectors, labels, tests, test_labels, rounds):
    """One query at a time, one thread: here the price of a call counts as much as the scan."""
    n_lists = int(labels.max()) + 1
    shape = CodeShape(width=n_lists, depth=1)
    ours = HashIndex.build(labels, vectors, shape=shape)
    after_adds = grown(vectors, labels, shape)
    theirs, _quantizer = ivf_with_lists(vectors, labels, n_lists)
    faiss.omp_set_num_threads(1)
    lists = np.ascontiguousarray(test_labels[:, None], np.int64)
    nothing = np.zeros((1, 1), np.float32)
    rows = range(300)

    def our_searches(index=ours):
        for i in rows:
            index.search(tests[i : i + 1], bucket_ids=lists[i : i + 1], fill="none", threads=1)

    def their_searches():
        for i in rows:
            theirs.search_preassigned(tests[i : i + 1], N_NEIGHBORS, lists[i : i + 1], nothing)

    searches = (our_searches, their_searches, lambda: our_searches(after_adds))
    for search in searches:
        search()
    seconds = np.array([[timed(search) for search in searches] for _ in range(rounds)])
    row = {
        "data": name, "dim": vectors.shape[1],
        "ours_us": float(np.median(seconds[:, 0])) / len(rows) * 1e6,
        "faiss_us": float(np.median(seconds[:, 1])) / len(rows) * 1e6,
        **spread_of(seconds[:, 1] / seconds[:, 0]),
        "after_adds": float(np.median(seconds[:, 2] / seconds[:, 0])),
    }  # fmt: skip
    say("single", json.dumps(row))
    return row


# -- 2. curves ------------------------------------------------------------------------------------


def curves(name, vectors, labels, tests, test_labels, *, ef_build, folder, rounds):
    """Yield a point per method, setting and threads: label precision@10 and queries per second."""
    n, dim = vectors.shape
    tests, test_labels = tests[:2000], test_labels[:2000]
    searches = {}  # (method, setting) -> function from threads to ids
    faiss.omp_set_num_threads(2)

    means = class_means(vectors, labels)
    nearest = np.concatenate(
        [scores_of(vectors[at : at + 50_000], means).argmax(axis=1) for at in range(0, n, 50_000)]
    )
    index = HashIndex.build(nearest, vectors, shape=CodeShape(width=len(means), depth=1))
    for n_probe in (1, 2, 3, 4, 8, 16):
        searches["hashcade", n_probe] = lambda threads, p=n_probe: (
            index.search(
                tests, scores=scores_of(tests, means)[:, None, :], n_probe=p, threads=threads
            ).ids
        )

    def add_ivf(n_lists):
        quantizer = faiss.IndexFlatL2(dim)
        ivf = faiss.IndexIVFFlat(quantizer, dim, n_lists)
        ivf.train(vectors[:: max(1, n // (50 * n_lists))])
        ivf.add(vectors)

        def search(n_probe, threads):
            faiss.omp_set_num_threads(threads)
            ivf.nprobe = n_probe
            return ivf.search(tests, N_NEIGHBORS)[1]

        for n_probe in (1, 2, 4, 8, 16, 32):
            searches[f"faiss IVF{n_lists}", n_probe] = lambda threads, p=n_probe: search(p, threads)
        return quantizer

    kept = [add_ivf(n_lists) for n_lists in ((1024, 4096) if n > 200_000 else (128, 512))]
    say("the graphs of the peers")
    for method, setting, search in graph_searches(
        name, vectors, tests, N_NEIGHBORS, ef_build, folder
    ):
        searches[method, setting] = search

    precision = {
        key: float((labels[np.asarray(search(1), np.int64)] == test_labels[:, None]).mean())
        for key, search in searches.items()
    }
    times = {(*key, threads): [] for threads in (1, 2) for key in searches}
    pools = ThreadpoolController()
    for threads in (1, 2):
        for _ in range(rounds):
            for key, search in searches.items():
                # Our means are compared in one thread: numpy's second one would stay awake for
                # longer than the search takes, and keep a core from it.
                with pools.limit(limits=1 if key[0] == "hashcade" else threads):
                    time.sleep(REST)  # threads of the one before stay awake for a while
                    times[(*key, threads)].append(timed(lambda s=search, t=threads: s(t)))
    del kept
    for (method, setting, threads), seconds in times.items():
        point = {
            "data": name, "dim": dim, "method": method, "setting": setting, "threads": threads,
            "precision": precision[method, setting],
            "queries_per_s": len(tests) / statistics.median(seconds),
        }  # fmt: skip
        say(json.dumps(point))
        yield point


# -- 3. life --------------------------------------------------------------------------------------


def life(vectors, labels):
    """Build, save, load, memory, add and remove, for one set of vectors."""
    n, dim = vectors.shape
    shape = CodeShape(width=int(labels.max()) + 1, depth=1)
    warmup()
    start = time.perf_counter()
    index = HashIndex.build(labels, vectors, labels=labels, shape=shape)
    row = {"data": "million", "n": n, "dim": dim, "build_s": time.perf_counter() - start}
    folder = Path(tempfile.mkdtemp(prefix="hashcade-bench-"))
    try:
        row["save_s"] = timed(lambda: index.save(folder / "index"))
        HashIndex.load(folder / "index")
        row["load_ms"] = statistics.median(
            timed(lambda: HashIndex.load(folder / "index")) * 1e3 for _ in range(9)
        )
        loaded = HashIndex.load(folder / "index")
        row["first_search_ms"] = (
            timed(lambda: loaded.search(vectors[:1], bucket_ids=labels[:1])) * 1e3
        )
        every = np.arange(shape.n_buckets)
        queries = vectors[: len(every)]
        row["read_every_bucket_first_s"] = timed(lambda: loaded.search(queries, bucket_ids=every))
        row["read_every_bucket_again_s"] = timed(lambda: loaded.search(queries, bucket_ids=every))
        row["verify_s"] = timed(loaded.verify)
        ids = np.arange(10**9, 10**9 + 20_000)
        some, names = vectors[:20_000], labels[:20_000]
        loaded.add(names[:1], some[:1], ids=[5 * 10**9], labels=names[:1])  # the table of ids
        batch = 1000
        seconds = timed(lambda: [
            loaded.add(names[at:at + batch], some[at:at + batch], ids[at:at + batch],
                       names[at:at + batch])
            for at in range(0, 20_000, batch)
        ])  # fmt: skip
        row["add_per_s_batches_of_1000"] = 20_000 / seconds
        seconds = timed(lambda: [
            loaded.remove(ids[at:at + batch]) for at in range(0, 20_000, batch)
        ])  # fmt: skip
        row["remove_per_s_batches_of_1000"] = 20_000 / seconds
        seconds = timed(lambda: [
            loaded.add(names[k:k + 1], some[k:k + 1], [2 * 10**9 + k], names[k:k + 1])
            for k in range(500)
        ])  # fmt: skip
        row["add_per_s_one_by_one"] = 500 / seconds
        seconds = timed(lambda: [loaded.remove([2 * 10**9 + k]) for k in range(500)])
        row["remove_per_s_one_by_one"] = 500 / seconds
        row["save_after_small_change_s"] = timed(lambda: loaded.save(folder / "index"))
        stats = loaded.stats()
        row["segments"] = stats["n_segments"]
        stored = stats["n_entries"] + stats["n_removed_entries"]
        row["bytes_beside_vectors_per_entry_after_changes"] = stats["bytes_other"] / stored
        stats = index.stats()
        row["bytes_beside_vectors_per_entry"] = stats["bytes_other"] / stats["n_entries"]
        row["bytes_vectors_per_entry"] = stats["bytes_vectors"] / stats["n_entries"]
        row["compact_s"] = timed(loaded.compact)
    finally:
        shutil.rmtree(folder)
    say("life", json.dumps(row))
    return row


# -- the run --------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--parts", default="lists,curves,life", help="also: graphs, which only builds them"
    )
    parser.add_argument("--data", default="million,cifar100")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--curve-dims", default="64,128,256", help="dimensions of the curves")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--noise", type=float, default=1.5, help="spread within a class")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ef-build", type=int, default=60)
    parser.add_argument("--graphs", type=Path, default=GRAPHS, help="where graphs are kept")
    parser.add_argument("--output", type=Path, default=RESULTS / "index.json")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    dims = [int(d) for d in arguments.dims.split(",")]
    curve_dims = [int(d) for d in arguments.curve_dims.split(",")]
    RESULTS.mkdir(parents=True, exist_ok=True)
    names = arguments.data.split(",")
    wanted = {*dims} if {"lists", "life"} & {*parts} else set()
    wanted |= {*curve_dims} if {"curves", "graphs"} & {*parts} else set()
    wanted.discard(0)
    if len(names) * len(wanted) > 1:
        # Each in a process of its own: after a million vectors in the same one, those of Cifar-100
        # at 256 numbers took us 35 µs a query instead of 22, and faiss the same.
        for dim, name in itertools.product(sorted(wanted), names):
            own = [f"--data={name}", f"--dims={dim * (dim in dims)}"]
            own += [f"--curve-dims={dim * (dim in curve_dims)}"]
            subprocess.run([sys.executable, __file__, *sys.argv[1:], *own], check=True)
        return

    results = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    results["machine"] = {
        "cpu": machine()["cpu"], "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(), "numpy": np.__version__, "faiss": faiss.__version__,
    }  # fmt: skip
    tables = [part for part in parts if part != "graphs"]
    tables += ["single"] if "lists" in parts else []
    if "lists" in parts:
        results.pop("note", None)
    for table in tables:  # what is measured again replaces what was there
        again = curve_dims if table == "curves" else dims
        results[table] = [
            row
            for row in results.get(table, [])
            if row["data"] not in names or row["dim"] not in again
        ]
    for dim in sorted(wanted):
        for name in names:
            data = (
                gaussian_classes(dim, arguments.n, 1000, 10_000, arguments.noise)
                if name == "million"
                else cifar100(dim)
            )
            if data is None:
                say(f"no Cifar-100 embeddings in {DATA}: left out")
                continue
            say(f"-- {name}, {len(data[0]):,} vectors, {dim} dimensions")
            if "lists" in parts and dim in dims:
                results["lists"] += compare_lists(name, *data, rounds=arguments.rounds)
                results["single"].append(single_queries(name, *data, rounds=arguments.rounds))
            if "life" in parts and dim in dims and name == "million":
                results["life"].append(life(data[0], data[1]))
            if "graphs" in parts:
                say("the graphs of the peers")
                list(
                    graph_searches(
                        name, data[0], data[2], N_NEIGHBORS, arguments.ef_build, arguments.graphs
                    )
                )
            if "curves" in parts and dim in curve_dims:
                results["curves"] += curves(
                    name, *data, ef_build=arguments.ef_build, folder=arguments.graphs,
                    rounds=min(arguments.rounds, 5),
                )  # fmt: skip
            del data
            gc.collect()
            if parts != ["graphs"]:
                arguments.output.write_text(json.dumps(results, indent=1))
    if parts != ["graphs"] and arguments.output.parent == RESULTS:
        write_page(results, RESULTS)
    print(arguments.graphs if parts == ["graphs"] else arguments.output)


if __name__ == "__main__":
    main()
