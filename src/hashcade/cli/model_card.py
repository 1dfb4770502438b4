"""The card of a model: what it was trained on, with which settings, and how good it is."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade._io import replace_file
from hashcade._version import __version__
from hashcade.cli.inputs import labels_of
from hashcade.cli.outputs import SHAPE

if TYPE_CHECKING:
    from hashcade.data import Items
    from hashcade.learn import Hasher


def write_card(model: Path, hasher: Hasher, data: Items, seconds: float) -> dict[str, Any]:
    """Write what is worth knowing into the directory of a model, for programs and for people."""
    from hashcade.learn import model_fingerprint, read_config

    resolved = read_config(model)["resolved"]
    card = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": model_fingerprint(model),
        "data": {
            "source": data.source,
            "summary": describe(data),
            "item_shape": list(data.items.shape[1:]),
            "n_items": len(data),
            "n_classes": len(hasher.classes_),
            "skipped": list(data.skipped),
        },
        "table": resolved["shape"],
        "settings": {
            name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in hasher.get_params().items()
            if name not in ("run_dir", "verbose")
        },
        "resolved": resolved,
        "seed": hasher.random_state,
        "metrics": dict(hasher.validation_),
        "seconds": round(seconds, 3),
        "environment": {
            "hashcade": __version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            **{name: version(name) for name in ("numpy", "numba", "torch", "safetensors")},
        },
    }
    replace_file(model / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    replace_file(model / "README.md", _text(card))
    return card


def describe(data: Items) -> str:
    """Data in one line."""
    shape = "×".join(map(str, data.items.shape[1:]))
    classes = f", {len(set(labels_of(data) or ())):,} classes"
    kind = "images" if data.is_images else "embeddings"
    return f"{len(data):,} {kind} ({shape}){classes} from {data.source}"


def _text(card: dict[str, Any]) -> str:
    """The card in Markdown."""
    stages = ", ".join(f"{s['name']} {s['steps']:,}" for s in card["resolved"]["stages"])
    rows = {
        "created": f"{card['created']} by hashcade {card['environment']['hashcade']}",
        "fingerprint": card["fingerprint"][:12],
        "data": card["data"]["summary"],
        "skipped": f"{len(card['data']['skipped']):,} that could not be read",
        "table": SHAPE.format(**card["table"]),
        "training": f"{stages} batches in {card['seconds']:.0f} s",
        **{name: f"{value:.1f}" for name, value in card["metrics"].items()},
        **{name: value for name, value in card["settings"].items() if value is not None},
    }
    lines = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# A hash table for {card["data"]["n_classes"]:,} classes

Metrics are those of the validation set, searched within itself. It also chose the weights, so
expect a little less on new items. For programs: `card.json`.

| | |
|---|---|
{lines}
"""
