"""Keys of a table in Redis, and the frame around every value that holds data.

::

    hashcade:{NAME}:current              hash: generation, previous, epoch, activated_at
    hashcade:{NAME}:generations          hash: loading, complete or retiring, by generation
    hashcade:{NAME}:publisher            who publishes now; expires
    hashcade:{NAME}:g:GEN:manifest       what the generation consists of, with a checksum
    hashcade:{NAME}:g:GEN:nodes          set of the query nodes that use or used it
    hashcade:{NAME}:g:GEN:nodes:ID       there while this query node uses it; expires
    hashcade:{NAME}:changes:LINEAGE      stream of the changes of a table since it was published
    hashcade:{NAME/BUCKET}:g:GEN:b       block of a bucket
    hashcade:{NAME/BUCKET.P}:g:GEN:b     its part P from 1 on, if it has more than 256 KB
    hashcade:{NAME/BUCKET}:g:GEN:c       with a first pass: all of it but the vectors, and codes
    hashcade:{NAME/FILE.P}:g:GEN:f       part P of a file: directory, ids, items.db, the model, ...

What is between braces decides on the server: all that has to change together is at one server,
and the parts of what is large are at many.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

PART_BYTES = 256 << 10  # a value is no longer: a server does nothing else while it sends one
_NAME = re.compile("[0-9A-Za-z_.-]{1,64}")
_HEAD = struct.Struct("<4sIQII8x")  # mark, CRC-32 of the rest, its length, number, how many parts
_MARK = b"hcd1"
HEAD_BYTES = _HEAD.size
PART_ROOM = PART_BYTES - HEAD_BYTES  # for data


@dataclass(frozen=True)
class Keys:
    """Names of the keys of one table."""

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name={self.name!r} must be 1 to 64 letters, digits or any of _ . -")

    @property
    def current(self) -> str:
        """Key of the generation that is searched."""
        return f"hashcade:{{{self.name}}}:current"

    @property
    def generations(self) -> str:
        """Key of the list of generations."""
        return f"hashcade:{{{self.name}}}:generations"

    @property
    def publisher(self) -> str:
        """Key of the lock of publishers."""
        return f"hashcade:{{{self.name}}}:publisher"

    def of_generation(self, generation: str, what: str) -> str:
        """Key of ``manifest`` or ``nodes``."""
        return f"hashcade:{{{self.name}}}:g:{generation}:{what}"

    def changes(self, lineage: str) -> str:
        """Key of the changes of a table."""
        return f"hashcade:{{{self.name}}}:changes:{lineage}"

    def block(self, generation: str, kind: str, bucket: int, n_parts: int) -> list[str]:
        """Keys of the parts of a block of a kind."""
        names = [str(bucket), *(f"{bucket}.{part}" for part in range(1, n_parts))]
        return [f"hashcade:{{{self.name}/{name}}}:g:{generation}:{kind}" for name in names]

    def file(self, generation: str, file: str, n_parts: int) -> list[str]:
        """Keys of the parts of a file."""
        tags = (f"{self.name}/{file}.{part}" for part in range(n_parts))
        return [f"hashcade:{{{tag}}}:g:{generation}:f" for tag in tags]


def n_parts(n_bytes: int) -> int:
    """How many values so many bytes are cut into."""
    return max(1, -(-n_bytes // PART_ROOM))


def frame(part: bytes, number: int, total: int) -> bytes:
    """Value of part ``number`` of ``total``: a head that tells what it must be, and the data."""
    return _HEAD.pack(_MARK, zlib.crc32(part), len(part), number, total) + part


def unframed(value: bytes, number: int, total: int) -> memoryview:
    """Data of part ``number`` of ``total``; raises ``ValueError`` if it is anything else."""
    if len(value) < _HEAD.size:
        raise ValueError(f"has {len(value)} bytes, fewer than its head")
    mark, crc, length, *place = _HEAD.unpack_from(value)
    if mark != _MARK:
        raise ValueError("is not a value of hashcade")
    data = memoryview(value)[_HEAD.size :]
    if len(data) != length or zlib.crc32(data) != crc:
        raise ValueError("has a wrong checksum")
    if place != [number, total]:
        raise ValueError(f"is part {place[0]} of {place[1]}, must be {number} of {total}")
    return data
