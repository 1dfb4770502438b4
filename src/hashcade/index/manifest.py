"""The manifest: what a stored index consists of, in JSON with a checksum of itself.

The first value is the CRC-32 of every byte after it, so that no byte can change unseen, and the
file is still JSON to any other reader::

    {"checksum": "1c291ca3", "format": "hashcade-index", "version": 1, ...}
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from hashcade.codes import CodeShape
from hashcade.errors import CorruptIndexError, IncompatibleFormatError

MANIFEST_NAME = "manifest.json"
FORMAT = "hashcade-index"
VERSION = 1
_HEAD = b'{"checksum": "'


@dataclass(frozen=True)
class Section:
    """One array of a segment file: where it is, what it is, and its checksum, padding included."""

    offset: int
    bytes: int  # multiple of 64: what follows starts at a cache line
    dtype: str
    shape: tuple[int, ...]
    crc32: int


@dataclass(frozen=True)
class Removed:
    """The file with one bit per removed entry of a segment."""

    file: str
    uid: str
    bytes: int
    crc32: int
    n_items: int


@dataclass(frozen=True)
class SegmentRecord:
    """One segment file."""

    file: str
    uid: str
    bytes: int
    n_items: int
    n_entries: int
    max_norm: float
    sections: dict[str, Section]
    removed: Removed | None


@dataclass(frozen=True)
class Manifest:
    """A stored index. ``generation`` is new with every save."""

    generation: str
    shape: CodeShape
    dim: int
    with_labels: bool
    next_id: int
    n_items: int
    segments: tuple[SegmentRecord, ...]

    def files(self) -> set[str]:
        """Names of all files that belong to the index, this one apart."""
        names = {record.file for record in self.segments}
        return names | {record.removed.file for record in self.segments if record.removed}


def to_bytes(manifest: Manifest) -> bytes:
    """Write a manifest."""
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    rest = b'", ' + json.dumps(body, indent=1).encode()[1:].lstrip() + b"\n"
    return _HEAD + b"%08x" % zlib.crc32(rest) + rest


def from_bytes(data: bytes, where: str) -> Manifest:
    """Read a manifest, or refuse it."""
    start = len(_HEAD)
    rest = data[start + 8 :]
    if data[:start] != _HEAD or data[start : start + 8] != b"%08x" % zlib.crc32(rest):
        raise CorruptIndexError(f"{where} is damaged: its checksum is wrong")
    try:
        body: dict[str, Any] = json.loads(data)
        if body["format"] != FORMAT:
            raise IncompatibleFormatError(f"{where} has format {body['format']!r}, not {FORMAT!r}")
        if body["version"] != VERSION:
            raise IncompatibleFormatError(
                f"{where} has format version {body['version']}, this package reads {VERSION}",
                hint="build the index again, or use the version of hashcade that wrote it",
            )
        return Manifest(
            generation=body["generation"],
            shape=CodeShape(**body["shape"]),
            dim=body["dim"],
            with_labels=body["with_labels"],
            next_id=body["next_id"],
            n_items=body["n_items"],
            segments=tuple(_segment(record) for record in body["segments"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptIndexError(f"{where} is not a valid manifest: {error!r}") from error


def _segment(record: dict[str, Any]) -> SegmentRecord:
    sections = {
        name: Section(**{**section, "shape": tuple(section["shape"])})
        for name, section in record["sections"].items()
    }
    removed = None if record["removed"] is None else Removed(**record["removed"])
    return SegmentRecord(**{**record, "sections": sections, "removed": removed})
