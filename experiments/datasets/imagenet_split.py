"""ImageNetSplit: 119 classes to train on, and 119 others to search among (supplement D).

The classes come in pairs, tench and goldfish, cello and violin: the test classes resemble the
training classes and are different ones.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from hashcade.data import LabelledItems
from hashcade.errors import DataError


class SplitClass(NamedTuple):
    """A class of ImageNet: its WordNet number and its name."""

    synset: str
    name: str


@cache
def imagenet_split_classes() -> tuple[tuple[SplitClass, ...], tuple[SplitClass, ...]]:
    """Return the lists of training and test classes of the supplement, 119 each, in its order.

    The names are those of the paper; the WordNet numbers were added here.

    Examples
    --------
    >>> train, test = imagenet_split_classes()
    >>> train[0].name, test[0].name, len(train), len(test)
    ('tench', 'goldfish', 119, 119)
    """
    text = Path(__file__).with_name("imagenet_split.txt").read_text("utf-8")
    rows = [line.split(" | ") for line in text.splitlines()]
    train, test = ([SplitClass(*row[side].split(" ", 1)) for row in rows] for side in (0, 1))
    return tuple(train), tuple(test)


def imagenet_split(
    items: LabelledItems, *, on_missing: Literal["raise", "drop"] = "raise"
) -> tuple[LabelledItems, LabelledItems]:
    """Split ImageNet by class: items of the training classes, and items of the test classes.

    Class names may be those of any distribution: ``tench``, ``common_newt``, ``tench, Tinca tinca``
    (the first of the synonyms counts), ``n01440764``, ``n01440764_tench``. In the result they are
    the paper's, and class ``c`` is the ``c``-th of its list. ``on_missing="drop"`` allows for a
    part of ImageNet.
    """
    if on_missing not in ("raise", "drop"):
        raise ValueError(f"on_missing={on_missing!r} must be 'raise' or 'drop'")
    lists = imagenet_split_classes()
    index = _NameIndex(items.class_names, source=items.source)
    numbers = [[index.find(entry) for entry in classes] for classes in lists]
    missing = [
        entry.name
        for classes, row in zip(lists, numbers, strict=True)
        for entry, number in zip(classes, row, strict=True)
        if number is None
    ]
    if missing and on_missing == "raise":
        raise DataError(
            f"{items.source}: {len(missing)} of the 238 classes of ImageNetSplit are missing: "
            f"{', '.join(missing)}"
        )
    parts = []
    for side, classes, row in zip(("train", "test"), lists, numbers, strict=True):
        present = [(c.name, n) for c, n in zip(classes, row, strict=True) if n is not None]
        parts.append(_take(items, present, f"{items.source}, ImageNetSplit {side}"))
    return parts[0], parts[1]


def _take(items: LabelledItems, classes: list[tuple[str, int]], source: str) -> LabelledItems:
    """Items of some classes, which are renumbered in the order given."""
    renumbered = np.full(items.n_classes, -1, np.int64)
    renumbered[[number for _, number in classes]] = np.arange(len(classes))
    labels = renumbered[items.labels]
    rows = np.flatnonzero(labels >= 0)
    if len(rows) == 0:
        raise DataError(f"{source}: no items of these classes")
    names = tuple(name for name, _ in classes)
    return LabelledItems(items.items[rows], labels[rows], names, source=source)


# Cardigan is a dog and cardigan is clothing: ImageNet has both, and they differ in case alone.
_EXACTLY = {"cardigan"}


class _NameIndex:
    """Finds a class by WordNet number, by name, and then by name without regard to spelling."""

    def __init__(self, class_names: tuple[int | str, ...], source: str) -> None:
        self._source = source
        self._names = class_names
        self._by: tuple[dict[str, list[int]], ...] = ({}, {}, {})
        for number, label in enumerate(class_names):
            synset, name = _parts(str(label))
            for table, key in zip(self._by, (synset, name, _loosely(name)), strict=True):
                if key and key not in _EXACTLY:
                    table.setdefault(key, []).append(number)

    def find(self, entry: SplitClass) -> int | None:
        """Return the number of the class, or None if it is missing."""
        keys = (entry.synset, entry.name, _loosely(entry.name))
        for table, key in zip(self._by, keys, strict=True):
            numbers = table.get(key, [])
            if len(numbers) > 1:
                both = ", ".join(repr(self._names[number]) for number in numbers)
                raise DataError(f"{self._source}: {entry.name} may be any of the classes {both}")
            if numbers:
                return numbers[0]
        return None


def _parts(label: str) -> tuple[str, str]:
    """Take a label apart: ``n01440764_tench, Tinca tinca`` → ``n01440764`` and ``tench``."""
    match = re.fullmatch(r"(?:(n\d{8})(?:[\s_:-]+|$))?(.*)", label.strip(), flags=re.DOTALL)
    synset, rest = match.groups() if match else (None, label)
    name = rest.split(",")[0].replace("_", " ").strip()
    behind = re.fullmatch(r"(.*) \((n\d{8})\)", name, flags=re.DOTALL)  # as read_class_map does
    return (behind[2], behind[1]) if behind else (synset or "", name)


def _loosely(name: str) -> str:
    return " ".join(re.split(r"[\s_-]+", name.casefold())).strip()
