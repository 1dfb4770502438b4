"""Connections to Redis servers: address, TLS, user, timeouts."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from hashcade._extras import require_extra
from hashcade.errors import add_hint

from .slots import node_address, split_address

PATIENT_FACTOR = 10  # on the timeout: for writes, and for reads after every server has failed
DEFAULT_PORT = 6379
READ_SIZE = 1 << 18  # bytes per recv; a block rarely has more


class Connector:
    """Opens connections with the same settings; defaults come from the environment."""

    def __init__(
        self,
        timeout: float,
        tls: bool,
        username: str | None,
        password: str | None,
        ca_file: str | os.PathLike[str] | None,
    ) -> None:
        self._timeout, self._tls = timeout, tls
        self._username = username or os.environ.get("HASHCADE_REDIS_USER")
        self._password = password or os.environ.get("HASHCADE_REDIS_PASSWORD")
        self._ca_file = ca_file or os.environ.get("HASHCADE_REDIS_CA")
        self.is_cluster = True

    def __call__(self, address: str, patient: bool) -> Any:
        """Connect to a server and authenticate."""
        redis = require_extra("redis", "redis")
        host, port = split_address(address)
        timeout = self._timeout * (PATIENT_FACTOR if patient else 1)
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "socket_read_size": READ_SIZE,
            "username": self._username,
            "password": self._password,
            "protocol": 2,
            "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            "driver_info": None,  # Redis 7.0 does not have CLIENT SETINFO
        }
        kind = redis.Connection
        if self._tls:
            kind = redis.SSLConnection
            options |= {"ssl_ca_certs": self._ca_file, "ssl_check_hostname": True}
        connection = kind(**options)
        try:
            connection.connect()
            if self.is_cluster:  # replicas only answer clients that accept stale reads
                connection.send_command("READONLY")
                connection.read_response()
        except redis.ResponseError as error:
            if "cluster support disabled" in str(error):
                return connection
            connection.disconnect()
            raise
        except BaseException:
            connection.disconnect()
            raise
        return connection


def parse_url(url: str) -> tuple[list[str], bool]:
    """Addresses of the servers in a URL, and whether to use TLS."""
    parts = urlsplit(url)
    if "@" in parts.netloc:  # not quoted: the password may be in it
        raise add_hint(
            ValueError("the address of a cluster must not contain a user or a password"),
            "set HASHCADE_REDIS_USER and HASHCADE_REDIS_PASSWORD",
        )
    if parts.scheme not in ("redis", "rediss") or not parts.netloc or parts.path.strip("/"):
        raise ValueError(f"{url!r} is not an address like redis://host:6379 or rediss://host:6379")
    hosts = [urlsplit(f"//{part}") for part in parts.netloc.split(",")]
    addresses = [node_address(host.hostname or "", host.port or DEFAULT_PORT) for host in hosts]
    return addresses, parts.scheme == "rediss"
