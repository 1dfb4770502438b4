"""Which servers hold a key: the 16,384 slots of a Redis Cluster."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any

N_SLOTS = 16_384


def key_slot(key: str) -> int:
    """Slot of a key: CRC16 of its hash tag (what is between ``{`` and ``}``), or of all of it."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % N_SLOTS


def node_address(host: str, port: int | str) -> str:
    """``host:port``, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def slot_owners(reply: Sequence[Any], asked: str) -> list[tuple[str, ...]]:
    """Addresses for each slot, the master first, from the reply to ``CLUSTER SLOTS``.

    A node that does not know its own host sends none: then it is the host that was ``asked``.
    A slot that nobody holds has no address.
    """
    owners: list[tuple[str, ...]] = [()] * N_SLOTS
    home = split_address(asked)[0]
    for first, last, *nodes in reply:
        addresses = tuple(
            node_address(host.decode() if host and host != b"?" else home, port)
            for host, port, *_ in nodes
        )
        owners[first : last + 1] = [addresses] * (last + 1 - first)
    return owners
