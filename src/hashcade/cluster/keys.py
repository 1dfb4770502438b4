"""Keys of a table in Redis, and the frame around every value that holds data.

::

    hashcade:{NAME}:current              hash: generation, previous, epoch, activated_at
    hashcade:{NAME}:generations          hash: loading, complete or retiring, by generation
    hashcade:{NAME}:publisher            lock of the publisher; expires
    hashcade:{NAME}:g:GEN:manifest       the manifest of the generation, with a checksum
    hashcade:{NAME}:g:GEN:nodes          set of the query nodes that use or used it
    hashcade:{NAME}:g:GEN:nodes:ID       exists while this query node uses it; expires
    hashcade:{NAME}:changes:LINEAGE      stream of the changes of a table since it was published
    hashcade:{NAME/BUCKET}:g:GEN:b       block of a bucket
    hashcade:{NAME/BUCKET.P}:g:GEN:b     its part P from 1 on, if it has more than 256 KB
    hashcade:{NAME/BUCKET}:g:GEN:c       with a first pass: the block without vectors, and codes
    hashcade:{NAME/FILE.P}:g:GEN:f       part P of a file: directory, ids, items.db, the model, ...

The hash tag between braces selects the server: keys that change together are on one server, and
the parts of large values are spread over all.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

PART_BYTES = 256 << 10  # limit of a value: a server does nothing else while it sends one
_NAME = re.compile("[0-9A-Za-z_.-]{1,64}")
_HEAD = struct.Struct("<4sIQII8x")  # magic, CRC-32 and length of the data, part, number of parts
_MAGIC = b"hcd1"
HEAD_BYTES = _HEAD.size
PART_DATA_BYTES = PART_BYTES - HEAD_BYTES  # without the header


@dataclass(frozen=True)
class Keys:
    """Names of the keys of a table."""

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name={self.name!r} must be 1 to 64 letters, digits or any of _ . -")

    @property
    def current(self) -> str:
        """Key of the current generation."""
        return f"hashcade:{{{self.name}}}:current"

    @property
    def generations(self) -> str:
        """Key of the states of all generations."""
        return f"hashcade:{{{self.name}}}:generations"

    @property
    def publisher(self) -> str:
        """Key of the publisher lock."""
        return f"hashcade:{{{self.name}}}:publisher"

    def of_generation(self, generation: str, name: str) -> str:
        """Key of ``manifest`` or ``nodes``."""
        return f"hashcade:{{{self.name}}}:g:{generation}:{name}"

    def changes(self, lineage: str) -> str:
        """Key of the stream of changes."""
        return f"hashcade:{{{self.name}}}:changes:{lineage}"

    def block(self, generation: str, kind: str, bucket: int, n_parts: int) -> list[str]:
        """Keys of the parts of a block."""
        names = [str(bucket), *(f"{bucket}.{part}" for part in range(1, n_parts))]
        return [f"hashcade:{{{self.name}/{name}}}:g:{generation}:{kind}" for name in names]

    def file(self, generation: str, file: str, n_parts: int) -> list[str]:
        """Keys of the parts of a file."""
        tags = (f"{self.name}/{file}.{part}" for part in range(n_parts))
        return [f"hashcade:{{{tag}}}:g:{generation}:f" for tag in tags]


def n_parts(n_bytes: int) -> int:
    """Number of values that ``n_bytes`` are split into."""
    return max(1, -(-n_bytes // PART_DATA_BYTES))


def frame(part: bytes, number: int, total: int) -> bytes:
    """Value of part ``number`` of ``total``: a header that identifies it, and the data."""
    return _HEAD.pack(_MAGIC, zlib.crc32(part), len(part), number, total) + part


def parse_frame(value: bytes, number: int, total: int) -> memoryview:
    """Data of part ``number`` of ``total``; raises ``ValueError`` if it is anything else."""
    if len(value) < _HEAD.size:
        raise ValueError(f"has {len(value)} bytes, fewer than its head")
    magic, crc, length, *position = _HEAD.unpack_from(value)
    if magic != _MAGIC:
        raise ValueError("is not a value of hashcade")
    data = memoryview(value)[_HEAD.size :]
    if len(data) != length or zlib.crc32(data) != crc:
        raise ValueError("has a wrong checksum")
    if position != [number, total]:
        raise ValueError(f"is part {position[0]} of {position[1]}, must be {number} of {total}")
    return data
