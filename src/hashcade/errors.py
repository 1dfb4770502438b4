"""The errors that this package raises.

::

    HashcadeError
    ├── ConfigError
    ├── DataError
    ├── NotFittedError
    └── StorageError
        ├── CorruptIndexError
        ├── IncompatibleFormatError
        └── IndexLockedError

Two kinds of trouble lie outside the tree, because Python has a name for them: a bad argument
is a ``ValueError``, and a missing extra is an ``ImportError``. Messages give both sides of what
does not fit: ``sparsity=5 must be <= width=4``.
"""

__all__ = [
    "ConfigError",
    "CorruptIndexError",
    "DataError",
    "HashcadeError",
    "IncompatibleFormatError",
    "IndexLockedError",
    "NotFittedError",
    "StorageError",
]


class HashcadeError(Exception):
    """Base of every error of this package: catch it to catch them all."""


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


class CorruptIndexError(StorageError):
    """A stored file is damaged: its checksum, its length or its structure is wrong."""


class IncompatibleFormatError(StorageError):
    """A stored file is sound, but of a format version that this package does not read."""


class IndexLockedError(StorageError):
    """Another writer holds the directory."""
