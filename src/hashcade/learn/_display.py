"""The progress of a run, on stderr: one line that changes on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping


class Display:
    """Says where training stands.

    Parameters
    ----------
    verbose
        Whether to say anything; None: if stderr is a terminal.
    """

    def __init__(self, verbose: bool | None) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._on = self._is_terminal if verbose is None else bool(verbose)
        self._shown = 0.0
        self._began: tuple[str, int, float] | None = None  # stage, first step seen, and when

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._on:
            clear = "\r\033[K" if self._is_terminal else ""
            print(f"{clear}{text}", file=sys.stderr, flush=True)

    def step(self, stage: str, step: int, steps: int, loss: float, items_per_second: float) -> None:
        """Show the changing line, a few times a second."""
        now = time.monotonic()
        if not (self._on and self._is_terminal) or now - self._shown < 0.2:
            return
        self._shown = now
        done = int(20 * step / steps)
        bar = "█" * done + "░" * (20 - done)
        text = f"{stage} {bar} {step:,}/{steps:,}  loss {loss:.3f}  {items_per_second:,.0f} items/s"
        left = self._time_left(stage, step, steps, now)
        print(f"\r{text}{left}\033[K", end="", file=sys.stderr, flush=True)

    def _time_left(self, stage: str, step: int, steps: int, now: float) -> str:
        """How long the stage will go on at its pace so far, validations included."""
        if self._began is None or self._began[0] != stage:
            self._began = (stage, step, now)
        _, first, since = self._began
        if step == first:
            return ""
        seconds = round((now - since) / (step - first) * (steps - step))
        return f"  {seconds // 60}:{seconds % 60:02d} left"

    def validation(self, record: Mapping[str, object]) -> None:
        """Print the figures of a validation."""
        parts = [f"{record['stage']} {record['step']:,}", f"loss {record['loss']:.3f}"]
        if "precision_at_1" in record:
            parts.append(f"Pr@1 {record['precision_at_1']:.1f}")
        if "speedup_factor" in record:
            parts.append(f"SUF {record['speedup_factor']:.1f}")
            parts.append(f"NMI {record['bucket_nmi']:.1f}")
        parts.append(f"{record['items_per_second']:,.0f} items/s")
        parts.append(f"solver {100 * float(str(record['solver_share'])):.0f} %")
        self.say("  ".join(parts))
