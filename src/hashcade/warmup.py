"""Compile all kernels beforehand: most of the index in a second process, the others here.

The compiler works on one function at a time in a process, so two processes need little more than
half of the time. What they compile is cached on disk, once per installation.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from hashcade import codes, index, learn, store
from hashcade._kernels import cache_folder, is_compiled

__all__ = ["ensure_compiled", "load_search_kernels", "warmup"]

_PACKAGES = [Path(package.__path__[0]) for package in (codes, index, learn, store)]


def warmup() -> float:
    """Compile every kernel that is not cached, and return the seconds that it took."""
    start = time.perf_counter()
    other = None
    command = [sys.executable, "-c", f"import {__name__} as w; w.without_gc(w.index.warmup)"]
    if None not in map(cache_folder, _PACKAGES):  # else nothing would come back from it
        with suppress(OSError):  # no second process: the index is compiled after the codes
            other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # The nearest vectors first, for balance: the other process finds them in the cache at its end.
    for compile_kernels in (_warm_nearest, codes.warmup, learn.warmup, store.warmup):
        without_gc(compile_kernels)
    if other is not None:
        other.wait()
    without_gc(index.warmup)
    return time.perf_counter() - start


def _warm_nearest() -> None:
    vectors = np.zeros((1, 1), np.float32)
    index.GroupedVectors(vectors, np.zeros(1, np.int64)).nearest(vectors, 1, 1)


def load_search_kernels() -> None:
    """Load what a search needs from the cache, or compile it."""
    index.warmup()
    learn.warmup()
    store.warmup()


def without_gc(function: Callable[[], None]) -> None:
    """Call a function without garbage collection: an eighth of the time that the compiler takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        function()
    finally:
        if enabled:
            gc.enable()


@cache
def ensure_compiled() -> None:
    """Compile every kernel if none is cached, as in a new installation; once per process."""
    if not all(map(is_compiled, _PACKAGES)):
        warmup()
