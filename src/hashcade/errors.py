"""The exceptions of this package.

::

    HashcadeError
    ├── Cancelled
    ├── ConfigError
    ├── DataError
    ├── NotFittedError
    └── StorageError
        ├── ClusterError
        ├── CorruptIndexError
        ├── IncompatibleFormatError
        └── IndexLockedError

Two kinds of errors are not in this tree, because Python has exceptions for them: an invalid
argument raises ``ValueError``, and a missing extra ``ImportError``. Messages name both the actual
and the expected value: ``sparsity=5 must be <= width=4``.

An exception may have a ``hint`` how to resolve it, which the command line prints.
"""

from typing import TypeVar

__all__ = [
    "Cancelled", "ClusterError", "ConfigError", "CorruptIndexError", "DataError", "HashcadeError",
    "IncompatibleFormatError", "IndexLockedError", "NotFittedError", "StorageError", "add_hint",
]  # fmt: skip

E = TypeVar("E", bound=Exception)


class HashcadeError(Exception):
    """Base class of all exceptions of this package.

    Attributes
    ----------
    hint : str or None
        How to resolve it, as an imperative: ``"choose another path"``.
    """

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Cancelled(HashcadeError):  # noqa: N818  (not an error)
    """An operation was stopped by its ``Cancel`` before it was complete; there is no result."""


class ConfigError(HashcadeError):
    """Settings from a file or a command line contradict each other or the data."""


class DataError(HashcadeError):
    """Data cannot be used: unreadable, of the wrong kind, or inconsistent."""


class NotFittedError(HashcadeError, ValueError):
    """An estimator is used before it is fitted.

    Also a ``ValueError``, as tools for estimators expect.
    """


class StorageError(HashcadeError):
    """A stored model or index could not be read or written."""


class ClusterError(StorageError):
    """A server of a Redis Cluster did not answer, or refused a command.

    Attributes
    ----------
    address : str or None
        ``host:port`` of the server.
    """

    def __init__(
        self, message: str = "", *, address: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class CorruptIndexError(StorageError):
    """A stored file is damaged: its checksum, length or structure is wrong."""

    def __init__(
        self, message: str = "", *, hint: str | None = "make it again, or restore a copy"
    ) -> None:
        super().__init__(message, hint=hint)


class IncompatibleFormatError(StorageError):
    """A stored file is valid, but has a format version that this package does not read."""


class IndexLockedError(StorageError):
    """The directory is locked by another writer."""


def add_hint(error: E, hint: str) -> E:
    """Add a ``hint`` to any exception and return it: ``raise add_hint(ValueError(...), "...")``."""
    error.hint = hint  # type: ignore[attr-defined]
    return error
