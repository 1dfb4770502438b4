"""What a run leaves on disk: checkpoints to go on from, and a log.

::

    run_dir/
        checkpoint-hash-00000350/    config.json + model.safetensors, the newest alone is kept
        log.jsonl                    one record per validation

A checkpoint is renamed into place when it is whole, so a run may be killed at any moment.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hashcade.errors import ConfigError, StorageError
from hashcade.learn._files import read_tensors, write_tensors

_KIND = "hashcade checkpoint"
_VERSION = 2


@dataclass
class Progress:
    """Where a stage stands, apart from the tensors."""

    stage: str
    step: int = 0
    best_step: int | None = None
    best_figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Run:
    """A run in a directory, or without one: then nothing is kept.

    Parameters
    ----------
    path
        The directory; made if missing.
    stages
        Names of the stages in their order.
    fingerprint
        Settings and data of the run. A directory with another one is refused.
    """

    def __init__(
        self, path: Path | None, stages: Sequence[str], fingerprint: Mapping[str, Any]
    ) -> None:
        self.path = path
        self._stages = list(stages)
        self._fingerprint = json.loads(json.dumps(fingerprint))
        if path is not None:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"cannot make {path}: {error.strerror or error}") from error

    def restore(self) -> tuple[Progress, dict[str, Tensor]] | None:
        """The newest checkpoint, or None at the beginning."""
        newest = self._checkpoints()
        if not newest:
            return None
        config, tensors = read_tensors(newest[-1], _KIND, (_VERSION,))
        there = config["fingerprint"]
        for key in sorted(there.keys() | self._fingerprint.keys()):
            here = self._fingerprint.get(key)
            if there.get(key) != here:
                raise ConfigError(
                    f"{self.path} holds a run with {key}={there.get(key)!r}, this one has "
                    f"{key}={here!r}: choose another run_dir, or remove that one"
                )
        progress = Progress(**config["progress"])
        self._cut_log(progress)
        return progress, tensors

    def save(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint, then remove the ones before it."""
        if self.path is None:
            return
        older = self._checkpoints()
        place = self.path / f"checkpoint-{progress.stage}-{progress.step:08d}"
        if place in older:  # a step has one outcome: it is there already
            return
        config = {"progress": vars(progress), "fingerprint": self._fingerprint}
        write_tensors(place, _KIND, _VERSION, config, tensors)
        for path in older:
            if path != place:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.path.glob(".checkpoint-*"):  # left by a run that was killed
            shutil.rmtree(path, ignore_errors=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        if self.path is not None:
            with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _checkpoints(self) -> list[Path]:
        """Checkpoints from the oldest to the newest. Only whole ones have such a name."""
        if self.path is None:
            return []
        found = []
        for path in self.path.glob("checkpoint-*-*"):
            _, stage, step = path.name.split("-")
            if stage in self._stages:
                found.append((self._stages.index(stage), int(step), path))
        return [path for _, _, path in sorted(found)]

    def _cut_log(self, progress: Progress) -> None:
        """Drop what was logged after the checkpoint: it will be logged again."""
        if self.path is None or not (self.path / "log.jsonl").exists():
            return
        log = self.path / "log.jsonl"
        kept = []
        for line in log.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the line that was being written
                continue
            at = (self._stages.index(record["stage"]), record["step"])
            if at <= (self._stages.index(progress.stage), progress.step):
                kept.append(line + "\n")
        new = log.with_name(".log.jsonl.new")
        new.write_text("".join(kept), encoding="utf-8")
        new.replace(log)
