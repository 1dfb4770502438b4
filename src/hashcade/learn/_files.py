"""Writing directories so that they are there whole or not at all, and reading them with care."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor

from hashcade.errors import CorruptIndexError, IncompatibleFormatError, StorageError


def write_tensors(
    path: Path, kind: str, version: int, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write the directory ``path`` with ``config.json`` and ``model.safetensors``.

    It is made beside its place, brought to disk, and renamed: whoever looks sees the old state or
    the new one. A directory of the same kind that stands there is replaced, anything else is not.
    """
    path = path.absolute()
    if path.exists():
        _refuse_foreign(path, kind)
    blob = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
    head = {"kind": kind, "format_version": version}
    check = {"model_bytes": len(blob), "model_sha256": hashlib.sha256(blob).hexdigest()}
    whole = {**head, **check, **config}
    text = json.dumps(whole, indent=1, ensure_ascii=False, default=_plain) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.new-{os.getpid()}")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    try:
        made.mkdir()
        _write_synced(made / "model.safetensors", blob)
        _write_synced(made / "config.json", text.encode())
        _sync_directory(made)
        if path.exists():
            path.rename(old)
        made.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if old.exists():
            if not path.exists():
                old.rename(path)
            shutil.rmtree(old, ignore_errors=True)


def _plain(value: object) -> object:
    """What settings may be besides plain values: numbers of numpy, and a device."""
    return value.item() if isinstance(value, np.generic) else str(value)


def read_tensors(
    path: Path, kind: str, versions: tuple[int, ...]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what :func:`write_tensors` wrote, or raise a :class:`StorageError` that says why not."""
    config_path, tensor_path = path / "config.json", path / "model.safetensors"
    try:
        config = json.loads(config_path.read_bytes())
        blob = tensor_path.read_bytes()
    except FileNotFoundError as error:
        raise StorageError(f"{path} is no {kind}: {Path(error.filename).name} is missing") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CorruptIndexError(f"{config_path} is damaged: {error}") from None
    if not isinstance(config, dict) or config.get("kind") != kind:
        found = config.get("kind") if isinstance(config, dict) else None
        raise StorageError(f"{path} holds {found!r}, must be a {kind}")
    if config.get("format_version") not in versions:
        raise IncompatibleFormatError(
            f"{path} has format version {config.get('format_version')}, this package reads "
            f"version {' and '.join(map(str, versions))}"
        )
    if len(blob) != config.get("model_bytes"):
        raise CorruptIndexError(
            f"{tensor_path} is damaged: it has {len(blob):,} bytes, must have "
            f"{config.get('model_bytes'):,}"
        )
    if hashlib.sha256(blob).hexdigest() != config.get("model_sha256"):
        raise CorruptIndexError(f"{tensor_path} is damaged: its checksum is wrong")
    try:
        return config, safetensors.torch.load(blob)
    except safetensors.SafetensorError as error:
        raise CorruptIndexError(f"{tensor_path} is damaged: {error}") from None


def _refuse_foreign(path: Path, kind: str) -> None:
    try:
        found = json.loads((path / "config.json").read_bytes()).get("kind")
    except (OSError, ValueError, AttributeError):
        found = None
    if found != kind and not (path.is_dir() and not any(path.iterdir())):
        raise StorageError(f"{path} exists and is no {kind}: choose another path or remove it")


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
