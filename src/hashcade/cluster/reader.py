"""A client of a Redis Cluster that routes commands by key, to all servers in parallel.

The cluster client of redis-py retries with pauses, so that a server that dies stalls every thread
that has a key there. A search cannot wait: this reader gives a server ``timeout`` seconds, then
falls back to a replica, and avoids the server for a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from hashcade._extras import require_extra
from hashcade.errors import ClusterError

from .connector import PATIENT_FACTOR, Connector, parse_url
from .metrics import ReaderMetrics
from .node import Exchange, Node, NodeDownError
from .slots import N_SLOTS, key_slot, node_address, slot_owners, split_address

WRITE_SECONDS = 10.0  # writes are retried for this long: a failover takes a few seconds
REFRESH_SECONDS = 0.1  # minimum time between reads of the slot map
_HINTS = {  # by the exception of redis-py, which strips the error code
    "NoPermissionError": "give the user the commands and keys that docs/cluster.md lists",
    "OutOfMemoryError": "raise maxmemory of the server, or retire a generation",
    "AuthenticationError": "set HASHCADE_REDIS_PASSWORD, and HASHCADE_REDIS_USER if it has a user",
}
_DOWN_HINT = "check that the server runs and can be reached from here"


class Reader:
    """Connections to a Redis Cluster, or to one Redis server; safe to share between threads.

    Parameters
    ----------
    url : str
        ``redis://host:port`` or, with TLS, ``rediss://host:port``; further seed servers may follow
        after commas. User and password are refused here: addresses are printed.
    timeout : float, optional
        Seconds that a server has to answer a read before a replica is tried.
    username, password : str, optional
        By default ``HASHCADE_REDIS_USER`` and ``HASHCADE_REDIS_PASSWORD`` of the environment.
    ca_file : path, optional
        Trusted certificates for ``rediss://``, by default ``HASHCADE_REDIS_CA``, else the
        system's.

    Attributes
    ----------
    metrics : ReaderMetrics
        Counters of keys, servers, bytes, time by server, and fallbacks to replicas.

    Raises
    ------
    ClusterError
        If no server answers, or a server refuses a command; ``address`` is that of the server.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 0.1,
        username: str | None = None,
        password: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        redis: Any = require_extra("redis", "redis")
        self._redis = redis
        self._transient = (  # errors that another server, or a retry, may resolve
            redis.exceptions.ClusterDownError,
            redis.exceptions.MasterDownError,
            redis.exceptions.TryAgainError,
            redis.exceptions.ReadOnlyError,
        )
        self._seeds, tls = parse_url(url)
        self._timeout = timeout
        self._connector = Connector(timeout, tls, username, password, ca_file)
        self.metrics = ReaderMetrics()
        self._owners: list[tuple[str, ...]] = [()] * N_SLOTS
        self._start()
        self._refresh(first=True)

    def _start(self) -> None:
        # A forked process must not share the sockets of its parent, or a lock that was held.
        self._process = os.getpid()
        self._nodes: dict[str, Node] = {}
        self._refreshing = threading.Lock()
        self._refreshed = 0.0

    # ---------------------------------------------------------------- reads

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values of keys, with one round trip to each server, in parallel.

        ``None`` for a missing key. Keys of one slot are read in the given order.
        """
        return self._read(keys, [("GET", key) for key in keys])

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Ranges of values: key, first and last byte of each; cut off at the end of the value.

        One round trip to each server, as for :meth:`get_many`.
        """
        commands = [("GETRANGE", *key_range) for key_range in ranges]
        return self._read([key for key, _, _ in ranges], commands)

    def read(self, key: str, *command: Any) -> Any:
        """Run a read-only command, on any server of the key's slot."""
        return self._read([key], [command])[0]

    def _read(self, keys: Sequence[str], commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        seconds = 2 * PATIENT_FACTOR * self._timeout
        replies = self._execute(list(map(key_slot, keys)), commands, False, seconds)
        size = sum(len(reply) for reply in replies if isinstance(reply, bytes))
        self.metrics.count(requests=1, keys=len(keys), bytes=size)
        return replies

    # ---------------------------------------------------------------- writes and servers

    def run(self, key: str, *command: Any) -> Any:
        """Run a command on the master of the key's slot.

        It is retried when the server does not answer, and so may be executed twice: commands must
        be idempotent.
        """
        return self._execute([key_slot(key)], [command], True, WRITE_SECONDS)[0]

    def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run many commands, each on the master of its key; raises on the first that fails.

        The key follows the name of the command (for ``EVAL`` and ``EVALSHA`` it is the first of
        the keys). Commands to one server are executed in order, unless a server fails.
        """
        slots = [key_slot(_key_of(command)) for command in commands]
        return self._execute(slots, commands, True, WRITE_SECONDS)

    def each_master(self, *command: Any) -> dict[str, Any]:
        """Replies of all masters to a command such as ``INFO``, by address."""
        return {address: self._send_to(address, command) for address in self.masters}

    def reachable(self) -> dict[str, bool]:
        """Whether each server of the slot map answers now, by address."""
        answers = dict.fromkeys(sorted({a for owners in self._owners for a in owners}), True)
        for address in answers:
            try:
                self._send_to(address, ("PING",), patient=False)
            except ClusterError:
                answers[address] = False
        return answers

    def coverage(self, reachable: dict[str, bool]) -> float:
        """Fraction of slots with a server that answers, given the result of :meth:`reachable`."""
        return sum(any(map(reachable.get, owners)) for owners in self._owners) / N_SLOTS

    @property
    def masters(self) -> list[str]:
        """Addresses of the masters."""
        return sorted({owners[0] for owners in self._owners if owners})

    @property
    def avoided(self) -> list[str]:
        """Addresses of the servers that failed within the last second."""
        return sorted(address for address, node in list(self._nodes.items()) if node.avoided)

    def node_of(self, key: str) -> str:
        """Address of the master of a key, for messages."""
        owners = self._owners[key_slot(key)]
        return owners[0] if owners else "no server"

    def close(self) -> None:
        """Close the idle connections; the next command opens new ones."""
        for node in self._nodes.values():
            node.close()

    # ---------------------------------------------------------------- routing and retries

    def _execute(
        self,
        slots: Sequence[int],
        commands: Sequence[tuple[Any, ...]],
        writing: bool,
        seconds: float,
    ) -> list[Any]:
        """Replies in order. A command is retried until it is answered, refused or timed out."""
        if os.getpid() != self._process:
            self._start()
        deadline = time.monotonic() + seconds
        errors = self._redis.exceptions
        replies: list[Any] = [None] * len(commands)
        failed: dict[int, set[str]] = {}  # servers that failed, by command number
        redirects: dict[int, tuple[str, bool]] = {}  # address, and whether ASKING comes first
        pending: Sequence[int] = range(len(commands))
        patient, problem, pause = writing, "no server holds its slot", 0.0
        while pending:
            groups: dict[tuple[str, bool], list[int]] = {}
            retries: list[int] = []
            for i in pending:
                target = redirects.pop(i, None) or self._pick(slots[i], failed.get(i), writing)
                if target is None:
                    retries.append(i)
                else:
                    groups.setdefault(target, []).append(i)
            if not groups:  # all servers of these keys failed: refresh the slot map, or give up
                address = (self._owners[slots[retries[0]]] or ("",))[0]
                if time.monotonic() > deadline:
                    raise _no_answer(address, problem)
                time.sleep(pause)
                pause = min(2 * pause + 0.01, 0.5)
                self._refresh()
                failed, patient = {}, True
                continue
            for i, address, reply in self._round(groups, commands, patient):
                if isinstance(reply, NodeDownError):
                    problem = str(reply)
                    retries.append(i)
                    if not reply.stale:
                        failed.setdefault(i, set()).add(address)
                elif isinstance(reply, errors.AskError):  # also the base of MovedError
                    asking = not isinstance(reply, errors.MovedError)
                    redirects[i] = (_redirect(reply, address), asking)
                    retries.append(i)
                    if not asking:
                        self._moved(slots[i], redirects[i][0])
                    if time.monotonic() > deadline:
                        raise _no_answer(address, "it keeps naming other servers")
                elif isinstance(reply, self._transient):
                    problem = str(reply)
                    retries.append(i)
                    failed.setdefault(i, set()).add(address)
                elif isinstance(reply, Exception):
                    raise _refused(address, commands[i], reply) from reply
                else:
                    replies[i] = reply
            pending = retries
        return replies

    def _round(
        self,
        groups: dict[tuple[str, bool], list[int]],
        commands: Sequence[tuple[Any, ...]],
        patient: bool,
    ) -> list[tuple[int, str, Any]]:
        """Send each group to its server, then read replies: (command number, address, reply)."""
        start = time.monotonic()
        exchanges: list[Exchange | Exception] = []
        for (address, asking), numbers in groups.items():
            batch = [commands[i] for i in numbers]
            if asking:  # applies to one command, so it precedes each
                batch = [part for command in batch for part in (("ASKING",), command)]
            exchanges.append(self._send(address, batch, patient))
        deadline = start + self._timeout * (PATIENT_FACTOR if patient else 1)
        answers: list[tuple[int, str, Any]] = []
        for ((address, asking), numbers), exchange in zip(groups.items(), exchanges, strict=True):
            replies = self._receive(address, exchange, deadline, start)
            if isinstance(replies, Exception):
                answers += [(i, address, replies) for i in numbers]
            else:
                replies = replies[1::2] if asking else replies
                answers += zip(numbers, [address] * len(numbers), replies, strict=True)
        self.metrics.count(nodes=len(groups))
        return answers

    def _send(self, address: str, batch: Sequence[tuple[Any, ...]], patient: bool) -> Any:
        """Send commands; returns the exchange, or the exception."""
        try:
            return self._node(address).send(batch, patient)
        except NodeDownError as error:
            return self._down(error)
        except self._redis.RedisError as error:  # authentication, or the rest of the handshake
            return error

    def _receive(
        self, address: str, exchange: Exchange | Exception, deadline: float, start: float
    ) -> Any:
        """Receive replies; returns them, or the exception."""
        if isinstance(exchange, Exception):
            return exchange
        try:
            replies = exchange.receive(deadline)
        except NodeDownError as error:
            return self._down(error)
        except self._redis.AuthenticationError as error:
            return error
        self.metrics.waited(address, time.monotonic() - start)
        return replies

    def _down(self, error: NodeDownError) -> NodeDownError:
        if not error.stale:
            self.metrics.count(failures=1)
            self._refresh_soon()  # a replica may have been promoted
        return error

    def _send_to(self, address: str, command: tuple[Any, ...], *, patient: bool = True) -> Any:
        """Run a command on a server, and retry once if the idle connection was closed."""
        reply: Any = None
        for _ in range(2):
            ((_, _, reply),) = self._round({(address, False): [0]}, [command], patient)
            if not (isinstance(reply, NodeDownError) and reply.stale):
                break
        if isinstance(reply, NodeDownError):
            raise _no_answer(address, str(reply))
        if isinstance(reply, Exception):
            raise _refused(address, command, reply) from reply
        return reply

    # ---------------------------------------------------------------- which server

    def _pick(self, slot: int, failed: set[str] | None, writing: bool) -> tuple[str, bool] | None:
        """The first server of a slot that has not failed; an avoided one only as a last resort."""
        owners = self._owners[slot]
        candidates = owners[:1] if writing else owners
        if failed:
            candidates = tuple(address for address in candidates if address not in failed)
        for address in candidates:
            if self._node(address).admit():
                if address != owners[0]:
                    self.metrics.count(fallbacks=1)
                return address, False
        return (candidates[0], False) if candidates else None

    def _moved(self, slot: int, address: str) -> None:
        self.metrics.count(redirects=1)
        others = (other for other in self._owners[slot] if other != address)
        self._owners[slot] = (address, *others)
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        """Read the slot map in the background, unless that is already happening."""
        if time.monotonic() - self._refreshed > REFRESH_SECONDS and not self._refreshing.locked():
            threading.Thread(target=self._refresh, daemon=True).start()

    def _refresh(self, *, first: bool = False) -> None:
        """Read the slot map from the first server that answers; if none does, keep the old one."""
        with self._refreshing:
            if time.monotonic() - self._refreshed < REFRESH_SECONDS:
                return  # another thread has just done it
            addresses = list(dict.fromkeys([*self.masters, *self._seeds, *self._nodes]))
            addresses.sort(key=lambda address: self._node(address).avoided)
            problem: ClusterError | None = None
            for address in addresses:
                try:
                    self._owners = self._read_slots(address, patient=first)
                    self.metrics.count(refreshes=1)
                    break
                except ClusterError as error:
                    problem = error
            else:
                if first and problem:
                    raise problem
            self._refreshed = time.monotonic()

    def _read_slots(self, address: str, *, patient: bool) -> list[tuple[str, ...]]:
        try:
            reply = self._send_to(address, ("CLUSTER", "SLOTS"), patient=patient)
            return slot_owners(reply, address)
        except ClusterError as error:
            if "cluster support disabled" not in str(error):
                raise
            self._connector.is_cluster = False  # a single server has all slots
            return [(address,)] * N_SLOTS

    def _node(self, address: str) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes.setdefault(address, Node(address, self._connector))
        return node


def _key_of(command: tuple[Any, ...]) -> str:
    return str(command[3 if str(command[0]).upper() in ("EVAL", "EVALSHA") else 1])


def _redirect(reply: Any, address: str) -> str:
    """The server that MOVED or ASK names; without a host, it is that of the replying server."""
    return node_address(reply.host or split_address(address)[0], reply.port)


def _no_answer(address: str, problem: str) -> ClusterError:
    return ClusterError(
        f"the Redis server {address} did not answer: {problem}", address=address, hint=_DOWN_HINT
    )


def _refused(address: str, command: tuple[Any, ...], error: Exception) -> ClusterError:
    text = str(error)
    name = command[0].upper() if isinstance(command[0], str) else "a command"
    hint = _HINTS.get(type(error).__name__)
    return ClusterError(
        f"the Redis server {address} refused {name}: {text}", address=address, hint=hint
    )
