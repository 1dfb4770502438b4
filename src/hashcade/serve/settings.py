"""Settings of the service, checked before anything is opened."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from hashcade.errors import ConfigError

_MIN_TOKEN = 16
BODY_COST = 3  # memory that a request takes, in lengths of its body
VALUE_COST = 100  # bytes of memory for each value of JSON that is not in an array of numbers


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of the service.

    Parameters
    ----------
    table
        Directory of the table, as ``HashTable.save`` wrote it, or ``redis://host:port/NAME``
        (``rediss://`` with TLS) for one that was published into a Redis Cluster: read only.
    use_model
        Load the model of the table. Without it queries must bring their buckets or scores.
    model
        Of a table in a cluster: a copy of its model on this machine, else it is fetched.
    cache
        Of a table in a cluster: bytes of vectors that are kept.
    pictures
        Where pictures of the items are: a folder with a folder of images per class (item ids count
        through them in the order of their names, as the loader does), an ``.npz`` or ``.npy`` of
        uint8[n, h, w, 3], or a ``.json`` file with a path for each id. Default: the images that
        the table was filled with, if they are where they were.
    host, port
        Where to listen. Port 0: any that is free.
    token
        What clients must send, 16 characters or more. Compulsory unless only this machine can
        connect.
    read_only
        Refuse changes, and write nothing.
    max_body, max_batch, max_neighbors, max_probe, max_filter, max_pixels
        Largest number of bytes of a request; of queries of a search, or items of a change;
        ``n_neighbors``; ``n_probe``, or ``bucket_ids`` of an explanation; ids of a filter; pixels
        of an uploaded image.
    max_work
        Largest product of a search: queries × (candidates that are expected + 100 × buckets looked
        into + 400 × results). More is refused before it begins.
    max_requests, deadline
        Requests at once, waiting or worked on (more are answered with 429); seconds for each.
    max_memory
        Bytes of memory for bodies and answers of more than 64 kB together; more are answered with
        429. A body counts three times, for what is made of it.
    max_connections
        Connections at once; 0: 256, or fewer if the limit of open files asks for it. One more
        closes the one whose client has kept us waiting longest.
    idle_seconds, send_seconds
        Seconds after which a connection without a whole head of a request is closed; seconds for a
        client to read its answer, and one more for each megabyte.
    threads
        Searches at once, and as many large ones beside them. 0: one per core.
    fold_seconds, fold_bytes
        The index is saved when its oldest unsaved change is so old, or all of them so long.
    stop_seconds
        Seconds after which the service has ended when it is stopped. Requests may finish in a third
        of them, then searches are stopped; what is left is for saving the index. If that takes
        longer, acknowledged changes are in the database and are applied at the next start.
    access_log
        Log a line for each request: method, path, status. Never a body or a header.
    """

    table: Path | str
    use_model: bool = True
    model: Path | None = None
    cache: int = 1 << 30
    pictures: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    read_only: bool = False
    max_body: int = 16 << 20
    max_batch: int = 1024
    max_neighbors: int = 1000
    max_probe: int = 4096
    max_filter: int = 100_000
    max_pixels: int = 25_000_000
    max_work: int = 500_000_000
    max_requests: int = 64
    max_memory: int = 256 << 20
    max_connections: int = 0
    deadline: float = 10.0
    idle_seconds: float = 15.0
    send_seconds: float = 10.0
    threads: int = 0
    fold_seconds: float = 60.0
    fold_bytes: int = 64 << 20
    stop_seconds: float = 4.0
    access_log: bool = False

    def __post_init__(self) -> None:
        if self.in_cluster:
            object.__setattr__(self, "read_only", True)
        elif self.model is not None:
            raise ConfigError("a model is given, but a table in a directory has its own")
        for name in ("table", "pictures", "model"):
            if getattr(self, name) is not None and not (name == "table" and self.in_cluster):
                object.__setattr__(self, name, Path(getattr(self, name)))
        if self.cache < 0:
            raise ConfigError(f"cache={self.cache} must be >= 0")
        for name, value in vars(self).items():
            if name.startswith("max_") and name != "max_connections" and value < 1:
                raise ConfigError(f"{name}={value} must be >= 1")
            timed = name == "deadline" or name.endswith("_seconds") or name == "fold_bytes"
            if timed and not value > 0:
                raise ConfigError(f"{name}={value} must be > 0")
            if name in ("threads", "max_connections") and value < 0:
                raise ConfigError(f"{name}={value} must be >= 0")
        least = BODY_COST * self.max_body + VALUE_COST * self.max_values
        if self.max_memory < least:
            needed = f"for a body of max_body={self.max_body}"
            raise ConfigError(f"max_memory={self.max_memory} must be >= {least} {needed}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be >= 0 and <= 65535")
        if self.token is not None:
            if (length := len(self.token)) < _MIN_TOKEN:
                raise ConfigError(f"the token has {length} characters, must have >= {_MIN_TOKEN}")
            if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
                raise ConfigError("the token must be of printable ASCII characters without spaces")
        elif not is_loopback(self.host):
            raise ConfigError(
                f"host={self.host} can be reached from other machines, so a token is needed",
                hint="set HASHCADE_TOKEN or --token-file, or listen on 127.0.0.1",
            )

    @property
    def in_cluster(self) -> bool:
        """Whether the table is in a Redis Cluster, and not in a directory."""
        return str(self.table).startswith(("redis://", "rediss://"))

    @property
    def max_values(self) -> int:
        """Values of JSON in a body, beside arrays of numbers: ids of a filter, 100 for an item."""
        return self.max_filter + 100 * self.max_batch


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this name or address."""
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), None)
    except OSError as error:
        raise ConfigError(f"host={host} cannot be resolved: {error.strerror}") from None
    return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in addresses)
