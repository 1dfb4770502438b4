"""A stored result: what was measured, how, and in what time. Tables and plots are made of these."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hashcade.errors import DataError

FORMAT_VERSION = 1


@dataclass(frozen=True, order=True, kw_only=True)
class RowKey:
    """What a row is about.

    Attributes
    ----------
    experiment, preset
        For example ``"cifar100"`` and ``"transfer"``.
    method, loss, sparsity
        For example ``"ours"``, ``"npairs"`` and 1. Exhaustive search has sparsity 0.
    database
        What the table was built on: ``"test"``, ``"train"``, ``"val"``.
    variant
        What differs from the row of the paper's table, for curves and ablations:
        ``"n_probe=4"``. Empty for the rows of the tables.
    seed
        Of everything random.
    """

    experiment: str
    preset: str
    method: str
    loss: str
    sparsity: int
    database: str
    variant: str = ""
    seed: int = 0

    @property
    def file_name(self) -> str:
        """A name that tells all rows of an experiment apart: ``ours-npairs-k1-test-s0.json``."""
        parts = [self.method.replace("+", "plus"), self.loss, f"k{self.sparsity}", self.database]
        if self.variant:
            parts.append(re.sub(r"[^A-Za-z0-9_.=]+", "_", self.variant))
        return "-".join([*parts, f"s{self.seed}"]) + ".json"


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One measured row.

    Attributes
    ----------
    key
        What was measured.
    settings
        All that the figures depend on, as plain values.
    figures
        ``suf``, ``suf_16``, ``pr_1``, ``nmi``, ...: by name, in percent where they are shares.
    details
        Further plain values, for plots: the histogram of occupancy, for instance.
    seconds
        Time by part, ``"train"`` and ``"evaluate"`` for instance.
    versions
        Of hashcade and of what it stands on.
    """

    key: RowKey
    settings: Mapping[str, Any]
    figures: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Tells whether a stored row was measured with the settings of now."""
        return fingerprint(self.settings)

    def to_json(self) -> str:
        """The row as text."""
        content = {
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            **asdict(self.key),
            "figures": dict(self.figures),
            "seconds": dict(self.seconds),
            "settings": dict(self.settings),
            "details": dict(self.details),
            "versions": dict(self.versions),
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str) -> ResultRow:
        """Read what :meth:`to_json` wrote; ``source`` names it in messages.

        Raises
        ------
        DataError
            If it is no such row, or was changed by hand: figures must not lose their settings.
        """
        try:
            content = json.loads(text)
            version = content["format_version"]
            if version != FORMAT_VERSION:
                raise DataError(f"{source} has format version {version}, must be {FORMAT_VERSION}")
            key = RowKey(**{name: content[name] for name in RowKey.__dataclass_fields__})
            figures = {name: float(value) for name, value in content["figures"].items()}
            row = cls(
                key=key,
                settings=content["settings"],
                figures=figures,
                details=content["details"],
                seconds=content["seconds"],
                versions=content["versions"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{source} is no stored result: {error!r}") from None
        bad = [name for name, value in figures.items() if not math.isfinite(value)]
        if bad:
            raise DataError(f"{source}: {', '.join(bad)} must be finite")
        if content.get("fingerprint") != row.fingerprint:
            raise DataError(
                f"{source} has fingerprint {content.get('fingerprint')}, its settings have "
                f"{row.fingerprint}"
            )
        return row


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A digest of plain settings; the order of names does not matter."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
