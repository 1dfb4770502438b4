"""What scikit-learn's tools expect of an estimator, without importing scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class EstimatorMixin:
    """Settings by name, ``fit_transform`` and tags; for a class that takes settings alone."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name. What was learned stays until the next ``fit``."""
        allowed = self.get_params()
        for name in params:
            if name not in allowed:
                raise ValueError(f"{name!r} is not a setting, must be one of {sorted(allowed)}")
        vars(self).update(params)
        return self

    def fit_transform(self, X: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Learn from labelled items, and return their buckets."""
        buckets: npt.NDArray[np.int64] = self.fit(X, y).transform(X)  # type: ignore[attr-defined]
        return buckets

    def __repr__(self) -> str:
        changed = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if value is not parameter.default and value != parameter.default:
                changed.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "shape_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(two_d_array=True),
        )
