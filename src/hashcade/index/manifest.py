"""The manifest of a stored index: untrusted input, of which every value is checked.

The manifest is JSON; its first value is the CRC-32 of every byte after it::

    {"checksum": "1c291ca3", "format": "hashcade-index", "version": 1, "generation": "...", ...
     "segments": [{"file", "uid", "bytes", "n_items", "n_entries", "max_norm",
       "sections": {"vectors": {"offset", "bytes", "dtype", "shape", "crc32"}, ...},
       "removed": null or {"file", "uid", "bytes", "crc32", "n_items"}}, ...]}

A checksum detects damage, not manipulation: an attacker can compute checksums too. So file names
are derived from the uid, which has no separators, and what a kernel uses as a size or an index is
checked here, or with the arrays themselves (``checksums.py``).
"""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hashcade._io import open_regular
from hashcade._validate import checked_count
from hashcade.codes import CodeShape
from hashcade.errors import CorruptIndexError, IncompatibleFormatError

MANIFEST_NAME = "manifest.json"
FORMAT = "hashcade-index"
VERSION = 1
ALIGNMENT = 64  # of the sections of a segment's file
DTYPES = {
    "vectors": ("<f4", "<f2"), "codes": ("|i1",), "code_bounds": ("<f4",), "ids": ("<i8",),
    "labels": ("<i4", "<i8"), "items": ("<i4",), "buckets": ("<i8",), "offsets": ("<i8",),
    "blocks": ("<u4",),
}  # fmt: skip
FIRST_PASSES = (None, "int8")
VECTOR_DTYPES = ("float32", "float16")
_PREFIX = b'{"checksum": "'
_UID = re.compile("[0-9A-Za-z]{1,64}")
_MAX_SEGMENTS = 256  # each is at least twice as large as the next: there are never more
_MAX_LEVELS = 1024

Record = dict[str, Any]  # of a segment


@dataclass(frozen=True)
class Manifest:
    """A stored index. ``generation`` is new with every save."""

    generation: str
    shape: CodeShape
    dim: int
    with_labels: bool
    next_id: int
    n_items: int
    segments: list[Record]
    unit_length: bool = False
    first_pass: str | None = None
    dtype: str = "float32"

    def files(self) -> set[str]:
        """Names of all other files of the index."""
        removed = [record["removed"] for record in self.segments if record["removed"]]
        return {record["file"] for record in [*self.segments, *removed]}

    def to_bytes(self) -> bytes:
        """The content of the file."""
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        payload = b'", ' + json.dumps(body, indent=1).encode()[1:].lstrip() + b"\n"
        return b"".join([_PREFIX, b"%08x" % zlib.crc32(payload), payload])


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest."""
    path = directory / MANIFEST_NAME
    with open_regular(path, follow_links=False) as file:
        data = file.read()
    start = len(_PREFIX)
    payload = data[start + 8 :]
    if data[:start] != _PREFIX or data[start : start + 8] != b"%08x" % zlib.crc32(payload):
        raise CorruptIndexError(f"{path} is damaged: its checksum is wrong")
    try:
        body = json.loads(data)
        del body["checksum"]
        kind, version = body.pop("format"), body.pop("version")
        if (kind, version) != (FORMAT, VERSION):
            message = f"{path} is {kind!r} version {version!r}, this package reads {VERSION}"
            hint = "build the index again, or use the version of hashcade that wrote it"
            raise IncompatibleFormatError(message, hint=hint)
        manifest = Manifest(**{**body, "shape": CodeShape(**body["shape"])})
        _check(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptIndexError(f"{path} is not a valid manifest: {error!r}") from None
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ``ValueError`` unless all values are of the right type and within their range."""
    _need("generation", manifest.generation, isinstance(manifest.generation, str))
    _need("depth", manifest.shape.depth, manifest.shape.depth <= _MAX_LEVELS)
    checked_count("dim", manifest.dim)
    for name in ("with_labels", "unit_length"):
        _need(name, getattr(manifest, name), isinstance(getattr(manifest, name), bool))
    _need("first_pass", manifest.first_pass, manifest.first_pass in FIRST_PASSES)
    is_unit_float16 = manifest.dtype == "float16" and manifest.unit_length
    _need("dtype", manifest.dtype, manifest.dtype in VECTOR_DTYPES and not is_unit_float16)
    _checked_int("next_id", manifest.next_id, 0, 2**63)
    segments = manifest.segments
    _need("segments", len(segments), isinstance(segments, list) and len(segments) <= _MAX_SEGMENTS)
    for record in segments:
        _check_segment(record)
    n_items = sum(r["n_items"] - (r["removed"] or {"n_items": 0})["n_items"] for r in segments)
    _checked_int("n_items", manifest.n_items, n_items, n_items)
    n_files = len(segments) + sum(record["removed"] is not None for record in segments)
    _need("segments", "files", len(manifest.files()) == n_files)


def _check_segment(record: Record) -> None:
    _check_file(record, "segment")
    _checked_int("n_entries", record["n_entries"], 1, 2**62)
    _checked_int("n_items", record["n_items"], 1, record["n_entries"])
    norm = record["max_norm"]
    _need("max_norm", norm, type(norm) in (int, float) and math.isfinite(norm) and norm >= 0)
    for name, section in record["sections"].items():
        _need(f"dtype of {name}", section["dtype"], section["dtype"] in DTYPES[name])
        shape = section["shape"]
        _need("shape", shape, isinstance(shape, list) and 1 <= len(shape) <= 2)
        n_bytes = math.prod(_checked_int("shape", side, 0, 2**62) for side in shape)
        n_bytes *= int(section["dtype"][2:])
        offset = _checked_int("offset", section["offset"], 0, record["bytes"])
        _checked_int("bytes", section["bytes"], n_bytes, record["bytes"] - offset)
        _need("offset", offset, offset % ALIGNMENT == 0)
        _checked_int("crc32", section["crc32"], 0, 2**32 - 1)
    if (removed := record["removed"]) is not None:
        _check_file(removed, "removed")
        _checked_int("crc32", removed["crc32"], 0, 2**32 - 1)
        _checked_int("removed n_items", removed["n_items"], 0, record["n_items"])


def _check_file(record: Record, kind: str) -> None:
    uid = record["uid"]
    _need("uid", uid, isinstance(uid, str) and _UID.fullmatch(uid) is not None)
    _need("file", record["file"], record["file"] == f"{kind}-{uid}.bin")
    _checked_int("bytes", record["bytes"], 1, 2**62)


def _checked_int(name: str, value: Any, low: int, high: int) -> int:
    _need(name, value, type(value) is int and low <= value <= high)
    return int(value)


def _need(name: str, value: object, is_valid: bool) -> None:
    if not is_valid:
        raise ValueError(f"{name}={str(value)[:80]!r} is out of range")
