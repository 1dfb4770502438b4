"""The few places where a reproduction asks more of ``hashcade.learn`` than ``fit``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import hashcade.learn
from hashcade.errors import ConfigError
from hashcade.learn._hasher import Hasher


def can_adapt() -> bool:
    """Whether a hasher can refit its code book to a database."""
    return hasattr(Hasher, "adapt")


def adapt(hasher: Hasher, items: npt.NDArray[Any], n_codes: int | None) -> Hasher:
    """Refit the code book to unlabelled items, with so many codes (None: as it likes)."""
    if not can_adapt():
        raise ConfigError("this version of hashcade.learn cannot adapt a code book")
    settings = {} if n_codes is None else {"n_codes": n_codes}
    return getattr(hasher, "adapt")(items, **settings) or hasher  # noqa: B009


def image_features(
    images: npt.NDArray[np.uint8], settings: Mapping[str, Any], cache: Path, *, verbose: bool | None
) -> npt.NDArray[np.float32]:
    """Features of EfficientNet-Lite0, float32[n, 1280], kept in ``cache``."""
    function = getattr(hashcade.learn, "efficientnet_features", None)
    if function is None:
        raise ConfigError("this version of hashcade.learn has no efficientnet_features")
    found: npt.NDArray[np.float32] = function(images, cache=cache, verbose=verbose, **settings)
    return found.astype(np.float32)
