"""What the verbs work on: data as a user has them, models and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade._progress import progress_bar
from hashcade.cli.outputs import TABLE, kind_of, say
from hashcade.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from hashcade.data import Items
    from hashcade.index import Encoded
    from hashcade.learn import Hasher
    from hashcade.table import HashTable


def read_data(
    path: Path,
    *,
    labels: str | None = None,
    need_labels: bool = False,
    ignore_labels: bool = False,
    skip_bad: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Items:
    """Read items; with labels (``LabelledItems``) if there are any, or if they are needed.

    ``options`` are ``split``, ``items`` and ``size`` of :func:`hashcade.data.load`.
    """
    from hashcade.data import has_labels, load, load_items

    options |= {"on_error": "skip" if skip_bad else "raise", "verbose": False if quiet else None}
    where = {"split": options.get("split"), "items": options.get("items")}
    if need_labels or labels or (not ignore_labels and has_labels(path, **where)):
        data: Items = load(path, labels=labels, **options)
    else:
        data = load_items(path, **options)
    for line in data.skipped:
        say(f"skipped: {line}")
    return data


def labels_of(data: Items) -> list[int | str] | None:
    """Labels as the source had them; None for items without labels."""
    from hashcade.data import LabelledItems

    return list(data.original_labels()) if isinstance(data, LabelledItems) else None


def root_of(path: Path, split: str | None, data: Items) -> Path:
    """The folder that the names of images begin in; for other data the file."""
    place = path / split if split and (path / split).is_dir() else path
    return (place.parent if data.names and place.is_file() else place).absolute()


def model_path(path: Path) -> Path:
    """The directory of a model: the model itself, or that of a table."""
    from hashcade.store import MODEL_DIR

    return path / MODEL_DIR if kind_of(path) == TABLE else path


def load_model(path: Path) -> Hasher:
    """Load a model. What is wrong with the path is said before torch is imported."""
    from hashcade.learn import read_config

    read_config(model_path(path))
    from hashcade.learn import Hasher

    return Hasher.load(model_path(path))


def load_table(path: Path, *, model: bool = True) -> HashTable:
    """Load a table; without its model, and so without torch, to look into it."""
    from hashcade.store import load_state
    from hashcade.table import HashTable

    if model:
        return HashTable.load(path)
    state, _ = load_state(path)
    return HashTable.from_parts(None, state.index, state.catalog)


def read_and_encode(
    hasher: Hasher | None, model: Path, data: Path, *, quiet: bool, **options: Any
) -> tuple[Items, Encoded]:
    """Read data as a model takes them, and run it once; ``options`` are for :func:`read_data`."""
    if hasher is None:
        hint = "make one with: hashcade build MODEL DATA -o TABLE"
        raise StorageError(f"{model} is a table without a model", hint=hint)
    found = read_data(data, size=hasher.config_.image_size, quiet=quiet, **options)
    expected = tuple(hasher.config_.item_shape)
    if found.items.shape[1:] != expected:
        raise ConfigError(
            f"{found.source} has {_described(found.items.shape[1:])}, {model} was trained on "
            f"{_described(expected)}",
            hint="give data of that kind, or train another model",
        )
    with progress_bar("encoding", quiet=quiet) as move:
        return found, hasher.encode(found.items, progress=move)


def _described(shape: tuple[int, ...]) -> str:
    numbers = f"embeddings of {shape[0]} numbers"
    return numbers if len(shape) == 1 else f"images of {shape[0]}×{shape[1]}"
