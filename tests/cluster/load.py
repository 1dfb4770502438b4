"""Threads that read and check every answer while something happens to the servers."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np

# Prints the longest time by which a short sleep was overrun until its input was closed.
_MEASURE_STALLS = """
import sys, threading, time
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
longest = 0.0
while not ended.is_set():
    began = time.perf_counter()
    time.sleep(0.005)
    longest = max(longest, time.perf_counter() - began - 0.005)
print(longest)
"""


class Load:
    """Readers of random keys whose values are known."""

    def __init__(self, reader, values, keys_per_read=4):
        self._reader, self._values, self._keys_per_read = reader, values, keys_per_read
        self._stop = threading.Event()
        self.reads, self.errors, self.wrong, self.longest = 0, [], 0, 0.0
        self.stalled = 0.0  # how long the machine itself stood still: a process that only sleeps
        self._lock = threading.Lock()

    def _run(self, seed):
        names = list(self._values)
        random = np.random.default_rng(seed)
        reads, wrong, longest, errors = 0, 0, 0.0, []
        while not self._stop.is_set():
            keys = [names[i] for i in random.integers(len(names), size=self._keys_per_read)]
            began = time.perf_counter()
            try:
                values = self._reader.get_many(keys)
            except Exception as error:  # whatever it is, it is counted
                errors.append(error)
            else:
                wrong += values != [self._values[key] for key in keys]
            longest = max(longest, time.perf_counter() - began)
            reads += 1
            time.sleep(0.001)  # two cores also run the servers
        with self._lock:
            self.reads += reads
            self.wrong += wrong
            self.errors += errors
            self.longest = max(self.longest, longest)

    @contextmanager
    def running(self, threads=4):
        workers = [threading.Thread(target=self._run, args=(seed,)) for seed in range(threads)]
        command = [sys.executable, "-c", _MEASURE_STALLS]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as sleeper:
            for worker in workers:
                worker.start()
            try:
                yield self
            finally:
                self._stop.set()
                for worker in workers:
                    worker.join()
                self.stalled = float(sleeper.communicate(timeout=60)[0])

    def check(self, longest=None):
        assert self.errors == [], self.errors[:3]
        assert self.wrong == 0
        assert self.reads > 100
        if longest is not None:
            took = f"the longest answer took {self.longest:.3f} s, stalled {self.stalled:.3f} s"
            assert self.longest < longest + self.stalled, took


def fill(reader, n=300, size=2000):
    """Values under keys of all slots: (key, value) pairs as a dict."""
    random = np.random.default_rng(0)
    values = {f"hashcade:{{load/{i}}}:b": random.bytes(size) for i in range(n)}
    reader.pipeline([("SET", key, value) for key, value in values.items()])
    return values
