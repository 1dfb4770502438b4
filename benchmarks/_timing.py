"""What every benchmark needs around a measurement: clocks, quartiles, progress, the machine."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")
Key = TypeVar("Key")

# ------------------------------------------------------------------------------------ clocks


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """Result of a call, and its seconds. Garbage is not collected meanwhile (as in timeit)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
    finally:
        if was_enabled:
            gc.enable()
    return result, seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    first, median, third = np.quantile(values, [0.25, 0.5, 0.75])
    return float(first), float(median), float(third)


def interleaved(calls: Mapping[Key, Callable[[], object]], rounds: int) -> dict[Key, list[float]]:
    """Seconds of calls, ``rounds`` times each: all of them once, then all of them again.

    So what else the machine does falls on all alike. A first round is not counted.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for number in range(rounds + 1):
        for key, call in calls.items():
            _, elapsed = timed(call)
            if number > 0:
                seconds[key].append(elapsed)
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of ours over theirs, round by round."""
    return quartiles(np.divide(ours, theirs).tolist())


def run_python(code: str) -> tuple[str, float]:
    """Output of ``code`` in a fresh interpreter, and the seconds of the whole process."""
    command = [sys.executable, "-c", code]
    done, seconds = timed(
        lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    )
    return done.stdout, seconds


def import_seconds(module: str, repetitions: int = 9) -> float:
    """What ``import module`` adds to a bare interpreter: the median over pairs of processes."""
    run_python(f"import {module}")  # byte code is compiled once
    extra = []
    for _ in range(repetitions):
        _, bare = run_python("pass")
        _, loaded = run_python(f"import {module}")
        extra.append(loaded - bare)
    return statistics.median(extra)


# ---------------------------------------------------------------------------------- progress


def say(*words: object) -> None:
    """Print a line to stderr, where results are not."""
    print(*words, file=sys.stderr, flush=True)


class Progress:
    """Steps done and time left, on stderr. ``weights`` are the expected costs of the steps."""

    def __init__(self, weights: Sequence[float], what: str) -> None:
        self._weights = list(weights)
        self._what = what
        self._done = 0
        self._start = self._shown = time.perf_counter()
        self._is_terminal = sys.stderr.isatty()

    def step(self) -> None:
        """Count one step as done."""
        self._done += 1
        now = time.perf_counter()
        is_last = self._done == len(self._weights)
        if not is_last and now - self._shown < (0.2 if self._is_terminal else 10.0):
            return
        self._shown = now
        done = sum(self._weights[: self._done])
        left = (now - self._start) / done * sum(self._weights[self._done :])
        text = f"{self._done} / {len(self._weights)} {self._what}, about {left:.0f} s left"
        if self._is_terminal:
            print(f"\r{text}\033[K", end="\n" if is_last else "", file=sys.stderr, flush=True)
        else:
            say(text)


# --------------------------------------------------------------------------------- machinery


def machine() -> dict[str, str | int | None]:
    """Processor, cores and system: what times depend on, and nothing that names the machine."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of installed packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


# ------------------------------------------------------------------------------------ pages


def heading(title: str, target: str, about: Mapping[str, Any]) -> list[str]:
    """The first lines of a page: its title, what wrote it, and on which machine."""
    packages = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    quick = ["**A quick run, to see that it works: the numbers mean nothing.**", ""]
    return [
        f"# {title}",
        "",
        f"Written by `make {target}`. {about['machine']['cpu']}; {packages}. One thread;"
        f" medians with quartiles, of {about['rounds']} rounds in which all methods take turns.",
        "",
        *quick * about["quick"],
    ]
