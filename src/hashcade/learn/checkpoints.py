"""What a run leaves on disk: checkpoints to resume from, and a log.

::

    run_dir/
        checkpoint-hash-00000350/    config.json + model.safetensors; only the newest is kept
        log.jsonl                    one record per validation

A checkpoint is renamed into place when it is whole, so a run may be killed at any moment.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashcade._io import replace_file, storage_errors
from hashcade.errors import ConfigError
from hashcade.learn.model import HashModel
from hashcade.learn.model_io import read_tensors, write_tensors

_KIND = "hashcade checkpoint"

Weights = dict[str, Tensor]


@dataclass
class StageState:
    """How far a stage is, apart from the tensors."""

    stage: str
    step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Run:
    """A run in a directory that has no other one, by its fingerprint; None: nothing is stored."""

    def __init__(self, path: Path | None, stages: list[str], fingerprint: dict[str, Any]) -> None:
        self.path, self._stages = path, stages
        self._fingerprint = json.loads(json.dumps(fingerprint))
        if path is not None:
            with storage_errors(f"cannot make {path}"):
                path.mkdir(parents=True, exist_ok=True)

    def restore(self) -> tuple[StageState, Weights] | None:
        """The newest checkpoint, or None at the beginning."""
        checkpoints = self._checkpoints()
        if not checkpoints:
            return None
        config, tensors = read_tensors(checkpoints[-1], kind=_KIND)
        stored, ours = config["fingerprint"], self._fingerprint
        for key in sorted(stored.keys() | ours.keys()):
            if stored.get(key) != ours.get(key):
                raise ConfigError(
                    f"{self.path} holds a run with {key}={stored.get(key)!r}, this one has "
                    f"{key}={ours.get(key)!r}",
                    hint="choose another run_dir, or remove that one",
                )
        state = StageState(**config["state"])
        self._cut_log(state)
        return state, tensors

    def save(self, state: StageState, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint, then remove the ones before it."""
        if self.path is None:
            return
        older = self._checkpoints()
        path = self.path / f"checkpoint-{state.stage}-{state.step:08d}"
        if path in older:  # a step has one outcome, which is stored already
            return
        config = {"state": vars(state), "fingerprint": self._fingerprint}
        write_tensors(path, config, tensors, kind=_KIND)
        for stale in (*older, *self.path.glob(".checkpoint-*")):  # or left by a killed run
            shutil.rmtree(stale, ignore_errors=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        if self.path is not None:
            with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _checkpoints(self) -> list[Path]:
        """Checkpoints from the oldest to the newest. Only whole ones have such a name."""
        paths: list[Path] = []
        if self.path is not None:
            for stage in self._stages:
                paths += sorted(self.path.glob(f"checkpoint-{stage}-*"))
        return paths

    def _cut_log(self, state: StageState) -> None:
        """Drop what was logged after the checkpoint: it will be logged again."""
        assert self.path is not None
        log, lines = self.path / "log.jsonl", []
        if not log.exists():
            return
        for line in log.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the line that was being written
                record = json.loads(line)
                at = (self._stages.index(record["stage"]), record["step"])
                if at <= (self._stages.index(state.stage), state.step):
                    lines.append(line + "\n")
        replace_file(log, "".join(lines))


def pack(model: HashModel, optimizer: torch.optim.Optimizer, best: Weights) -> Weights:
    """Weights, best weights and the optimizer's state, under one set of names."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items()}
    return tensors


def unpack(model: HashModel, optimizer: torch.optim.Optimizer, tensors: Weights) -> Weights:
    """Load what :func:`pack` made into model and optimizer; returns the best weights."""

    def part(prefix: str) -> Weights:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    model.load_state_dict(part("model/"))
    groups = optimizer.state_dict()["param_groups"]
    state = {i: part(f"optimizer/{i}/") for group in groups for i in group["params"]}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return part("best/")
