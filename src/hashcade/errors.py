"""The errors that this package raises.

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

Two kinds of trouble lie outside the tree, because Python has a name for them: a bad argument
is a ``ValueError``, and a missing extra is an ``ImportError``. Messages give both sides of what
does not fit: ``sparsity=5 must be <= width=4``.

An exception that has a way out carries it as ``hint``; the command line prints it.
"""

from typing import TypeVar

__all__ = [
    "Cancelled", "ClusterError", "ConfigError", "CorruptIndexError", "DataError", "HashcadeError",
    "IncompatibleFormatError", "IndexLockedError", "NotFittedError", "StorageError", "add_hint",
]  # fmt: skip

E = TypeVar("E", bound=Exception)


class HashcadeError(Exception):
    """Base of every error of this package: catch it to catch them all.

    Attributes
    ----------
    hint : str or None
        What to do about it, as an imperative: ``"choose another path"``.
    """

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Cancelled(HashcadeError):  # noqa: N818  (not a mistake)
    """Work was stopped before its end, by the ``Cancel`` that it was given; it has no result."""


class ConfigError(HashcadeError):
    """Settings from a file or a command line that contradict each other or the data."""


class DataError(HashcadeError):
    """Data that cannot be used: unreadable, of another kind, or inconsistent in itself."""


class NotFittedError(HashcadeError, ValueError):
    """A result of learning was asked for before anything was learned.

    Also a ``ValueError``, because tools that handle estimators expect it to be one.
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
    """A stored file is damaged: its checksum, its length or its structure is wrong."""

    def __init__(
        self, message: str = "", *, hint: str | None = "make it again, or restore a copy"
    ) -> None:
        super().__init__(message, hint=hint)


class IncompatibleFormatError(StorageError):
    """A stored file is sound, but of a format version that this package does not read."""


class IndexLockedError(StorageError):
    """Another writer holds the directory."""


def add_hint(error: E, hint: str) -> E:
    """Give any exception a ``hint``, and return it: ``raise add_hint(ValueError(...), "...")``."""
    error.hint = hint  # type: ignore[attr-defined]
    return error
