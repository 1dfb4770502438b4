"""Input of the commands: data, models and tables."""

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

    With ``features`` images are converted to these; ``sample`` are options for labelled items.
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
    """Original labels; None for items without labels."""
    from hashcade.data import LabelledItems

    return list(data.original_labels()) if isinstance(data, LabelledItems) else None


def root_of(path: Path, reading: Reading, data: Items) -> Path:
    """The folder that names of images are relative to; for other data the file."""
    part = path / (reading.split or "")
    root = part if part.is_dir() else path
    return (root.parent if data.names and root.is_file() else root).absolute()


def load_model(path: Path) -> Hasher:
    """Load a model. A wrong path is reported before torch is imported."""
    from hashcade import learn
    from hashcade.store import model_path

    learn.read_config(model_path(path))
    with _quiet_load():
        return learn.Hasher.load(model_path(path))


@contextmanager
def _quiet_load() -> Iterator[None]:
    """Suppress the warning that images need an extra: it is an error when images are read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def load_table(path: Path, *, model: bool = True) -> HashTable:
    """Load a table; without its model (and without torch) to inspect it."""
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
    """Read data in the format of a model, and encode them."""
    if hasher is None:
        hint = "make one with: hashcade build MODEL DATA -o TABLE"
        raise StorageError(f"{model} is a table without a model", hint=hint)
    from hashcade.data import holds_images

    features, item_shape = hasher.image_features, tuple(hasher.config_.item_shape)
    kinds = ("embeddings of {} numbers", "images of {}×{}")
    model_input = kinds[len(item_shape) > 1].format(*item_shape)
    hint = "give data of that kind, or train another model"
    if hasher.image_size is None and holds_images(data):
        raise ConfigError(f"{data} has images, {model} was trained on {model_input}", hint=hint)
    if features is not None:
        check_extras(**(features.extras if holds_images(data) else {}))
        model_input = f"images, as {model_input} by {features.name}"
    dataset = read_data(data, reading, labelled, hasher.image_size, features, keep)
    if dataset.items.shape[1:] != item_shape:
        actual = kinds[dataset.is_images].format(*dataset.items.shape[1:])
        message = f"{dataset.source} has {actual}, {model} was trained on {model_input}"
        raise ConfigError(message, hint=hint)
    with progress_bar("encoding", quiet=reading.quiet) as progress:
        return dataset, hasher.encode(dataset.items, n_probe=n_probe, progress=progress)
