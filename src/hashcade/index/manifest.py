"""The manifest: what a stored index consists of, in JSON with a checksum of itself.

The first value is the CRC-32 of every byte after it, so that no byte can change unseen, and the
file is still JSON to any other reader::

    {"checksum": "1c291ca3", "format": "hashcade-index", "version": 1, "generation": "...", ...
     "segments": [{"file", "uid", "bytes", "n_items", "n_entries", "max_norm",
       "sections": {"vectors": {"offset", "bytes", "dtype", "shape", "crc32"}, ...},
       "removed": null or {"file", "uid", "bytes", "crc32", "n_items"}}, ...]}

A section is an array of a segment file; its bytes, and its checksum, include the padding to a
multiple of 64. Whoever uses a record treats one without a key, or of another type, as damaged.
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

Record = dict[str, Any]


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

    def files(self) -> set[str]:
        """Names of all files that belong to the index, this one apart."""
        removed = [record["removed"] for record in self.segments if record["removed"]]
        return {record["file"] for record in [*self.segments, *removed]}


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
        body = json.loads(data)
        del body["checksum"]
        kind, version = body.pop("format"), body.pop("version")
        if kind != FORMAT:
            raise IncompatibleFormatError(f"{where} has format {kind!r}, not {FORMAT!r}")
        if version != VERSION:
            raise IncompatibleFormatError(
                f"{where} has format version {version}, this package reads {VERSION}",
                hint="build the index again, or use the version of hashcade that wrote it",
            )
        manifest = Manifest(**{**body, "shape": CodeShape(**body["shape"])})
        manifest.files()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptIndexError(f"{where} is not a valid manifest: {error!r}") from error
    return manifest
