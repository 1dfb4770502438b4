"""Stored models, and the checkpoints and log of a run. Pickle is never used.

Models and checkpoints are directories of ``config.json`` and ``model.safetensors``, which are
renamed into place when complete, so a run may be killed at any moment. A ``run_dir`` holds the last
checkpoint, such as ``checkpoint-hash-00000350``, ``log.jsonl``, with a record per validation, and
``log.svg``, a plot of it. Importing this module does not import safetensors; torch is only needed
for checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hashcade._io import (
    new_directory,
    read_file,
    replace_file,
    restore_directory,
    storage_errors,
    write_file,
)
from hashcade.errors import ConfigError, CorruptIndexError, IncompatibleFormatError, StorageError
from hashcade.learn.log_plot import log_plot

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from hashcade.learn.model import HashModel

Array = npt.NDArray[Any]

VERSION = 7
MODEL_FILES = ("config.json", "model.safetensors", "card.json", "README.md", "features.onnx")
MODEL, CHECKPOINT = "hashcade model", "hashcade checkpoint"  # what a directory holds


def read_config(path: str | os.PathLike[str], *, kind: str = MODEL) -> dict[str, Any]:
    """Read ``config.json`` of a stored model, without the weights.

    It has ``settings`` as the user gave them, ``resolved`` as ``ResolvedConfig.to_json`` writes
    it, ``classes``, ``validation``, ``tuned``, ``hashcade_version``, ``model_sha256``, ...
    """
    config_path = Path(path) / "config.json"
    with storage_errors(f"cannot read {path}"):
        restore_directory(Path(path))
    try:
        config = json.loads(_read(config_path, kind))
    except (ValueError, RecursionError) as error:
        raise damaged(config_path, str(error)) from None
    actual = config.get("kind") if isinstance(config, dict) else None
    if actual != kind:
        raise StorageError(f"{path} holds {actual!r}, must be a {kind}")
    version = config.get("format_version")
    if version != VERSION:
        message = f"{path} has format version {version}, this package reads version {VERSION}"
        raise IncompatibleFormatError(message, hint="make it again with this version of hashcade")
    return config  # type: ignore[no-any-return]


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Digest that identifies a stored model, by the checksum of its weights and its config."""
    config = read_config(path)
    try:
        parts = {name: config[name] for name in ("model_sha256", "resolved")}
    except KeyError as error:
        raise damaged(Path(path) / "config.json", f"{error} is missing") from None
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def copy_model(source: Path, target: Path) -> None:
    """Copy a stored model, with its card and feature network, but no other files."""
    for name in MODEL_FILES:
        if (source / name).is_file():
            replace_file(target / name, read_file(source / name))


def write_tensors(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Array], *, kind: str = MODEL,
    extra_files: Mapping[str, bytes] | None = None,
) -> None:  # fmt: skip
    """Write a directory atomically; one of the same kind is replaced, no other.

    ``extra_files`` are the content of further files, by name.
    """
    import safetensors.numpy

    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        try:
            actual = json.loads(read_file(path / "config.json")).get("kind")
        except (StorageError, ValueError, AttributeError, RecursionError):
            actual = None
        if actual != kind:
            hint = "choose another path, or remove it"
            raise StorageError(f"{path} exists and is not a {kind}", hint=hint)
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    blob = safetensors.numpy.save(arrays)
    header: dict[str, Any] = {"kind": kind, "format_version": VERSION}
    header |= {"model_bytes": len(blob), "model_sha256": hashlib.sha256(blob).hexdigest()}

    def plain(value: object) -> object:  # other settings: numpy numbers, a device
        return value.item() if isinstance(value, np.generic) else str(value)

    text = json.dumps({**header, **config}, indent=1, ensure_ascii=False, default=plain) + "\n"
    with new_directory(path) as directory:
        write_file(directory / "model.safetensors", [blob])
        write_file(directory / "config.json", [text.encode()])
        for name, content in (extra_files or {}).items():
            write_file(directory / name, [content])


def read_tensors(path: Path, *, kind: str = MODEL) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read a directory of :func:`write_tensors`."""
    import safetensors.numpy

    config, tensor_path = read_config(path, kind=kind), path / "model.safetensors"
    blob, expected = _read(tensor_path, kind), config.get("model_bytes")
    if len(blob) != expected:
        raise damaged(tensor_path, f"it has {len(blob)} bytes, must have {expected}")
    if hashlib.sha256(blob).hexdigest() != config.get("model_sha256"):
        raise damaged(tensor_path, "its checksum is wrong")
    try:
        tensors = safetensors.numpy.load(blob)
        for name, array in tensors.items() if kind == MODEL else ():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite numbers")
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(tensor_path, str(error)) from None
    return config, tensors


def damaged(path: Path, reason: str) -> CorruptIndexError:
    """The error for a damaged file."""
    return CorruptIndexError(f"{path} is damaged: {reason}")


def _read(path: Path, kind: str) -> bytes:
    if not path.parent.exists():
        raise StorageError(f"{path.parent} does not exist", hint="check the path")
    if not path.exists():
        hint = "make a model with: hashcade train DATA -o MODEL" if kind == MODEL else None
        raise StorageError(f"{path.parent} is not a {kind}: {path.name} is missing", hint=hint)
    return read_file(path)


# -- runs ----------------------------------------------------------------------------------------


@dataclass
class StageState:
    """Progress of a stage, without the tensors."""

    stage: str
    step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Run:
    """A run, identified by its fingerprint, in a separate directory; None: not stored."""

    def __init__(self, path: Path | None, stages: list[str], fingerprint: dict[str, Any]) -> None:
        self.path, self._stages = path, stages
        self._fingerprint = json.loads(json.dumps(fingerprint))
        if path is not None:
            with storage_errors(f"cannot make {path}"):
                path.mkdir(parents=True, exist_ok=True)

    def restore(self) -> tuple[StageState, dict[str, Array]] | None:
        """The last checkpoint, or None if there is none."""
        checkpoints = self._checkpoints()
        if not checkpoints:
            return None
        config, tensors = read_tensors(checkpoints[-1], kind=CHECKPOINT)
        old_fingerprint, new_fingerprint = config["fingerprint"], self._fingerprint
        for key in sorted(old_fingerprint.keys() | new_fingerprint.keys()):
            old, new = old_fingerprint.get(key), new_fingerprint.get(key)
            if old != new:
                message = f"{self.path} holds a run with {key}={old!r}, this one has {key}={new!r}"
                raise ConfigError(message, hint="choose another run_dir, or remove that one")
        state, lines = StageState(**config["state"]), []
        log_path = checkpoints[-1].with_name("log.jsonl")
        if log_path.exists():  # drop records after the checkpoint: they will be logged again
            for line in log_path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # an incomplete line
                    record = json.loads(line)
                    position = (self._stages.index(record["stage"]), record["step"])
                    if position <= (self._stages.index(state.stage), state.step):
                        lines.append(line + "\n")
            replace_file(log_path, "".join(lines))
        return state, tensors

    def save(self, state: StageState, tensors: Mapping[str, Array]) -> None:
        """Write a checkpoint, then remove the previous ones."""
        if self.path is None:
            return
        previous = self._checkpoints()
        path = self.path / f"checkpoint-{state.stage}-{state.step:08d}"
        if path in previous:  # steps are deterministic: it is stored already
            return
        config = {"state": vars(state), "fingerprint": self._fingerprint}
        write_tensors(path, config, tensors, kind=CHECKPOINT)
        for stale in (*previous, *self.path.glob(".checkpoint-*")):  # and those of a killed run
            shutil.rmtree(stale, ignore_errors=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to the log, and update the plot."""
        if self.path is not None:
            log = self.path / "log.jsonl"
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            lines = log.read_text(encoding="utf-8").splitlines()
            replace_file(self.path / "log.svg", log_plot([json.loads(line) for line in lines]))

    def _checkpoints(self) -> list[Path]:
        """Checkpoints from the first to the last. Only complete ones have such a name."""
        if self.path is None:
            return []
        return [p for s in self._stages for p in sorted(self.path.glob(f"checkpoint-{s}-*"))]


def pack(
    model: HashModel, optimizers: Sequence[Optimizer], best: dict[str, Tensor]
) -> dict[str, Array]:
    """Weights, best weights and states of the optimizers, in one dict of arrays."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    for number, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            prefix = f"optimizer/{number}/{index}/"
            tensors |= {f"{prefix}{key}": value for key, value in state.items()}
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}


def unpack(
    model: HashModel, optimizers: Sequence[Optimizer], arrays: dict[str, Array]
) -> dict[str, Tensor]:
    """Load the arrays of :func:`pack` into model and optimizers; return the best weights."""
    import torch

    def part(prefix: str) -> dict[str, Tensor]:
        parts = ((k.removeprefix(prefix), v) for k, v in arrays.items() if k.startswith(prefix))
        return {name: torch.from_numpy(value) for name, value in parts}

    model.load_state_dict(part("model/"))
    for number, optimizer in enumerate(optimizers):
        groups = optimizer.state_dict()["param_groups"]
        state = {i: part(f"optimizer/{number}/{i}/") for group in groups for i in group["params"]}
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    return part("best/")
