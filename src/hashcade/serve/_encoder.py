"""From items to vectors, slot scores and buckets, with a hasher: the one place with torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.errors import ConfigError
from hashcade.index._origin import model_fingerprint

if TYPE_CHECKING:
    from hashcade.index._index import HashIndex


class Encoder:
    """A hasher that fits the index. Called by one thread at a time.

    Attributes
    ----------
    item_shape : tuple of int
        ``(size,)`` for embeddings, ``(height, width, 3)`` for images.
    by_path : bool
        Whether an item's buckets are those of its best slots, so that its scores alone say where
        to look. With a code book they are not.
    fingerprint : str
        See ``model_fingerprint``.
    class_names : list of str, or None
        Names of the classes, if the hasher was trained with names.
    """

    def __init__(self, path: Path, index: HashIndex) -> None:
        require_extra("torch", "train")
        from hashcade.learn._hasher import Hasher

        self.fingerprint = model_fingerprint(path)
        self._hasher: Any = Hasher.load(path)
        _, plan = self._hasher._fitted()
        self.item_shape: tuple[int, ...] = tuple(plan.item_shape)
        # Whether a stored vector is what the hasher takes: then it can be hashed anew.
        self.vectors_are_items = plan.backbone is None and plan.embedding_size is None
        self.vectors_are_items &= not plan.unit_length
        self.by_path = not hasattr(self._hasher, "codebook_")
        classes = self._hasher.classes_
        named = classes.dtype.kind == "U"
        self.class_names = [str(name) for name in classes] if named else None
        # A first call finds out what the vectors look like, and pays for what first calls pay.
        vectors, _, _ = self.encode(
            np.zeros((1, *self.item_shape), np.uint8 if self.images else float)
        )
        self.refuse_unfit(path, index, vectors.shape[1])

    def refuse_unfit(self, path: Path, index: HashIndex, dim: int) -> None:
        """Raise ``ConfigError`` unless the index can have been built with this hasher."""
        shape = self._hasher.shape_
        if shape != index.shape:
            raise ConfigError(f"{path} has {shape}, the index has {index.shape}")
        if dim != index.dim:
            raise ConfigError(f"{path} makes vectors of dim {dim}, the index has dim {index.dim}")

    @property
    def images(self) -> bool:
        """Whether the items are images."""
        return len(self.item_shape) == 3

    def encode(
        self, items: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return vectors, float32[n, dim], slot scores, float32[n, depth, width], and buckets.

        The buckets, int64[n, sparsity], are those that ``Hasher.transform`` gives.
        """
        own = np.array(items)  # bytes that came over the wire are read-only, which torch minds
        scores = self._hasher.scores(own)
        return self._hasher.embed(own), scores, self._hasher._assigned(scores)

    def scores(self, items: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return slot scores alone."""
        scores: npt.NDArray[np.float32] = self._hasher.scores(np.array(items))
        return scores
