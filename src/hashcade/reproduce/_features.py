"""Features of images, for the preset that stands on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import hashcade.learn
from hashcade.errors import ConfigError


def image_features(
    images: npt.NDArray[np.uint8], settings: Mapping[str, Any], cache: Path, *, verbose: bool | None
) -> npt.NDArray[np.float32]:
    """Features of EfficientNet-Lite0, float32[n, 1280], kept in ``cache``."""
    function = getattr(hashcade.learn, "efficientnet_features", None)
    if function is None:
        raise ConfigError("this version of hashcade.learn has no efficientnet_features")
    found: npt.NDArray[np.float32] = function(images, cache=cache, verbose=verbose, **settings)
    return found.astype(np.float32)
