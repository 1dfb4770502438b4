"""Stored models: a directory with ``config.json`` and ``model.safetensors``, never a pickle.

:func:`read_config` and :func:`model_fingerprint` need neither torch nor safetensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashcade._io import new_directory, read_file, write_file
from hashcade.errors import CorruptIndexError, IncompatibleFormatError, StorageError

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 3
MODEL = "hashcade model"  # what a directory holds; checkpoints are of another kind


def read_config(path: str | os.PathLike[str], *, kind: str = MODEL) -> dict[str, Any]:
    """Read ``config.json`` of a stored model; the weights are not looked at.

    It has ``settings`` as the user gave them, ``resolved`` as ``ResolvedConfig.to_json`` writes
    it, ``classes``, ``validation``, ``tuned``, ``hashcade_version``, ``model_sha256``, ...
    """
    config_path = Path(path) / "config.json"
    try:
        config = json.loads(_read(config_path, kind))
    except ValueError as error:
        raise damaged(config_path, str(error)) from None
    if not isinstance(config, dict) or config.get("kind") != kind:
        actual = config.get("kind") if isinstance(config, dict) else None
        raise StorageError(f"{path} holds {actual!r}, must be a {kind}")
    version = config.get("format_version")
    if version != VERSION:
        raise IncompatibleFormatError(
            f"{path} has format version {version}, this package reads version {VERSION}",
            hint="make it again with this version of the package",
        )
    return config


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Digest that tells stored models apart: the weights' checksum, and how they are used."""
    config, parts = read_config(path), {}
    for name in ("model_sha256", "resolved"):
        if name not in config:
            raise damaged(Path(path) / "config.json", f"{name!r} is missing")
        parts[name] = config[name]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_tensors(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, kind: str = MODEL
) -> None:
    """Write a directory, whole or not at all; one of the same kind is replaced, no other."""
    import safetensors.torch

    _refuse_other_kind(path, kind)
    # A copy each: safetensors refuses tensors that share memory.
    copies = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    blob = safetensors.torch.save(copies)
    head = {
        "kind": kind,
        "format_version": VERSION,
        "model_bytes": len(blob),
        "model_sha256": hashlib.sha256(blob).hexdigest(),
    }
    text = json.dumps({**head, **config}, indent=1, ensure_ascii=False, default=_plain) + "\n"
    with new_directory(path) as directory:
        write_file(directory / "model.safetensors", [blob])
        write_file(directory / "config.json", [text.encode()])


def read_tensors(path: Path, *, kind: str = MODEL) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what :func:`write_tensors` wrote."""
    import safetensors.torch

    config, tensor_path = read_config(path, kind=kind), path / "model.safetensors"
    blob, expected = _read(tensor_path, kind), config.get("model_bytes")
    if len(blob) != expected:
        raise damaged(tensor_path, f"it has {len(blob)} bytes, must have {expected}")
    if hashlib.sha256(blob).hexdigest() != config.get("model_sha256"):
        raise damaged(tensor_path, "its checksum is wrong")
    try:
        return config, safetensors.torch.load(blob)
    except safetensors.SafetensorError as error:
        raise damaged(tensor_path, str(error)) from None


def damaged(path: Path, reason: str) -> CorruptIndexError:
    """The error for a file whose content is wrong."""
    return CorruptIndexError(f"{path} is damaged: {reason}")


def _read(path: Path, kind: str) -> bytes:
    if not path.parent.exists():
        raise StorageError(f"{path.parent} does not exist", hint="check the path")
    if not path.exists():
        hint = "make a model with: hashcade train DATA -o MODEL" if kind == MODEL else None
        raise StorageError(f"{path.parent} is not a {kind}: {path.name} is missing", hint=hint)
    return read_file(path)


def _refuse_other_kind(path: Path, kind: str) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        actual = json.loads((path / "config.json").read_bytes()).get("kind")
    except (OSError, ValueError, AttributeError):
        actual = None
    if actual != kind:
        hint = "choose another path, or remove it"
        raise StorageError(f"{path} exists and is not a {kind}", hint=hint)


def _plain(value: object) -> object:
    """What settings may be besides plain values: numbers of numpy, and a device."""
    return value.item() if isinstance(value, np.generic) else str(value)
