"""Clients of the benchmark, each in its own process."""

from __future__ import annotations

import http.client
import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _service_process import ServiceProcess

from hashcade import HashTable
from hashcade.index import Encoded
from hashcade.serve import Client, ServiceError

CLIENTS = 2
# Calls of one kind that follow each other, how many of them are not counted, seconds before them.
# In use: a client sends one batch after the other. After a pause: processors have gone to sleep,
# and every process that is woken waits for one, in a virtual machine for some 50 us.
RHYTHMS = {"in use": (50, 10, 0.0), "after a pause": (11, 1, 0.05)}
# Share of each kind of request; the reads are of different sizes, as they are in life.
MIX = {
    "search 1": 0.70,
    "search 16": 0.17,
    "search 64": 0.05,
    "search by item": 0.07,
    "write": 0.01,
}
_SPAWN = multiprocessing.get_context("spawn")
_GONE = (OSError, http.client.HTTPException)


def _queries(rng: np.random.Generator, centres: np.ndarray, n: int) -> tuple[Any, Any]:
    buckets = rng.integers(0, len(centres), n)
    vectors = centres[buckets] + rng.standard_normal((n, centres.shape[1]), dtype=np.float32)
    return vectors.astype(np.float32), buckets[:, None]


# -- load -----------------------------------------------------------------------------------------


def load(url: str, centres: np.ndarray, seconds: float) -> dict[str, Any]:
    """Let clients ask for a time, and put their numbers together."""
    begin = _SPAWN.Barrier(CLIENTS)
    results = _SPAWN.Queue()
    workers = [
        _SPAWN.Process(target=_ask, args=(url, centres, seconds, seed, begin, results))
        for seed in range(CLIENTS)
    ]
    for worker in workers:
        worker.start()
    answers = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    times: dict[str, list[float]] = {kind: [] for kind in MIX}
    errors: dict[str, int] = {}
    for part in answers:
        for kind in MIX:
            times[kind] += part["times"][kind]
        for name, count in part["errors"].items():
            errors[name] = errors.get(name, 0) + count
    every = [value for kind in MIX for value in times[kind]]
    wall = max(part["wall"] for part in answers)
    queries = sum(len(times[f"search {n}"]) * n for n in (1, 16, 64)) + len(times["search by item"])
    return {
        "seconds": wall,
        "requests_per_second": len(every) / wall,
        "queries_per_second": queries / wall,
        "refused": sum(part["refused"] for part in answers),
        "errors": errors,
        "kinds": {
            kind: _percentiles(values, len(every))
            for kind, values in [("all", every), *times.items()]
            if values
        },
    }


def _percentiles(values: list[float], n: int) -> dict[str, float]:
    p50, p95, p99 = np.percentile(np.array(values) * 1e3, [50, 95, 99]).tolist()
    return {"share": len(values) / n, "count": len(values), "p50": p50, "p95": p95, "p99": p99}


def _ask(
    url: str, centres: np.ndarray, seconds: float, seed: int, begin: Any, results: Any
) -> None:
    rng, dice = np.random.default_rng(seed), random.Random(seed)
    times: dict[str, list[float]] = {kind: [] for kind in MIX}
    errors: dict[str, int] = {}
    refused, mine = 0, []
    kinds, shares = list(MIX), list(MIX.values())
    with Client(url) as client:
        vectors, buckets = _queries(rng, centres, 1)
        client.search(vectors, bucket_ids=buckets)
        begin.wait()
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            kind = dice.choices(kinds, shares)[0]
            vectors, buckets = _queries(
                rng, centres, int(kind.split()[-1]) if kind[-1].isdigit() else 1
            )
            sent = time.perf_counter()
            try:
                if kind == "write" and len(mine) > 20:
                    client.remove([mine.pop(0)])
                elif kind == "write":
                    mine += client.add(vectors, bucket_ids=buckets, labels=buckets[:, 0].tolist())
                elif kind == "search by item":
                    client.json("GET", f"/v1/search/item/{dice.randrange(50_000)}")
                else:
                    client.search(vectors, bucket_ids=buckets)
                times[kind].append(time.perf_counter() - sent)
            except ServiceError as error:
                if error.status == 429:
                    refused += 1
                    time.sleep(error.retry_after or 1.0)
                else:
                    errors[str(error)] = errors.get(str(error), 0) + 1
            except _GONE as error:
                errors[repr(error)] = errors.get(repr(error), 0) + 1
        wall = time.perf_counter() - start
    results.put({"times": times, "errors": errors, "refused": refused, "wall": wall})


# -- one batch against the library ----------------------------------------------------------------


def ratios(
    url: str, place: Path, centres: np.ndarray, repeats: int, rhythm: str
) -> dict[str, float]:
    """Time the library, the service with binary arrays, and the service with JSON, in turn."""
    block_size, n_uncounted, rest = RHYTHMS[rhythm]
    n_counted = block_size - n_uncounted
    table = HashTable.load(place)
    rng = np.random.default_rng(1)
    with Client(url) as client:
        ways: dict[str, Callable[[np.ndarray, np.ndarray, Any], Any]] = {
            "library": lambda vectors, buckets, _: table.search(_given(vectors, buckets)),
            "service": lambda vectors, buckets, _: client.search(vectors, bucket_ids=buckets),
            "json": lambda _, __, body: client.json("POST", "/v1/search", body),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for block in range(-(-repeats // n_counted) + 1):
            queries = [_queries(rng, centres, 64) for _ in range(block_size)]
            bodies = [{"vectors": v.tolist(), "bucket_ids": b.tolist()} for v, b in queries]
            for name, ask in ways.items():
                time.sleep(rest)
                for number, (asked, body) in enumerate(zip(queries, bodies, strict=True)):
                    start = time.perf_counter()
                    ask(*asked, body)
                    spent = time.perf_counter() - start
                    if number >= n_uncounted and block > 0:  # the first block finds cold memory
                        times[name].append(spent)
            vectors, buckets = queries[0]
            answers = client.search(vectors, bucket_ids=buckets)
            expected = table.search(_given(vectors, buckets))
            assert np.array_equal(answers.ids, expected.ids)
    library, service, as_json = (float(np.median(times[name])) for name in times)
    by_block = {name: np.reshape(times[name], (-1, n_counted)) for name in ("library", "service")}
    of_blocks = np.median(by_block["service"], axis=1) / np.median(by_block["library"], axis=1)
    low, high = np.percentile(of_blocks, [25, 75]).tolist()
    return {
        "library_ms": library * 1e3,
        "service_ms": service * 1e3,
        "json_ms": as_json * 1e3,
        "ratio": service / library,
        "ratio_quartiles": [low, high],
        "json_ratio": as_json / library,
        "repeats": len(times["library"]),
    }


def _given(vectors: np.ndarray, buckets: np.ndarray) -> Encoded:
    return Encoded(vectors, buckets, None, by_path=False)


# -- kill -9 --------------------------------------------------------------------------------------


def acknowledged_rounds(place: Path, centres: np.ndarray, log: Path, rounds: int) -> dict[str, Any]:
    """Kill the service in the middle of writes, and look for what was acknowledged."""
    dice = random.Random(0)
    n_acknowledged, lost, checked = 0, 0, []
    for number in range(rounds):
        service = ServiceProcess(place, log, fold_seconds=0.5)
        lost += _missing(service.url, checked)
        results = _SPAWN.Queue()
        workers = [
            _SPAWN.Process(target=_write, args=(service.url, centres, 2 * number + k, results))
            for k in range(CLIENTS)
        ]
        for worker in workers:
            worker.start()
        for _ in workers:  # both have had a first write acknowledged
            results.get()
        time.sleep(dice.uniform(0.05, 1.5))
        service.stop(signal.SIGKILL)
        notes = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
        checked = [entry for note in notes for entry in note.items()]
        n_acknowledged += len(checked)
    with ServiceProcess(place, log) as service:
        lost += _missing(service.url, checked)
    HashTable.load(place).index.verify()
    return {"rounds": rounds, "acknowledged": n_acknowledged, "lost": lost}


def _write(url: str, centres: np.ndarray, seed: int, results: Any) -> None:
    """Write and search until the service is gone; tell what was acknowledged.

    A value is the first number of the vector, or None for what was removed. A change that was
    sent and not acknowledged may have been made or not, and is left out.
    """
    rng = np.random.default_rng(seed)
    first_id = 10_000_000 + 1_000_000 * seed
    note: dict[int, float | None] = {}
    doubtful = None
    try:
        with Client(url) as client:
            for number in range(1_000_000):
                vectors, buckets = _queries(rng, centres, 1)
                item = first_id + number
                doubtful = item
                client.add(vectors, bucket_ids=buckets, ids=[item], labels=buckets[:, 0].tolist())
                note[item] = float(vectors[0, 0])
                if number == 0:
                    results.put("begun")
                if number % 4 == 3:
                    doubtful = item - 1
                    client.remove([item - 1])
                    note[item - 1] = None
                client.search(vectors, bucket_ids=buckets)
                doubtful = None
    except (*_GONE, ServiceError):
        pass
    note.pop(doubtful, None)  # type: ignore[arg-type]
    results.put(note)


def _missing(url: str, checked: list[tuple[int, float | None]]) -> int:
    lost = 0
    with Client(url) as client:
        for item, value in checked:
            try:
                found = client.json("GET", f"/v1/items/{item}?vector=true")["vector"][0]
            except ServiceError as error:
                if error.status != 404:
                    raise
                found = None
            lost += found != value
    return lost
