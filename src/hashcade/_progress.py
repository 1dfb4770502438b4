"""The one progress display, on stderr: a line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BAR = 20
_SECONDS_BETWEEN = 0.2


class Progress:
    """Says how far a piece of work is, with its total and the time left.

    Parameters
    ----------
    verbose
        Whether to say anything; None: if stderr is a terminal.
    """

    def __init__(self, verbose: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty()
        self._on = self._terminal if verbose is None else bool(verbose)
        self._shown = 0.0
        self._start: tuple[str, int, float] | None = None  # task, its first count, and when

    @property
    def on(self) -> bool:
        """Whether anything is said."""
        return self._on

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._on:
            clear = "\r\033[K" if self._terminal else ""
            print(f"{clear}{text}", file=sys.stderr, flush=True)

    def update(self, task: str, done: int, total: int, note: str = "") -> None:
        """Show the changing line, a few times a second, on a terminal alone."""
        now = time.monotonic()
        if self._start is None or self._start[0] != task or done < self._start[1]:
            self._start = (task, done, now)
        if not (self._on and self._terminal) or now - self._shown < _SECONDS_BETWEEN:
            return
        self._shown = now
        filled = int(_BAR * done / max(total, 1))
        bar = "█" * filled + "░" * (_BAR - filled)
        parts = [f"{task} {bar} {done:,}/{total:,}", note, self._time_left(done, total, now)]
        line = "  ".join(part for part in parts if part)
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the changing line."""
        if self._on and self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _time_left(self, done: int, total: int, now: float) -> str:
        assert self._start is not None
        _, first, since = self._start
        if done <= first:
            return ""
        return f"{duration((now - since) / (done - first) * (total - done))} left"


@contextmanager
def progress_bar(task: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Give a function of (done, total) that moves a bar; the bar is gone afterwards."""
    display = Progress(False if quiet else None)
    try:
        yield lambda done, total: display.update(task, done, total)
    finally:
        display.clear()


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2 h 05 min``.

    Examples
    --------
    >>> duration(44.6), duration(720), duration(7500)
    ('45 s', '12 min', '2 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
