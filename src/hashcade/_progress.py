"""Progress on stderr: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BAR = 20
_UPDATE_SECONDS = 0.2


class Progress:
    """A progress bar with the total and the estimated time left.

    Parameters
    ----------
    verbose
        Whether to print anything; None: if stderr is a terminal. ``on`` is the outcome.
    """

    def __init__(self, verbose: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty()
        self.on = self._terminal if verbose is None else bool(verbose)
        self._last_update = 0.0
        self._start: tuple[str, int, float] | None = None  # task, its first count, time

    def say(self, text: str) -> None:
        """Print a permanent line."""
        if self.on:
            clear = "\r\033[K" if self._terminal else ""
            print(f"{clear}{text}", file=sys.stderr, flush=True)

    def update(self, task: str, done: int, total: int, note: str = "") -> None:
        """Update the progress bar, a few times a second; only on a terminal."""
        now = time.monotonic()
        if self._start is None or self._start[0] != task or done < self._start[1]:
            self._start = (task, done, now)
        if not (self.on and self._terminal) or now - self._last_update < _UPDATE_SECONDS:
            return
        self._last_update = now
        filled = int(_BAR * done / max(total, 1))
        bar = "█" * filled + "░" * (_BAR - filled)
        parts = [f"{task} {bar} {done:,}/{total:,}", note, self._time_left(done, total, now)]
        line = "  ".join(part for part in parts if part)
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the progress bar."""
        if self.on and self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _time_left(self, done: int, total: int, now: float) -> str:
        assert self._start is not None
        _, first, since = self._start
        if done <= first:
            return ""
        return f"{duration((now - since) / (done - first) * (total - done))} left"


@contextmanager
def progress_bar(task: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, total) that updates a progress bar, removed at the end."""
    display = Progress(False if quiet else None)
    try:
        yield lambda done, total: display.update(task, done, total)
    finally:
        display.clear()


def duration(seconds: float) -> str:
    """Format a duration: ``45 s``, ``12 min``, ``2 h 05 min``.

    Examples
    --------
    >>> duration(44.6), duration(720), duration(7500)
    ('45 s', '12 min', '2 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
