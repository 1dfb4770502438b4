"""Data in many files: lists the files of paths, patterns, directories and URLs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from hashcade._extras import require_extra
from hashcade._io import open_regular
from hashcade.errors import DataError

PARQUET_SUFFIXES = (".parquet", ".pq")


def find_shards(sources: Sequence[str]) -> list[str]:
    """List the files of ``sources``, sorted, without duplicates.

    A source is the path of a file; a pattern such as ``shards/*.parquet``, with ``**`` for any
    directories; a directory, for the Parquet files in it and below; or any of these as a URL of
    fsspec, such as ``s3://bucket/shards`` (extra ``remote``, and the package that fsspec needs).
    Names in a directory that begin with ``.`` or ``_`` are left out, as in other Parquet readers.
    """
    files: set[str] = set()
    for source in sources:
        shards = _remote(source) if "://" in source else _local(source)
        if not shards:
            raise DataError(f"{source} stands for no file", hint="check the path")
        files.update(shards)
    return sorted(files)


def open_shard(shard: str | os.PathLike[str]) -> Any:
    """Open a file of :func:`find_shards` for reading; a local one must be a regular file."""
    if "://" in str(shard):
        return require_extra("fsspec", "remote").open(str(shard), "rb")
    return open_regular(shard)


def shard_size(shard: str) -> int:
    """Size of a file in bytes."""
    if "://" not in shard:
        return os.stat(shard).st_size
    core: Any = require_extra("fsspec.core", "remote")
    files, path = core.url_to_fs(shard)
    return int(files.size(path))


def shard_version(shard: str) -> str:
    """A string that changes with the content of a file."""
    size = f"{shard_size(shard):,} bytes"
    if "://" not in shard:
        return f"{size} of {os.stat(shard).st_mtime_ns}"
    core: Any = require_extra("fsspec.core", "remote")
    files, path = core.url_to_fs(shard)
    return f"{size}, {files.checksum(path)}"


def _local(source: str) -> list[str]:
    path = Path(source).expanduser()
    if path.is_dir():
        relative_paths = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
        return [str(path / name) for name in relative_paths if _is_shard(name.parts)]
    if path.is_file():
        return [str(path)]
    if not has_magic(source):
        raise DataError(f"{path} does not exist", hint="check the path")
    return [name for name in glob(str(path), recursive=True) if Path(name).is_file()]


def _remote(address: str) -> list[str]:
    core: Any = require_extra("fsspec.core", "remote")
    try:
        files, path = core.url_to_fs(address)
        if has_magic(path):
            visible = (n for n in files.glob(path) if not n.rpartition("/")[2].startswith("."))
            names = [name for name in visible if files.isfile(name)]
        elif files.isdir(path):
            root = path.rstrip("/") + "/"
            names = [n for n in files.find(path) if _is_shard(n.removeprefix(root).split("/"))]
        else:
            names = [path] if files.isfile(path) else []
        return [files.unstrip_protocol(name) for name in names]
    except (OSError, ValueError, ImportError) as error:  # ImportError: such as s3fs for fsspec
        raise DataError(f"cannot list {address}: {error}") from None


def _is_shard(parts: Sequence[str]) -> bool:
    hidden = any(part.startswith((".", "_")) for part in parts)
    return not hidden and parts[-1].lower().endswith(PARQUET_SUFFIXES)
