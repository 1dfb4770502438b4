"""The training set and the validation set, on their device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hashcade._validate import as_array
from hashcade.data import augment as augment_images
from hashcade.learn.assignment import Ints
from hashcade.learn.distributed import local_gpu
from hashcade.learn.networks import BACKBONES, IMAGE_NETWORKS


def takes_images(backbone: str | nn.Module | None, items: object) -> bool:
    """Whether items are images: by the name of the network, else by their shape."""
    if isinstance(backbone, nn.Module):
        return as_array("X", items).ndim == 4
    if backbone is not None and backbone not in BACKBONES:
        known = f"a torch.nn.Module or one of {list(BACKBONES)}"
        raise ValueError(f"backbone={backbone!r} must be {known}")
    return backbone in IMAGE_NETWORKS


def checked_device(device: str) -> torch.device:
    """Return the device of a name, which must be available."""
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


@dataclass(frozen=True)
class TrainingData:
    """Items to learn from, and the validation set. Labels are numbers 0, 1, 2, ..."""

    items: Tensor  # float32[n, size], float32[n, views, size] or uint8[n, h, w, 3]
    labels: Ints  # (n,)
    training: Ints  # row numbers
    validation: Ints  # row numbers; may be empty

    def whole(self, rows: Ints) -> Tensor:
        """Items as they are; of several views the first."""
        first = self.items[:, 0] if self.items.ndim == 3 else self.items
        return first[torch.from_numpy(rows).to(first.device)]

    def varied(self, rows: Ints, augment: str, seed: int) -> Tensor:
        """Items as training sees them: images changed at random, or a random view."""
        places = torch.from_numpy(rows).to(self.items.device)
        if self.items.ndim == 3:
            generator = torch.Generator().manual_seed(seed)
            views = torch.randint(self.items.shape[1], (len(rows),), generator=generator)
            return self.items[places, views.to(places.device)]
        if augment == "none":
            return self.items[places]
        images = self.items[places].numpy()  # images stay in main memory
        rng, pad = np.random.default_rng(seed), images.shape[1] // 8  # 4 for images of 32×32
        varied = augment_images(images, rng, pad=pad, mirror=augment == "crop-mirror")
        return torch.from_numpy(varied)


def stratified_split(
    labels: Ints, *, fraction: float, random_state: int, most: int | None = None
) -> tuple[Ints, Ints]:
    """Rows of training and validation set, ascending: the same fraction of every class.

    A class gives at least two items, a query and its answer; a class with fewer than four none.
    With ``most``, classes at random give theirs until so many items are there.
    """
    if fraction >= 1.0:
        raise ValueError(f"validation_fraction={fraction!r} must be >= 0 and < 1")
    in_validation = np.zeros(len(labels), np.bool_)
    if fraction > 0:
        rng = np.random.default_rng([random_state, 0x5EED])
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]  # by class, shuffled within
        _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
        n_left = len(labels) if most is None else most
        for number in rng.permutation(len(starts)).tolist() if most else range(len(starts)):
            start, size = int(starts[number]), int(sizes[number])
            if size >= 4 and n_left >= 2:  # else no pair to learn from would be left
                n_taken = min(max(2, round(fraction * size)), size - 2, n_left)
                in_validation[order[start : start + n_taken]] = True
                n_left -= n_taken
    return np.flatnonzero(~in_validation), np.flatnonzero(in_validation)
