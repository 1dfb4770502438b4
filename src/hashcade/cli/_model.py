"""Models: loaded, matched with an index, and applied to items piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade.cli._input import Input, read_input
from hashcade.cli._progress import progress
from hashcade.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from hashcade.index import Origin
    from hashcade.learn import Hasher

_CHUNK = 1024


@dataclass(frozen=True)
class Encoded:
    """What a model says about items."""

    bucket_ids: Any  # int64[n, sparsity]
    vectors: Any  # float32[n, dim]
    scores: Any  # float32[n, depth, width], or None


def load_model(path: Path) -> Hasher:
    """Load a model. What is wrong with the path is said before torch is imported."""
    if not path.exists():
        raise StorageError(f"{path} does not exist; make a model: hashcade train DATA -o MODEL")
    if not (path / "config.json").is_file():
        raise StorageError(f"{path} is no hashcade model: config.json is missing")
    from hashcade.learn import Hasher

    return Hasher.load(path)


def image_size_of(hasher: Hasher) -> tuple[int, int] | None:
    """Height and width of the images that a model takes; None if it takes embeddings."""
    shape = hasher._fitted()[1].item_shape
    return (shape[0], shape[1]) if len(shape) == 3 else None


def check_kind(hasher: Hasher, items: Any, source: str, model: Path) -> None:
    """Say in the words of a user if items are not what a model was trained on."""
    wanted = hasher._fitted()[1].item_shape
    if items.shape[1:] != wanted:
        raise ConfigError(
            f"{source} has {_described(items.shape[1:])}, {model} was trained on "
            f"{_described(wanted)}; give data of that kind, or train another model"
        )


def encode_items(hasher: Hasher, items: Any, *, with_scores: bool, quiet: bool) -> Encoded:
    """Buckets and vectors of items, with a bar."""
    import numpy as np

    buckets, vectors, scores = [], [], []
    with progress("encoding", quiet=quiet) as move:
        for at in range(0, len(items), _CHUNK):
            part = items[at : at + _CHUNK]
            buckets.append(hasher.transform(part))
            vectors.append(hasher.embed(part))
            if with_scores:
                scores.append(hasher.scores(part))
            move(min(at + _CHUNK, len(items)), len(items))
    return Encoded(
        np.concatenate(buckets),
        np.concatenate(vectors),
        np.concatenate(scores) if with_scores else None,
    )


def encode_data(
    model: Path, data: Path, *, with_scores: bool, skip_bad: bool, quiet: bool, **options: Any
) -> tuple[Hasher, Input, Encoded]:
    """The model, the data as it takes them, and what it says about them.

    ``options`` are ``split``, ``items`` and ``labels`` of :func:`read_input`.
    """
    hasher = load_model(model)
    found = read_input(
        data, need_labels=False, size=image_size_of(hasher), skip_bad=skip_bad, quiet=quiet,
        **options,
    )  # fmt: skip
    check_kind(hasher, found.items, found.source, model)
    return hasher, found, encode_items(hasher, found.items, with_scores=with_scores, quiet=quiet)


def model_of_index(
    index: Path, origin: Origin | None, given: Path | None, *, by: str = "--model"
) -> Path:
    """The directory of the model that an index was built with; ``by`` is how another is given."""
    path = given or (origin.model if origin else None)
    if path is None:
        raise ConfigError(f"{index} does not say which model it was built with; give {by}")
    if not path.exists():
        if given is not None:
            raise StorageError(f"{path} does not exist; check the path")
        raise StorageError(f"{index} was built with {path}, which is gone; say where: {by}")
    if origin is not None:
        from hashcade.index import model_fingerprint

        model_fingerprint(path)  # what is wrong with the model itself is said in its own words
        try:
            origin.check_model(path)
        except StorageError as error:
            raise StorageError(f"{error}; give the right one with {by}, or build again") from None
    return path


def _described(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"embeddings of {shape[0]} numbers"
    return f"images of {shape[0]}×{shape[1]}"
