"""The data of an experiment: a training set, and a test set that provides the queries.

- :func:`load_dataset`: what an experiment needs, from a folder with the official files.
- :func:`load_embeddings`: sets of embeddings by name.
- :mod:`~experiments.datasets.cifar100`, :mod:`~experiments.datasets.imagenet32`,
  :mod:`~experiments.datasets.clinc150`, :mod:`~experiments.datasets.han`,
  :mod:`~experiments.datasets.glove`: the loaders.
- :mod:`~experiments.datasets.imagenet_split`: the class lists of supplement D.
- :mod:`~experiments.datasets.unpickler`: reads official pickles without executing anything.
- :mod:`~experiments.datasets.download`: gets Cifar-100 from its site.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.datasets.cifar100 import load_cifar100, load_cifar100_embeddings
from experiments.datasets.clinc150 import load_clinc150
from experiments.datasets.files import unpack
from experiments.datasets.han import load_han
from experiments.datasets.imagenet32 import load_imagenet32
from experiments.datasets.imagenet_split import imagenet_split
from hashcade.data import LabelledItems
from hashcade.errors import DataError

_CIFAR = ("cifar-100-python", "cifar-100-python.tar.gz", "cifar-100-python.tar.xz")
_IMAGENET = ("imagenet32", "Imagenet32", "tiny-imagenet-32", ".")
_SAMPLE = "tiny-imagenet-32"
_ALL_CLASSES = 1000
EMBEDDINGS = ("cifar100", "clinc150", "han-2000", "han-20902")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training set and a test set; their classes are numbered alike, unless they are disjoint."""

    name: str
    note: str  # what a reader of the tables must know about it; may be empty
    train: LabelledItems
    test: LabelledItems
    groups: npt.NDArray[np.int64] | None = None  # coarse class of each test item
    is_sample: bool = False  # only a part of the set that the paper used

    @property
    def has_images(self) -> bool:
        """Whether items are images, and not embeddings."""
        return self.train.items.ndim == 4

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells this data from other data, as plain values."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            digest.update(part.labels.tobytes())
            some = part.items[:: max(1, len(part) // 512)]
            digest.update(np.ascontiguousarray(some).tobytes())
        return {
            "name": self.name,
            "n_train": len(self.train),
            "n_test": len(self.test),
            "n_classes": self.train.n_classes,
            "digest": digest.hexdigest()[:16],
        }


def load_dataset(experiment: str, preset: str, data: Path | None, cache: Path) -> Dataset:
    """Load the data of an experiment from a folder with the official files.

    Preset ``"smoke"`` needs none. Archives are unpacked into ``cache``.
    """
    if preset == "smoke":
        return _digits(disjoint=experiment == "imagenet-split")
    if data is None:
        raise DataError(
            f"{experiment} needs the official files of its data set",
            hint="name their folder with --data, or in the variable HASHCADE_DATA",
        )
    if experiment in ("cifar100", "ablation"):
        return _cifar100(data, cache)
    if experiment == "imagenet":
        return _imagenet(data, cache)
    if experiment == "imagenet-split":
        return _imagenet_split(data, cache)
    raise ValueError(f"experiment={experiment!r} has no data")


def load_embeddings(name: str, data: Path | None) -> Dataset:
    """Load one of :data:`EMBEDDINGS`; Han characters are made, the others lie in ``data``."""
    if name not in EMBEDDINGS:
        raise ValueError(f"data set {name!r} must be one of {', '.join(EMBEDDINGS)}")
    if name.startswith("han-"):
        n_classes = int(name.removeprefix("han-"))
        return _checked(
            f"Han characters, {n_classes:,} classes",
            *(load_han(n_classes, split) for split in ("train", "test")),
        )
    if data is None:
        raise DataError(
            f"{name} needs a folder with its embeddings",
            hint="name it with --data, or in the variable HASHCADE_DATA",
        )
    title, load = {
        "cifar100": ("Cifar-100 embeddings", load_cifar100_embeddings),
        "clinc150": ("CLINC150", load_clinc150),
    }[name]
    return _checked(title, load(data, "train"), load(data, "test"))


# -- the sets ----------------------------------------------------------------------------------


def _cifar100(data: Path, cache: Path) -> Dataset:
    places = [data / name for name in _CIFAR if (data / name).exists()]
    if not places and not (data / "meta").is_file():
        raise DataError(
            f"{data}: has none of {', '.join(_CIFAR)}",
            hint="download it: python -m experiments.datasets.download FOLDER",
        )
    place = places[0] if places else data
    if place.is_file():
        place = _unpacked(place, cache / "cifar-100")
    test = load_cifar100(place, "test")
    coarse = load_cifar100(place, "test", labels="coarse")
    return Dataset("Cifar-100", "", load_cifar100(place, "train"), test, groups=coarse.labels)


def _imagenet(data: Path, cache: Path) -> Dataset:
    place = _imagenet_folder(data, cache)
    train, test = load_imagenet32(place, "train"), load_imagenet32(place, "val")
    is_sample = train.n_classes < _ALL_CLASSES
    note = ""
    if is_sample:
        note = (
            f"A sample, not ImageNet: {train.n_classes} classes, {len(train):,} training images "
            f"and {len(test):,} images to search. The paper's results are those of all 1,000 "
            "classes: they are shown for orientation and cannot be compared one to one."
        )
    return Dataset("ImageNet 32×32", note, train, test, is_sample=is_sample)


def _imagenet_split(data: Path, cache: Path) -> Dataset:
    whole = _imagenet(data, cache)
    if not whole.is_sample:
        train, _ = imagenet_split(whole.train)
        _, test = imagenet_split(whole.test)
        return Dataset("ImageNetSplit", "", train, test)
    # Classes are in the order of WordNet, so neighbours are alike: taking every other one makes
    # pairs of a class that is learned and a similar one that is not, as the paper's lists do.
    n_classes = whole.train.n_classes
    train = _take_classes(whole.train, np.arange(0, n_classes, 2))
    test = _take_classes(whole.test, np.arange(1, n_classes, 2))
    note = (
        f"A sample, not ImageNet: {train.n_classes} classes with {len(train):,} training images, "
        f"and {len(test):,} images of the other {test.n_classes} classes as queries and database. "
        "The paper has 119 and 119 classes: its results are shown for orientation."
    )
    return Dataset("ImageNetSplit", note, train, test, is_sample=True)


def _digits(*, disjoint: bool) -> Dataset:
    """scikit-learn's digits: tiny, and available without a download."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    items = digits.data.astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(items))
    cut = len(order) * 2 // 3
    train, test = (
        LabelledItems(
            items[rows], digits.target[rows].astype(np.int64), tuple(range(10)), source="digits"
        )
        for rows in (order[:cut], order[cut:])
    )
    note = "scikit-learn's digits, to check that everything runs: the numbers mean nothing."
    if disjoint:
        train = _take_classes(train, np.arange(0, 10, 2))
        test = _take_classes(test, np.arange(1, 10, 2))
    groups = np.asarray(test.labels // 2, np.int64)
    return Dataset("Digits", note, train, test, groups=groups, is_sample=True)


# -- helpers -----------------------------------------------------------------------------------


def _checked(name: str, train: LabelledItems, test: LabelledItems) -> Dataset:
    """A set whose two parts number the same classes."""
    if train.class_names != test.class_names:
        raise DataError(f"{name}: training and test set have different classes")
    return Dataset(name, "", train, test)


def _take_classes(items: LabelledItems, classes: npt.NDArray[np.int64]) -> LabelledItems:
    """Items of some classes, which are renumbered."""
    numbers = np.full(items.n_classes, -1, np.int64)
    numbers[classes] = np.arange(len(classes))
    labels = numbers[items.labels]
    rows = np.flatnonzero(labels >= 0)
    names = tuple(items.class_names[c] for c in classes)
    return LabelledItems(items.items[rows], labels[rows], names, source=items.source)


def _imagenet_folder(data: Path, cache: Path) -> Path:
    for name in _IMAGENET:
        if (data / name / "val_data").is_file():
            return data / name
    archive = data / f"{_SAMPLE}.tar.xz"
    if not archive.is_file():
        raise DataError(f"{data}: has neither val_data (of ImageNet 32×32) nor {archive.name}")
    folder = _unpacked(archive, cache / _SAMPLE) / _SAMPLE
    if not (folder / "val_data").is_file():
        raise DataError(f"{archive}: has no {_SAMPLE}/val_data inside")
    return folder


def _unpacked(archive: Path, folder: Path) -> Path:
    """The folder with the files of an archive, which is unpacked if it does not exist yet."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack(archive, folder)
    return folder
