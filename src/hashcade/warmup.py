"""Compile all kernels in advance: most of the index in a second process, the rest in this one.

The compiler handles one function at a time per process, so two processes take little more than
half of the time. The result is cached on disk, once per installation.
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
    """Compile every kernel that is not cached, and return the time in seconds."""
    start = time.perf_counter()
    process = None
    command = [sys.executable, "-c", f"import {__name__} as w; w.without_gc(w.index.warmup)"]
    if None not in map(cache_folder, _PACKAGES):  # else its result would be lost
        with suppress(OSError):  # without it, the index is compiled below
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Nearest vectors first, for balance: the other process will find them in the cache.
    for compile_kernels in (_warm_nearest, codes.warmup, learn.warmup, store.warmup):
        without_gc(compile_kernels)
    if process is not None:
        process.wait()
    without_gc(index.warmup)
    return time.perf_counter() - start


def _warm_nearest() -> None:
    vectors = np.zeros((1, 1), np.float32)
    index.GroupedVectors(vectors, np.zeros(1, np.int64)).nearest(vectors, 1, 1)


def load_search_kernels() -> None:
    """Load the kernels of a search from the cache, or compile them."""
    index.warmup()
    learn.warmup()
    store.warmup()


def without_gc(function: Callable[[], None]) -> None:
    """Call a function without garbage collection, which takes an eighth of compilation time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        function()
    finally:
        if enabled:
            gc.enable()


@cache
def ensure_compiled() -> None:
    """Compile all kernels if they are not cached, as in a new installation; once per process."""
    if not all(map(is_compiled, _PACKAGES)):
        warmup()
