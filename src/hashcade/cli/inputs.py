"""What the verbs work on: data as a user has them, models and tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade._extras import check_extras
from hashcade._progress import progress_bar
from hashcade.cli.options import Keeping, Reading
from hashcade.cli.outputs import say
from hashcade.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from hashcade.data import ImageFeatures, Items
    from hashcade.index import Encoded
    from hashcade.learn import Hasher
    from hashcade.table import HashTable


def read_data(
    path: Path, reading: Reading, labelled: bool | None, size: Any,
    features: ImageFeatures | None = None, keep: Keeping | None = None, **sample: Any,
) -> Items:  # fmt: skip
    """Read items with labels (``LabelledItems``) or without; None: with labels if there are any.

    With ``features`` images become these; of labelled items in Parquet files a ``sample`` is read.
    """
    from hashcade.data import feature_cache_directory, has_labels, load, load_items

    options: dict[str, Any] = {"split": reading.split, "items": reading.items}
    if labelled is None:
        labelled = bool(reading.labels) or has_labels(path, **options)
    options |= keep.columns() if keep is not None else {}
    on_error, verbose = "skip" if reading.skip_bad else "raise", False if reading.quiet else None
    options |= {"size": size, "on_error": on_error, "verbose": verbose}
    options |= {"features": features, "cache": feature_cache_directory()}
    if labelled:
        data: Items = load(path, labels=reading.labels, **options, **sample)
    else:
        data = load_items(path, **options)
    for line in data.skipped:
        say(f"skipped: {line}")
    if keep is not None and keep.payload is None and data.unread and not reading.quiet:
        say(f"not kept: {', '.join(data.unread)}; --ids and --payload keep columns with the items")
    return data


def labels_of(data: Items) -> list[int | str] | None:
    """Labels as the source had them; None for items without labels."""
    from hashcade.data import LabelledItems

    return list(data.original_labels()) if isinstance(data, LabelledItems) else None


def root_of(path: Path, reading: Reading, data: Items) -> Path:
    """The folder that the names of images begin in; for other data the file."""
    part = path / (reading.split or "")
    place = part if part.is_dir() else path
    return (place.parent if data.names and place.is_file() else place).absolute()


def load_model(path: Path) -> Hasher:
    """Load a model. What is wrong with the path is said before torch is imported."""
    from hashcade import learn
    from hashcade.store import model_path

    learn.read_config(model_path(path))
    with _quiet_load():
        return learn.Hasher.load(model_path(path))


@contextmanager
def _quiet_load() -> Iterator[None]:
    """Without the warning that images need an extra: who gives images is told so then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def load_table(path: Path, *, model: bool = True) -> HashTable:
    """Load a table; without its model, and so without torch, to look into it."""
    from hashcade.store import load_state
    from hashcade.table import HashTable

    if model:
        with _quiet_load():
            return HashTable.load(path)
    state, _ = load_state(path)
    return HashTable.from_parts(None, state.index, state.catalog)


def read_and_encode(
    hasher: Hasher | None, model: Path, data: Path, reading: Reading,
    labelled: bool | None = None, n_probe: int = 1, keep: Keeping | None = None,
) -> tuple[Items, Encoded]:  # fmt: skip
    """Read data as a model takes them, and run it once."""
    if hasher is None:
        hint = "make one with: hashcade build MODEL DATA -o TABLE"
        raise StorageError(f"{model} is a table without a model", hint=hint)
    from hashcade.data import holds_images

    features, expected = hasher.image_features, tuple(hasher.config_.item_shape)
    kinds = ("embeddings of {} numbers", "images of {}×{}")
    trained_on = kinds[len(expected) > 1].format(*expected)
    hint = "give data of that kind, or train another model"
    if hasher.image_size is None and holds_images(data):
        raise ConfigError(f"{data} has images, {model} was trained on {trained_on}", hint=hint)
    if features is not None:
        check_extras(**(features.extras if holds_images(data) else {}))
        trained_on = f"images, as {trained_on} by {features.name}"
    found = read_data(data, reading, labelled, hasher.image_size, features, keep)
    if found.items.shape[1:] != expected:
        given = kinds[found.is_images].format(*found.items.shape[1:])
        message = f"{found.source} has {given}, {model} was trained on {trained_on}"
        raise ConfigError(message, hint=hint)
    with progress_bar("encoding", quiet=reading.quiet) as move:
        return found, hasher.encode(found.items, n_probe=n_probe, progress=move)
