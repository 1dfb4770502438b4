"""What others ask of an estimator beyond ``fit`` and ``transform``: scikit-learn, ONNX.

scikit-learn itself is not needed: only ``__sklearn_tags__`` imports it, and nobody but
scikit-learn calls that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.learn._inputs import checked_labels


class EstimatorHabits:
    """Mixin of :class:`Hasher`: tags, ``fit_transform``, ``score``, ``to_onnx``."""

    def fit_transform(self, X: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Learn from labelled items, and give their buckets."""
        buckets: npt.NDArray[np.int64] = self.fit(X, y).transform(X)  # type: ignore[attr-defined]
        return buckets

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """Share of items whose nearest other item in their buckets is of their class, 0 to 1.

        Precision at 1 of the items searched among themselves, without going on to further
        buckets: an item that is alone counts as wrong. So a table scores low both if it mixes
        classes and if it scatters them. Needs no training items, and is what ``GridSearchCV``
        compares settings by.
        """
        buckets = self.transform(X)  # type: ignore[attr-defined]
        vectors = self.embed(X)  # type: ignore[attr-defined]
        labels = checked_labels(y, len(vectors), n_classes=1)
        members = _members(buckets)
        right = 0
        for query, own in enumerate(buckets.tolist()):
            others = np.unique(np.concatenate([members[bucket] for bucket in own]))
            others = others[others != query]
            if len(others):
                gaps = np.square(vectors[others] - vectors[query]).sum(axis=1)
                right += int(labels[others[gaps.argmin()]] == labels[query])
        return right / len(vectors)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the hasher as an ONNX file, to be run without Python or torch.

        Input ``items``: float32[n, size] embeddings or uint8[n, height, width, 3] images, any n.
        Outputs ``bucket_ids`` int64[n, sparsity], ``scores`` float32[n, depth, width] and
        ``vectors`` float32[n, size]. Another runtime rounds in another way, so an item whose two
        best slots or codes are equal to within rounding may get the other one.

        Needs the extra ``onnx``.
        """
        from hashcade.learn._onnx import export_onnx

        export_onnx(Path(path), *self._fitted())  # type: ignore[attr-defined]

    @property
    def n_features_in_(self) -> int:
        """Numbers per item, once fitted: of an embedding, or of an image."""
        if not hasattr(self, "_plan"):
            raise AttributeError("n_features_in_ is there after fit")
        return int(np.prod(self._plan.item_shape))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            classifier_tags=None,
            regressor_tags=None,
            input_tags=InputTags(two_d_array=True),
        )


def _members(buckets: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
    """Items of each bucket."""
    flat = buckets.ravel()
    order = np.argsort(flat, kind="stable")
    found, starts = np.unique(flat[order], return_index=True)
    items = order // buckets.shape[1]
    return dict(zip(found.tolist(), np.split(items, starts[1:]), strict=True))
