"""What all baselines share: settings, checks, scores to buckets, files.

A baseline is a table of one level: a slot per bucket, and a score per slot that says how well the
slot fits. The ``sparsity`` best slots are the buckets of an item, be it stored or asked for, and a
query that needs more goes on in the order of the scores.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from hashcade._version import __version__
from hashcade.codes._shape import CodeShape
from hashcade.errors import CorruptIndexError, NotFittedError, StorageError
from hashcade.learn._files import read_tensors, write_tensors
from hashcade.learn._inputs import checked_embeddings, checked_labels
from hashcade.learn._settings import Settings

KIND = "hashcade baseline"
VERSION = 1
_SCORES = 1 << 24  # numbers of scores at a time: 64 MB

Floats = npt.NDArray[np.float32]
State = dict[str, Floats]


class Baseline(Settings):
    """Base class. A baseline implements ``_learn`` and ``_score``, and takes keyword settings.

    Attributes
    ----------
    shape_ : CodeShape
        The shape of the table: one level.
    """

    shape_: CodeShape
    _state: State
    _size: int

    # -- learning ------------------------------------------------------------------------------

    _needs_labels = False

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Self:
        """Learn from embeddings.

        Parameters
        ----------
        X : float[n, size]
        y : int or str[n], optional
            Classes. Only a supervised method needs them; others look at nothing but ``X``.
        """
        items = checked_embeddings(X)
        if y is None and self._needs_labels:
            raise ValueError(f"y is None: {type(self).__name__} learns from labels")
        labels = None
        if y is not None and self._needs_labels:
            labels = np.unique(checked_labels(y, len(items)), return_inverse=True)[1]
            labels = labels.astype(np.int64)
        shape, state = self._learn(items, labels)
        self.shape_, self._state, self._size = shape, state, items.shape[1]  # all is well: now
        return self

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        raise NotImplementedError

    def _score(self, items: Floats, state: State) -> Floats:
        """Scores of the slots, float32[n, width]."""
        raise NotImplementedError

    # -- use -----------------------------------------------------------------------------------

    def scores(self, X: npt.ArrayLike) -> Floats:
        """Slot scores, float32[n, 1, width]: the higher, the better the slot fits."""
        items = self._checked(X)
        return np.concatenate([self._score(part, self._state) for part in self._parts(items)])[
            :, None
        ]

    def transform(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Bucket ids, int64[n, sparsity], best first."""
        items = self._checked(X)
        return np.concatenate(
            [
                self.shape_.scores_to_bucket_ids(self._score(part, self._state)[:, None])
                for part in self._parts(items)
            ]
        )

    def embed(self, X: npt.ArrayLike) -> Floats:
        """Vectors for re-ranking, float32[n, size]: the given ones."""
        return self._checked(X)

    def _checked(self, X: npt.ArrayLike) -> Floats:
        if not hasattr(self, "_state"):
            name = type(self).__name__
            raise NotFittedError(f"this {name} has learned nothing yet: call fit or {name}.load")
        return checked_embeddings(X, self._size)

    def _parts(self, items: Floats) -> list[Floats]:
        step = max(64, _SCORES // self.shape_.width)
        return [items[start : start + step] for start in range(0, len(items), step)]

    # -- files ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a directory, ``config.json`` and ``model.safetensors``: whole or not at all."""
        if not hasattr(self, "_state"):
            raise NotFittedError(f"this {type(self).__name__} has learned nothing yet: call fit")
        shape = self.shape_
        config = {
            "hashcade_version": __version__,
            "method": type(self).__name__,
            "settings": self.get_params(),
            "shape": {"width": shape.width, "depth": shape.depth, "sparsity": shape.sparsity},
            "size": self._size,
        }
        tensors = {name: torch.from_numpy(value) for name, value in self._state.items()}
        write_tensors(Path(path), KIND, VERSION, config, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote."""
        config, tensors = read_tensors(Path(path), KIND, (VERSION,))
        if config.get("method") != cls.__name__:
            raise StorageError(f"{path} holds {config.get('method')!r}, must be {cls.__name__}")
        try:
            made = cls(**config["settings"])
            made.shape_ = CodeShape(**config["shape"])
            made._size = int(config["size"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"{path} is damaged: its parts do not fit: {error}") from None
        made._state = {name: value.numpy() for name, value in tensors.items()}
        return made
