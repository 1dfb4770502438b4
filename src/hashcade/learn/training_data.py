"""The training set and the validation set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hashcade._validate import as_array, checked_count
from hashcade.data import augment as augment_images
from hashcade.data import stratified_sample
from hashcade.errors import DataError
from hashcade.learn import inputs
from hashcade.learn.assignment import Ints
from hashcade.learn.distributed import local_gpu
from hashcade.learn.networks import BACKBONES, IMAGE_NETWORKS

MOST_IN_MEMORY = 16384  # items of a memory-mapped array that are loaded at once


def takes_images(backbone: str | nn.Module | None, items: object) -> bool:
    """Whether items are images, by the name of the network, or by their shape."""
    if isinstance(backbone, nn.Module):
        return as_array("X", items).ndim == 4
    if backbone is not None and backbone not in BACKBONES:
        allowed = f"a torch.nn.Module or one of {list(BACKBONES)}"
        raise ValueError(f"backbone={backbone!r} must be {allowed}")
    return backbone in IMAGE_NETWORKS


def checked_device(device: str) -> torch.device:
    """Return the device with this name; raise ``ValueError`` if it is not available."""
    gpu = local_gpu()
    if gpu is not None and device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{gpu}"
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used: {reason}") from None


def checked_items(
    X: object, y: object, images: bool, sample: int | None, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return items and labels for training, or a sample of them; a ``np.memmap`` unchanged.

    The values of a ``np.memmap`` are checked when they are read.
    """
    check: Any = inputs.checked_images if images else inputs.checked_views
    mapped = isinstance(X, np.memmap) and len(X) > 0
    if mapped:
        check(as_array("X", X)[:1])
    items = as_array("X", X) if mapped else check(X)
    labels = inputs.checked_classes(y, len(items))
    if sample is None:
        return items, labels
    rows = stratified_sample(labels, checked_count("sample", sample), random_state=seed)
    return check(items[rows]) if mapped else items[rows], labels[rows]


@dataclass(frozen=True)
class TrainingData:
    """Items of training and validation set. Labels are numbers 0, 1, 2, ...

    Items are a tensor on its device, or a memory-mapped array whose rows are read when needed.
    """

    items: Tensor | npt.NDArray[Any]  # real[n, size], real[n, views, size] or uint8[n, h, w, 3]
    labels: Ints  # (n,)
    training: Ints  # row numbers
    validation: Ints  # row numbers; may be empty

    @property
    def mapped(self) -> bool:
        """Whether the items stay in their file."""
        return isinstance(self.items, np.ndarray)

    def items_at(self, rows: Ints) -> Tensor:
        """Items without augmentation; of several views the first."""
        return self._take(rows, np.zeros_like(rows) if self.items.ndim == 3 else None)

    def chunked(self, rows: Ints) -> Tensor | MappedRows:
        """The same for many rows, to be sliced: rows of a file are read slice by slice."""
        return MappedRows(self, rows) if self.mapped else self.items_at(rows)

    def normalization_items(self) -> Tensor:
        """Items for mean and scale: those of the training set, or a sample."""
        rows = self.training
        if self.mapped and len(rows) > MOST_IN_MEMORY:
            sample = np.random.default_rng(0).choice(len(rows), MOST_IN_MEMORY, replace=False)
            rows = rows[np.sort(sample)]
        return self.items_at(rows)

    def augmented(self, rows: Ints, augment: str, seed: int) -> Tensor:
        """Items for a training step: augmented images, or a random view of embeddings."""
        if self.items.ndim == 3:
            generator = torch.Generator().manual_seed(seed)
            views = torch.randint(self.items.shape[1], (len(rows),), generator=generator)
            return self._take(rows, views.numpy())
        items = self._take(rows)
        if augment == "none":
            return items
        images = items.numpy()  # images are in main memory
        rng, pad = np.random.default_rng(seed), images.shape[1] // 8  # 4 for images of 32×32
        augmented = augment_images(images, rng, pad=pad, mirror=augment == "crop-mirror")
        return torch.from_numpy(augmented)

    def _take(self, rows: Ints, views: Ints | None = None) -> Tensor:
        if isinstance(self.items, Tensor):
            device = self.items.device
            indices = torch.from_numpy(rows).to(device)
            if views is None:
                return self.items[indices]
            return self.items[indices, torch.from_numpy(views).to(device)]
        values = self.items[rows] if views is None else self.items[rows, views]
        if values.ndim == 4:
            return torch.from_numpy(values)
        with np.errstate(over="ignore"):  # beyond float32: named as infinite below
            vectors = values.astype(np.float32, copy=False)
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            message = f"X has NaN or infinite values in row {rows[bad][0]}"
            raise DataError(message, hint="remove or fix these rows")
        return torch.from_numpy(vectors)


class MappedRows:
    """Rows of a memory-mapped array, read a slice at a time."""

    def __init__(self, data: TrainingData, rows: Ints) -> None:
        self._data, self._rows = data, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> Tensor:
        return self._data.items_at(self._rows[part])


def stratified_split(
    labels: Ints, *, fraction: float, random_state: int, max_items: int | None = None
) -> tuple[Ints, Ints]:
    """Rows of training and validation set, ascending: the same fraction of every class.

    At least two items of a class, a query and a result, are in the validation set, or none if the
    class has fewer than four. With ``max_items`` random classes are used, until these are reached.
    """
    if fraction >= 1.0:
        raise ValueError(f"validation_fraction={fraction!r} must be >= 0 and < 1")
    in_validation = np.zeros(len(labels), np.bool_)
    if fraction > 0:
        rng = np.random.default_rng([random_state, 0x5EED])
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]  # by class, shuffled within
        _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
        n_left = len(labels) if max_items is None else max_items
        for number in rng.permutation(len(starts)).tolist() if max_items else range(len(starts)):
            start, size = int(starts[number]), int(sizes[number])
            if size >= 4 and n_left >= 2:  # leaves a pair for training
                n_taken = min(max(2, round(fraction * size)), size - 2, n_left)
                in_validation[order[start : start + n_taken]] = True
                n_left -= n_taken
    return np.flatnonzero(~in_validation), np.flatnonzero(in_validation)
