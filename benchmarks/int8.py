"""A first pass over int8 codes beside float32 alone. ``make bench-int8`` writes docs/results.

The same items in two indexes, one with codes; every answer is compared, bit for bit. In memory: one
query at a time, a batch with each bucket once, and a batch of all queries. From disk: the files are
mapped and every block was read before, then the pages are dropped (of the process and of the
system), and one query is answered; bytes are those that the system read from the disk for it, as
counted in /proc/self/io. Data: the Cifar-100 embeddings in HASHCADE_DATA, and gaussian classes
with buckets of 1,000 and of 10,000; 64, 128 and 384 numbers. In a cluster: see ``_int8_cluster``;
it needs redis-server, and root for links of a given rate.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from _int8_cluster import in_cluster
from _int8_page import write_page
from _timing import interleaved, machine, quartiles, ratio, timed, versions
from _vectors import cifar100, gaussian_classes

from hashcade import CodeShape, HashIndex
from hashcade.index import encode_int8, survivors, warmup

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
DIMS = (64, 128, 384)
NOISE = 0.5
DONT_NEED, WILL_NEED, RANDOM = 4, 3, 1  # for madvise
FIELDS = ("ids", "distances", "candidates", "truncated")
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)


def data_sets(quick):
    n_tests = 200 if quick else 2000
    for dim in DIMS:
        if (found := cifar100(dim, n_tests)) is not None:
            yield "Cifar-100", dim, found
    for dim, n in zip(DIMS, (1_000_000, 500_000, 200_000), strict=True):
        n = n // 50 if quick else n
        yield "buckets of 1,000", dim, gaussian_classes(dim, n, n // 1000, n_tests, NOISE)
    for dim, n in zip(DIMS, (400_000, 200_000, 100_000), strict=True):
        n = n // 10 if quick else n
        yield "buckets of 10,000", dim, gaussian_classes(dim, n, n // 10_000, n_tests, NOISE)


def same(one, other):
    """Whether results are equal bit for bit."""
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in FIELDS)


def count_survivors(vectors, labels, tests, test_labels, n=50):
    """How many entries of its bucket each of some queries leaves after the first pass."""
    counts = []
    for query, label in zip(tests[:n], test_labels[:n], strict=True):
        coded = encode_int8(np.ascontiguousarray(vectors[labels == label]))
        counts.append(len(survivors(*coded, query, 10)))
    return float(np.mean(counts)), float(np.quantile(counts, 0.99))


def in_memory(indexes, tests, lists, rounds):
    """Microseconds per query of both, and quartiles of their ratio."""
    candidates = indexes["int8"].search(tests[:50], bucket_ids=lists[:50], fill="none").candidates
    few = int(max(20, min(300, 3e5 / candidates.mean())))
    once = np.unique(lists[:, 0], return_index=True)[1]
    batches = {"each bucket once": once, "all queries": np.arange(len(tests))}
    rows = {}

    def one_by_one(index):
        for i in range(few):
            index.search(tests[i : i + 1], bucket_ids=lists[i : i + 1], fill="none", threads=1)

    def compare(name, calls, n):
        seconds = interleaved(calls, rounds)
        rows[name] = {
            **{f"{key}_us": quartiles(s)[1] / n * 1e6 for key, s in seconds.items()},
            "ratio": ratio(seconds["int8"], seconds["float32"]),
        }

    calls = {key: lambda index=index: one_by_one(index) for key, index in indexes.items()}
    compare("one query", calls, few)
    for name, which in batches.items():
        queries, where = np.ascontiguousarray(tests[which]), np.ascontiguousarray(lists[which])

        def batch(index, queries=queries, where=where):
            return index.search(queries, bucket_ids=where, fill="none", threads=1)

        calls = {key: lambda index=index: batch(index) for key, index in indexes.items()}
        compare(name, calls, len(which))
    return rows


class Stored:
    """An index on disk whose pages can be dropped."""

    def __init__(self, folder):
        self.path = max(folder.glob("segment-*.bin"), key=lambda path: path.stat().st_size)
        self.file = os.open(self.path, os.O_RDONLY)
        self.index = HashIndex.load(folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        record = next(r for r in manifest["segments"] if r["file"] == self.path.name)
        self.sections = record["sections"]
        self.size = record["bytes"]
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        self.address = min(
            int(line[0].split("-")[0], 16) for line in maps if line[-1] == str(self.path)
        )

    def array(self, name):
        section = self.sections[name]
        count = int(np.prod(section["shape"]))
        return np.fromfile(self.path, section["dtype"], count, offset=section["offset"])

    def advise(self, advice, offset=0, size=None):
        start = (self.address + offset) & ~4095
        end = self.address + (self.size if size is None else offset + size)
        # Of a longer part the system may read no more than the beginning.
        piece = 1 << 17 if advice == WILL_NEED else end - start
        for at in range(start, end, piece):
            if libc.madvise(at, min(piece, end - at), advice) != 0:
                raise OSError(ctypes.get_errno(), "madvise")

    def drop(self, offset=0, size=0):
        self.advise(DONT_NEED, offset, size or None)
        os.posix_fadvise(self.file, offset, size, os.POSIX_FADV_DONTNEED)


def read_bytes():
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def from_disk(indexes, tests, lists, n_queries):
    """Milliseconds and bytes of one query without anything in memory; answers are compared."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        stored = {}
        for name, index in indexes.items():
            index.save(Path(folder) / name)
            stored[name] = Stored(Path(folder) / name)
            stored[name].index.search(tests, bucket_ids=lists, fill="none")  # checks all blocks
        plain, coded = stored["float32"], stored["int8"]
        vectors = coded.sections["vectors"]
        buckets, offsets = plain.array("buckets"), plain.array("offsets")
        row_size = 4 * tests.shape[1]
        seconds = {name: [] for name in ("float32", "float32 at once", "int8", "int8, codes there")}
        n_bytes = {name: [] for name in seconds}
        for i in range(n_queries):
            results = []
            row = int(np.searchsorted(buckets, lists[i, 0]))
            block = [int(offsets[row + k]) * row_size for k in (0, 1)]
            for name in seconds:
                one = coded if name.startswith("int8") else plain
                at_once = name == "float32 at once"
                if at_once:
                    one.advise(RANDOM)

                def search(one=one, at_once=at_once, block=block, i=i):
                    if at_once:
                        one.advise(WILL_NEED, block[0], block[1] - block[0])
                    where = lists[i : i + 1]
                    return one.index.search(tests[i : i + 1], bucket_ids=where, fill="none")

                if name == "int8, codes there":
                    coded.drop(vectors["offset"], vectors["bytes"])
                else:
                    one.drop()
                before = read_bytes()
                result, elapsed = timed(search)
                n_bytes[name].append(read_bytes() - before)
                seconds[name].append(elapsed)
                results.append(result)
                if at_once:
                    one.advise(0)
            if not all(same(results[0], other) for other in results):
                raise RuntimeError(f"query {i} has other results")
        size = {name: one.size for name, one in stored.items()}
    return {
        "bytes_stored": size,
        "ms": {name: [1000 * q for q in quartiles(s)] for name, s in seconds.items()},
        "bytes": {name: float(np.median(values)) for name, values in n_bytes.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rounds = 3 if quick else 11
    warmup()
    rows = []
    for name, dim, (vectors, labels, tests, test_labels) in data_sets(quick):
        shape = CodeShape(width=int(labels.max()) + 1, depth=1)
        plain = HashIndex.build(labels, vectors, shape=shape)
        coded = plain.copy()
        _, seconds = timed(lambda coded=coded: coded.set_first_pass("int8"))
        indexes = {"float32": plain, "int8": coded}
        lists = np.ascontiguousarray(test_labels[:, None], np.int64)
        for metric in ("euclidean", "inner_product"):
            for n in (1, len(tests)):  # one by one, and together
                for at in range(0, 200 if n == 1 else 1, n):
                    queries, where = tests[at : at + n], lists[at : at + n]
                    options = {"bucket_ids": where, "metric": metric, "fill": "none"}
                    a, b = (i.search(queries, **options) for i in indexes.values())
                    if not same(a, b):
                        raise RuntimeError(f"{name}, {dim}, {metric}: other results")
        left = count_survivors(vectors, labels, tests, test_labels)
        rows.append(
            {
                "data": name,
                "dim": dim,
                "items": len(vectors),
                "queries": len(tests),
                "candidates": float(a.candidates.mean()),
                "survivors": left,
                "encode_s": seconds,
                "memory": in_memory(indexes, tests, lists, rounds),
                "disk": from_disk(indexes, tests, lists, 10 if quick else 60),
                "cluster": in_cluster(plain, tests, lists, 10 if quick else 150, rounds),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    about = {
        "machine": machine(),
        "versions": versions("numpy", "numba", "redis"),
        "rounds": rounds,
    }
    result = {**about, "quick": quick, "rows": rows}
    if not quick:
        (RESULTS / "int8.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "int8.md").write_text(write_page(result))
    else:
        print(write_page(result))


if __name__ == "__main__":
    main()
