"""Data as a user has it, read by the options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashcade.cli._output import say
from hashcade.cli._progress import progress
from hashcade.errors import ConfigError

_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Input:
    """Items, with labels or without."""

    path: Path
    items: Any  # float32[n, m] or uint8[n, h, w, 3]
    labels: Any  # int64[n], or None
    class_names: tuple[int | str, ...]
    names: tuple[str, ...]
    source: str
    skipped: tuple[str, ...]

    @property
    def is_images(self) -> bool:
        """Whether the items are images; otherwise they are embeddings."""
        return bool(self.items.ndim == 4)

    def original_labels(self) -> list[int | str]:
        """Labels as the source had them."""
        return [self.class_names[number] for number in self.labels.tolist()]

    def describe(self) -> str:
        """Say in one line what this is."""
        what = "embeddings" if not self.is_images else "images"
        shape = "×".join(map(str, self.items.shape[1:]))
        classes = f", {len(self.class_names):,} classes" if self.labels is not None else ""
        return f"{len(self.items):,} {what} ({shape}){classes} from {self.source}"


def read_input(
    path: Path,
    *,
    need_labels: bool,
    split: str | None = None,
    items: str | None = None,
    labels: str | None = None,
    size: tuple[int, int] | None = None,
    skip_bad: bool = False,
    quiet: bool = False,
) -> Input:
    """Read data with its labels; without, if there are none and none are needed.

    ``size`` is what images are brought to if they are files; arrays of images stay as they are.
    """
    from hashcade.data import has_labels, load, load_items
    from hashcade.data._files import existing
    from hashcade.data._load import recognised

    place = existing(path)
    options = _options_for(place, items, labels)
    with progress("reading", quiet=quiet) as move:
        labelled = need_labels or "labels" in options or has_labels(place, split=split, **{
            name: options[name] for name in ("items_key", "labels_key", "label") if name in options
        })  # fmt: skip
        found: Any
        if labelled:
            loader = recognised(place).__name__
            if loader == "load_image_folder":
                options |= _for_images(size, skip_bad, move)
            found = load(place, split=split, **options)
        else:
            kept = {name: options[name] for name in ("items_key", "embedding") if name in options}
            found = load_items(place, split=split, **kept, **_for_images(size, skip_bad, move))
    for line in found.skipped:
        say(f"passed over: {line}")
    return Input(
        path=place,
        items=found.items,
        labels=found.labels if labelled else None,
        class_names=found.class_names if labelled else (),
        names=found.names,
        source=found.source,
        skipped=found.skipped,
    )


def extras_for(path: Path) -> dict[str, str]:
    """Packages that reading ``path`` needs, each with its extra."""
    from hashcade.data._files import existing
    from hashcade.data._load import recognised

    place = existing(path)
    if place.suffix.lower() in _PARQUET:
        return {"pyarrow": "parquet"}
    return {"PIL": "images"} if recognised(place).__name__ == "load_image_folder" else {}


def read_queries(
    path: Path,
    *,
    split: str | None,
    items: str | None,
    size: tuple[int, int] | None,
    quiet: bool,
) -> Any:
    """Read items to ask with; labels are not looked at."""
    from hashcade.data import load_items
    from hashcade.data._files import existing

    place = existing(path)
    kept = _options_for(place, items, None)
    with progress("reading", quiet=quiet) as move:
        return load_items(place, split=split, **kept, **_for_images(size, False, move))


def _for_images(
    size: tuple[int, int] | None, skip_bad: bool, move: Callable[[int, int], None]
) -> dict[str, Any]:
    return {"size": size, "on_error": "skip" if skip_bad else "raise", "progress": move}


def _options_for(place: Path, items: str | None, labels: str | None) -> dict[str, Any]:
    """--items and --labels as the loader of the file calls them."""
    suffix = place.suffix.lower() if place.is_file() else ""
    if suffix == ".npz":
        names = {"items_key": items, "labels_key": labels}
    elif suffix in _PARQUET:
        names = {"embedding": items, "label": labels}
    elif suffix == ".npy":
        names = {"labels": labels}
        if items is not None:
            raise ConfigError(f"--items={items} is for .npz and Parquet; {place} has one array")
    else:
        names = {}
        for option, value in (("--items", items), ("--labels", labels)):
            if value is not None:
                raise ConfigError(f"{option}={value} is for arrays and Parquet, {place} is neither")
    if suffix == ".npz" and labels is not None and items is None:
        raise ConfigError(f"--labels={labels} needs --items as well for {place}")
    return {name: value for name, value in names.items() if value is not None}
