"""What the verbs work on: data as a user has them, models and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade._progress import progress_bar
from hashcade.cli.outputs import MODEL, TABLE, counted, kind_of, known_kind, say
from hashcade.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from hashcade.data import Items
    from hashcade.index import Encoded
    from hashcade.learn import Hasher
    from hashcade.table import HashTable


def read_data(
    path: Path,
    *,
    need_labels: bool = False,
    ignore_labels: bool = False,
    split: str | None = None,
    items: str | None = None,
    labels: str | None = None,
    size: tuple[int, int] | None = None,
    skip_bad: bool = False,
    quiet: bool = False,
) -> Items:
    """Read items; with labels (``LabelledItems``) if there are any, or if they are needed.

    ``size`` is what images are brought to if they are files; arrays of images stay as they are.
    """
    from hashcade.data import has_labels, load, load_items

    options: dict[str, Any] = {
        "split": split, "items": items, "size": size,
        "on_error": "skip" if skip_bad else "raise", "verbose": False if quiet else None,
    }  # fmt: skip
    labelled = need_labels or labels is not None
    if labelled or (not ignore_labels and has_labels(path, split=split, items=items)):
        data: Items = load(path, labels=labels, **options)
    else:
        data = load_items(path, **options)
    for line in data.skipped:
        say(f"skipped: {line}")
    return data


def labels_of(data: Items) -> list[int | str] | None:
    """Labels as the source had them; None for items without labels."""
    from hashcade.data import LabelledItems

    return data.original_labels() if isinstance(data, LabelledItems) else None


def described(data: Items) -> str:
    """Data in one line."""
    shape = "×".join(map(str, data.items.shape[1:]))
    labels = labels_of(data)
    classes = f", {len(set(labels)):,} classes" if labels is not None else ""
    kind = "images" if data.is_images else "embeddings"
    return f"{len(data):,} {kind} ({shape}){classes} from {data.source}"


def root_of(path: Path, split: str | None, data: Items) -> Path:
    """The folder that the names of images begin in."""
    if not data.names:
        return path.absolute()
    place = path / split if split and (path / split).is_dir() else path
    return (place.parent if place.is_file() else place).absolute()


# -- models and tables -----------------------------------------------------------------------------


def model_path(path: Path) -> Path:
    """The directory of a model: a model itself, or the model of a table."""
    from hashcade.table import MODEL_DIR

    if not path.exists():
        hint = "make a model with: hashcade train DATA -o MODEL"
        raise StorageError(f"{path} does not exist", hint=hint)
    return path / MODEL_DIR if kind_of(path) == TABLE else path


def load_model(path: Path) -> Hasher:
    """Load a model. What is wrong with the path is said before torch is imported."""
    from hashcade.learn import read_config

    place = model_path(path)
    read_config(place)
    from hashcade.learn import Hasher

    return Hasher.load(place)


def load_table(path: Path) -> HashTable:
    """Load a table with its model."""
    refuse_other_kind(path)
    from hashcade.table import HashTable

    table = HashTable.load(path)
    say_pending(path)
    return table


def refuse_other_kind(path: Path) -> None:
    """Raise unless there is a table."""
    if known_kind(path) == MODEL:
        raise StorageError(
            f"{path} is a model, not a table",
            hint="make a table with: hashcade build MODEL DATA -o TABLE",
        )


def say_pending(path: Path) -> None:
    """Say on stderr if a service has changes that are not yet saved in the table."""
    count = pending_changes(path)
    if count:
        verb = "is" if count == 1 else "are"
        say(f"hashcade: {counted(count, 'change')} of a service {verb} not yet saved in {path}")


def pending_changes(path: Path) -> int:
    """How many acknowledged changes of a service are not yet saved in a table."""
    return 0


def encode_items(hasher: Hasher, data: Items, model: Path, *, quiet: bool) -> Encoded:
    """What a model makes of items, with a progress bar."""
    expected = tuple(hasher.config_.item_shape)
    if data.items.shape[1:] != expected:
        raise ConfigError(
            f"{data.source} has {_kind(data.items.shape[1:])}, {model} was trained on "
            f"{_kind(expected)}",
            hint="give data of that kind, or train another model",
        )
    with progress_bar("encoding", quiet=quiet) as move:
        return hasher.encode(data.items, progress=move)


def _kind(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"embeddings of {shape[0]} numbers"
    return f"images of {shape[0]}×{shape[1]}"
