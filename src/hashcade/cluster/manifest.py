"""The manifest of a generation; when read, it is validated as untrusted input."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hashcade.codes import CodeShape
from hashcade.errors import ClusterError, IncompatibleFormatError
from hashcade.index import Limits

FORMAT, VERSION = "hashcade-generation", 1
VECTORS, CODES = "b", "c"  # kinds of blocks: the suffixes of their keys
_LARGEST = 2**62


@dataclass(frozen=True)
class Manifest:
    """A generation of a table in Redis."""

    generation: str
    shape: CodeShape
    dim: int
    n_items: int
    n_entries: int
    n_buckets: int  # occupied buckets
    next_id: int
    max_norm: float
    unit_length: bool
    labels: str | None  # dtype, "<i4" or "<i8"; None: the index has no labels
    first_pass: str | None  # "int8": codes are in separate blocks, vectors are fetched individually
    model: str | None  # fingerprint; None: no model
    sequence: int  # number of the last change included
    lineage: str | None  # of the table whose changes are replicated; None: not replicated
    created_at: str
    mean_block_bytes: float
    p99_block_bytes: float
    files: dict[str, dict[str, Any]]  # bytes and sha256 of each

    @property
    def has_items(self) -> bool:
        """Whether entries have item numbers: an item may be in several buckets."""
        return self.shape.sparsity > 1

    @property
    def limits(self) -> Limits:
        """Limits for the validation of blocks."""
        return Limits(self.n_items, self.next_id, self.max_norm, self.unit_length)

    @property
    def columns(self) -> dict[str, np.dtype[Any]]:
        """Arrays of a block without vectors and codes, in order, and their dtypes."""
        dtypes: dict[str, np.dtype[Any]] = {"ids": np.dtype("<i8")}
        if self.has_items:
            dtypes["items"] = np.dtype("<i4")
        if self.labels is not None:
            dtypes["labels"] = np.dtype(self.labels)
        return dtypes

    @cached_property
    def kinds(self) -> dict[str, dict[str, np.dtype[Any]]]:
        """Kinds of blocks, in the order in which a search reads them, and their arrays."""
        vectors = {"vectors": np.dtype(("<f4", (self.dim,)))}
        if self.first_pass is None:
            return {VECTORS: {**self.columns, **vectors}}
        codes: dict[str, np.dtype[Any]] = {
            "codes": np.dtype(("<i1", (self.dim,))),
            "code_bounds": np.dtype(("<f4", (3,))),
            "vector_crcs": np.dtype("<u4"),
        }
        return {CODES: {**self.columns, **codes}, VECTORS: vectors}

    def entry_bytes(self, kind: str) -> int:
        """Bytes of an entry in a block of this kind."""
        return sum(array.itemsize for array in self.kinds[kind].values())

    def to_bytes(self) -> bytes:
        """The value in Redis: a checksum, and JSON."""
        body = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}).encode()
        return b"%08x " % zlib.crc32(body) + body


def read_manifest(value: bytes, key: str) -> Manifest:
    """Parse and validate a manifest, as ``Manifest.to_bytes`` writes it."""
    body = value[9:]
    if value[:9] != b"%08x " % zlib.crc32(body):
        raise ClusterError(f"{key} is damaged: its checksum is wrong", hint="publish the table")
    try:
        fields = json.loads(body)
        kind = fields.pop("format"), fields.pop("version")
        if kind != (FORMAT, VERSION):
            message = f"{key} is {kind[0]!r} version {kind[1]!r}, this package reads {VERSION}"
            raise IncompatibleFormatError(message, hint="publish the table with this version")
        manifest = Manifest(**{**fields, "shape": CodeShape(**fields["shape"])})
        _check(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = f"{key} is not a valid manifest: {error!r}"
        raise ClusterError(message, hint="publish the table") from None
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ``ValueError`` unless all values have valid types and ranges."""
    minimums = {"dim": 1, "n_items": 0, "n_buckets": 0, "n_entries": 0, "next_id": 0, "sequence": 0}
    for name, minimum in minimums.items():
        value = getattr(manifest, name)
        if type(value) is not int or not minimum <= value <= 2**63:
            raise ValueError(f"{name}={value!r} is out of range")
    if not manifest.n_buckets <= manifest.n_entries or not manifest.n_items <= manifest.n_entries:
        raise ValueError("counts contradict each other")
    if not manifest.has_items and manifest.n_items != manifest.n_entries:
        raise ValueError(f"n_items={manifest.n_items} must be n_entries={manifest.n_entries}")
    if manifest.first_pass not in (None, "int8"):
        raise ValueError(f"first_pass={manifest.first_pass!r} is not known")
    if manifest.n_entries * sum(map(manifest.entry_bytes, manifest.kinds)) > _LARGEST:
        raise ValueError("it is larger than memory can be")
    norm = manifest.max_norm
    if type(norm) not in (int, float) or not math.isfinite(norm) or norm < 0:
        raise ValueError(f"max_norm={norm!r} is out of range")
    if type(manifest.unit_length) is not bool or manifest.labels not in (None, "<i4", "<i8"):
        raise ValueError("unit_length or labels is of the wrong kind")
    if type(manifest.generation) is not str or type(manifest.model) not in (str, type(None)):
        raise ValueError("generation or model is of the wrong kind")
    if type(manifest.lineage) not in (str, type(None)):
        raise ValueError("lineage is of the wrong kind")
    for name, file in manifest.files.items():
        parts = name.split("/")
        if ".." in parts or "" in parts or len(parts) > 2 or "\\" in name or "\0" in name:
            raise ValueError(f"{name!r} is not the name of a file")
        if type(file["bytes"]) is not int or not 0 <= file["bytes"] < _LARGEST:
            raise ValueError(f"{name} has {file['bytes']!r} bytes")
        if type(file["sha256"]) is not str:
            raise ValueError(f"{name} has no checksum")
