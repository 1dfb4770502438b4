"""The 16,384 hash slots of a Redis Cluster, and the servers that own them."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any

N_SLOTS = 16_384


def key_slot(key: str) -> int:
    """Slot of a key: CRC16 of its hash tag (between ``{`` and ``}``), or of the whole key."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % N_SLOTS


def node_address(host: str, port: int | str) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def slot_owners(reply: Sequence[Any], address: str) -> list[tuple[str, ...]]:
    """Addresses for each slot, the master first, from the reply to ``CLUSTER SLOTS``.

    A node that does not know its own host sends none: then it is that of ``address``, the server
    that replied. A slot without an owner has no addresses.
    """
    slots: list[tuple[str, ...]] = [()] * N_SLOTS
    default_host = split_address(address)[0]
    for first, last, *nodes in reply:
        addresses = tuple(
            node_address(host.decode() if host and host != b"?" else default_host, port)
            for host, port, *_ in nodes
        )
        slots[first : last + 1] = [addresses] * (last + 1 - first)
    return slots
