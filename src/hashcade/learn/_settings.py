"""Settings as scikit-learn has them: keyword arguments that are stored under their names."""

from __future__ import annotations

import inspect
from typing import Any, Self


class Settings:
    """Mixin of estimators: settings by name. ``__init__`` stores them as they are given."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name. What was learned stays until the next ``fit``."""
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(f"{name!r} is no setting, must be one of {sorted(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        signature = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not signature[name].default and value != signature[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"
