"""Stored results: what was measured, with which settings, and in what time.

The rows of an experiment and preset are the lines of one file, JSON each. New rows are appended; of
several rows with the same key the last one counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashcade.errors import DataError, StorageError

FORMAT_VERSION = 2


@dataclass(frozen=True, order=True, kw_only=True)
class RowKey:
    """What a row is about."""

    experiment: str
    preset: str
    method: str
    loss: str
    sparsity: int  # 0 for exhaustive search
    database: str  # what the table was built on: "test", "train", "val"
    variant: str = ""  # what differs from the row of the paper's table: "n_probe=4"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One measured row."""

    key: RowKey
    settings: Mapping[str, Any]  # all that the metrics depend on, as plain values
    metrics: Mapping[str, float]  # suf, suf_16, pr_1, nmi, ...; in percent where they are shares
    details: Mapping[str, Any] = field(default_factory=dict)  # plain values for plots and texts
    seconds: Mapping[str, float] = field(default_factory=dict)  # by part: "train", "evaluate"
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Tells whether a stored row was measured with the present settings."""
        return fingerprint(self.settings)

    def to_json(self) -> str:
        """The row as one line, without the line break."""
        content = {
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            **asdict(self.key),
            "metrics": dict(self.metrics),
            "seconds": dict(self.seconds),
            "settings": dict(self.settings),
            "details": dict(self.details),
            "versions": dict(self.versions),
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, source: str) -> ResultRow:
        """Read what :meth:`to_json` wrote; ``source`` names it in messages.

        A row that was changed by hand is a ``DataError``: metrics must not lose their settings.
        """
        try:
            content = json.loads(text)
            version = content["format_version"]
            if version != FORMAT_VERSION:
                raise DataError(f"{source} has format version {version}, must be {FORMAT_VERSION}")
            key = RowKey(**{name: content[name] for name in RowKey.__dataclass_fields__})
            metrics = {name: float(value) for name, value in content["metrics"].items()}
            row = cls(
                key=key,
                settings=content["settings"],
                metrics=metrics,
                details=content["details"],
                seconds=content["seconds"],
                versions=content["versions"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{source} is not a stored result: {error!r}") from None
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if bad:
            raise DataError(f"{source}: {', '.join(bad)} must be finite")
        if content.get("fingerprint") != row.fingerprint:
            raise DataError(
                f"{source} has fingerprint {content.get('fingerprint')}, its settings have "
                f"{row.fingerprint}"
            )
        return row


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A digest of plain settings; the order of names does not matter."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowFile:
    """The rows of an experiment and preset.

    Several processes may append to one file. A process that dies while it appends leaves an
    incomplete last line, which readers skip and the next append removes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[ResultRow]:
        """All rows, in the order of their keys."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text("utf-8", errors="replace").split("\n")[:-1]  # complete ones
        rows = {}
        for number, line in enumerate(lines, start=1):
            row = ResultRow.from_json(line, f"{self.path} line {number}")
            rows[row.key] = row
        return [rows[key] for key in sorted(rows)]

    def append(self, row: ResultRow) -> None:
        """Add a row, which takes the place of an older one with its key."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.write(row.to_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def mean_metric(
    rows: Iterable[ResultRow], method: str, loss: str, sparsity: int, database: str, metric: str
) -> float | None:
    """Mean over the seeds of a metric of the tables; None without a row."""
    place = (method, loss, sparsity, database, "")
    values = [
        row.metrics[metric]
        for row in rows
        if (row.key.method, row.key.loss, row.key.sparsity, row.key.database, row.key.variant)
        == place
        and metric in row.metrics
    ]
    return statistics.fmean(values) if values else None
