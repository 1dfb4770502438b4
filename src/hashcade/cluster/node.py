"""One Redis server: its connection pool, and a circuit breaker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hashcade._extras import require_extra

AVOID_SECONDS = 1.0  # after a failure; then one request is tried


class NodeDownError(Exception):
    """A server did not answer in time, or its connection broke."""

    def __init__(self, cause: Exception, *, stale: bool = False) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.stale = stale  # an idle connection was closed by the server: not a failure yet


class Node:
    """A server with a pool of connections, with short timeouts to read and long ones to write.

    A connection is used by one thread at a time and returned when its replies are read, so threads
    never wait for each other.
    """

    def __init__(self, address: str, connect: Callable[[str, bool], Any]) -> None:
        self.address = address
        self.redis: Any = require_extra("redis", "redis")
        self._connect = connect  # (address, patient) -> a connected redis.Connection
        self._idle: tuple[deque[Any], deque[Any]] = (deque(), deque())  # [patient]
        self._avoid_until = 0.0

    @property
    def avoided(self) -> bool:
        """Whether it failed within the last second."""
        return time.monotonic() < self._avoid_until

    def admit(self) -> bool:
        """Whether a request may be sent: after a failure, one trial per second."""
        if not self._avoid_until:
            return True
        now = time.monotonic()
        if now < self._avoid_until:
            return False
        self._avoid_until = now + AVOID_SECONDS  # others wait for the outcome of this trial
        return True

    def send(self, commands: Sequence[tuple[Any, ...]], patient: bool) -> Exchange:
        """Send commands without waiting; the replies are read from the exchange."""
        redis = self.redis
        idle = self._idle[patient]
        try:
            connection, reused = idle.pop(), True
        except IndexError:
            connection, reused = None, False
        try:
            if connection is None:
                connection = self._connect(self.address, patient)
            connection.send_packed_command(connection.pack_commands(commands))
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise self._failed(connection, reused, error) from error
        return Exchange(self, connection, len(commands), patient, reused)

    def finish(self, connection: Any, patient: bool) -> None:
        """Return a connection to the pool, after all replies were read."""
        self._avoid_until = 0.0
        self._idle[patient].append(connection)

    def _failed(self, connection: Any, reused: bool, error: Exception) -> NodeDownError:
        if connection is not None:
            connection.disconnect()
        # A server that was restarted, or that closes idle connections, is not down: the request
        # is retried on a new connection.
        stale = reused and not isinstance(error, self.redis.TimeoutError)
        self.close()
        if not stale:
            self._avoid_until = time.monotonic() + AVOID_SECONDS
        return NodeDownError(error, stale=stale)

    def close(self) -> None:
        """Close the idle connections."""
        for idle in self._idle:
            while idle:
                try:
                    idle.pop().disconnect()
                except IndexError:  # another thread took the last one
                    break


class Exchange:
    """Commands that were sent to a server, and whose replies are pending."""

    def __init__(
        self, node: Node, connection: Any, n_replies: int, patient: bool, reused: bool
    ) -> None:
        self._node, self._connection = node, connection
        self._n_replies, self._patient, self._reused = n_replies, patient, reused

    def receive(self, deadline: float) -> list[Any]:
        """All replies, in order; error replies are returned as exceptions."""
        redis = self._node.redis
        connection = self._connection
        replies: list[Any] = []
        try:
            # The first reply is due at the deadline; by then the others are in transit, and each
            # read of them has the timeout of the connection.
            wait = {"timeout": max(0.001, deadline - time.monotonic())}
            while len(replies) < self._n_replies:
                try:
                    replies.append(connection.read_response(**wait))
                except redis.ResponseError as error:
                    replies.append(error)
                wait = {}
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise self._node._failed(connection, self._reused, error) from error
        except BaseException:  # Ctrl-C with pending replies: the connection is unusable
            connection.disconnect()
            raise
        self._node.finish(connection, self._patient)
        return replies
