"""The data of an experiment: what is learned from, and what is asked and searched."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.data import imagenet_split, load_cifar100, load_imagenet32
from hashcade.data._items import LabelledItems
from hashcade.errors import DataError

_CIFAR = ("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz",
          "cifar-100-python.tar.xz", "cifar-100-binary.tar.gz")  # fmt: skip
_IMAGENET = ("imagenet32", "Imagenet32", "tiny-imagenet-32", ".")
_SAMPLE_ARCHIVE = "tiny-imagenet-32.tar.xz"
_ALL_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class World:
    """Items to learn from and items to search, with their classes.

    Attributes
    ----------
    name
        What it is, for titles.
    note
        What a reader of the tables must know about it; may be empty.
    train, test
        To learn from; to ask with. Their classes are numbered alike, unless they are disjoint.
    groups
        What the classes of ``test`` belong to, int[n_test], if that is known.
    is_sample
        Whether this is a part of the set that the paper used.
    """

    name: str
    note: str
    train: LabelledItems
    test: LabelledItems
    groups: npt.NDArray[np.int64] | None = None
    is_sample: bool = False

    @property
    def has_images(self) -> bool:
        """Whether items are images, and not embeddings."""
        return self.train.items.ndim == 4

    def describe(self) -> dict[str, Any]:
        """What tells this data from other data, as plain values."""
        return {
            "name": self.name,
            "n_train": len(self.train),
            "n_test": len(self.test),
            "n_classes": self.train.n_classes,
            "digest": _digest(self.train, self.test),
        }


def load_world(experiment: str, preset: str, data: Path | None, work: Path) -> World:
    """Load the data of an experiment.

    Parameters
    ----------
    data
        Folder with the official files; not needed for preset ``"smoke"``.
    work
        Where an archive may be unpacked.
    """
    if preset == "smoke":
        return _digits(disjoint=experiment == "imagenet-split")
    if data is None:
        raise DataError(
            "the official files are needed: give their folder (--data, or HASHCADE_DATA)"
        )
    if experiment in ("cifar100", "ablation"):
        return _cifar100(data)
    if experiment == "imagenet":
        return _imagenet(data, work)
    if experiment == "imagenet-split":
        return _imagenet_split(data, work)
    raise ValueError(f"experiment={experiment!r} has no data")


# -- the sets ----------------------------------------------------------------------------------


def _cifar100(data: Path) -> World:
    places = [data / name for name in _CIFAR if (data / name).exists()]
    if not places and not (data / "meta").is_file():
        raise DataError(f"{data}: has none of {', '.join(_CIFAR)}")
    place = places[0] if places else data
    test = load_cifar100(place, "test")
    coarse = load_cifar100(place, "test", labels="coarse")
    return World("Cifar-100", "", load_cifar100(place, "train"), test, groups=coarse.labels)


def _imagenet(data: Path, work: Path) -> World:
    place = _imagenet_folder(data, work)
    train, test = load_imagenet32(place, "train"), load_imagenet32(place, "val")
    is_sample = train.n_classes < _ALL_CLASSES
    note = ""
    if is_sample:
        note = (
            f"A sample, not ImageNet: {train.n_classes} classes, {len(train):,} images to learn "
            f"from and {len(test):,} to search. The paper's figures are those of all 1,000 "
            "classes: they stand here for orientation and cannot be compared one to one."
        )
    return World("ImageNet 32×32", note, train, test, is_sample=is_sample)


def _imagenet_split(data: Path, work: Path) -> World:
    whole = _imagenet(data, work)
    if not whole.is_sample:
        train, _ = imagenet_split(whole.train)
        _, test = imagenet_split(whole.test)
        return World("ImageNetSplit", "", train, test)
    # Classes stand in the order of WordNet, so neighbours are alike: taking every other one makes
    # pairs of a class that is learned and a similar one that is not, as the paper's lists do.
    n_classes = whole.train.n_classes
    train = _classes(whole.train, np.arange(0, n_classes, 2))
    test = _classes(whole.test, np.arange(1, n_classes, 2))
    note = (
        f"A sample, not ImageNet: {train.n_classes} classes with {len(train):,} images to learn "
        f"from, and {len(test):,} images of the other {test.n_classes} classes to ask and to "
        "search. The paper has 119 and 119 classes: its figures stand here for orientation."
    )
    return World("ImageNetSplit", note, train, test, is_sample=True)


def _digits(*, disjoint: bool) -> World:
    """scikit-learn's digits: tiny, and at hand everywhere."""
    digits = require_extra("sklearn.datasets", "demo").load_digits()
    items = digits.data.astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(items))
    cut = len(order) * 2 // 3
    train, test = (
        LabelledItems(items[rows], digits.target[rows].astype(np.int64), tuple(range(10)), "digits")
        for rows in (order[:cut], order[cut:])
    )
    note = "Digits of scikit-learn, to see that everything runs: no figure here means anything."
    if disjoint:
        train, test = _classes(train, np.arange(0, 10, 2)), _classes(test, np.arange(1, 10, 2))
    groups = np.asarray(test.labels // 2, np.int64)
    return World("Digits", note, train, test, groups=groups, is_sample=True)


# -- helpers -----------------------------------------------------------------------------------


def _classes(items: LabelledItems, wanted: npt.NDArray[np.int64]) -> LabelledItems:
    """Items of some classes, numbered anew."""
    numbers = np.full(items.n_classes, -1, np.int64)
    numbers[wanted] = np.arange(len(wanted))
    labels = numbers[items.labels]
    rows = np.flatnonzero(labels >= 0)
    names = tuple(items.class_names[c] for c in wanted)
    return LabelledItems(items.items[rows], labels[rows], names, items.source)


def _imagenet_folder(data: Path, work: Path) -> Path:
    for name in _IMAGENET:
        if (data / name / "val_data").is_file():
            return data / name
    place = work / "tiny-imagenet-32"
    if not (place / "val_data").is_file():
        archive = data / _SAMPLE_ARCHIVE
        if not archive.is_file():
            raise DataError(
                f"{data}: has neither val_data (of ImageNet 32×32) nor {_SAMPLE_ARCHIVE}"
            )
        work.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
    if not (place / "val_data").is_file():
        raise DataError(f"{data / _SAMPLE_ARCHIVE}: has no tiny-imagenet-32/val_data inside")
    return place


def _digest(*parts: LabelledItems) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.labels.tobytes())
        some = part.items[:: max(1, len(part) // 512)]
        digest.update(np.ascontiguousarray(some).tobytes())
    return digest.hexdigest()[:16]
