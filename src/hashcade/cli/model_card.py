"""The card of a model: what it was trained on, with which settings, and how good it is."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade._io import replace_file
from hashcade._version import __version__
from hashcade.cli.inputs import labels_of

if TYPE_CHECKING:
    from hashcade.data import Items
    from hashcade.learn import Hasher


def make_card(hasher: Hasher, data: Items, saved: Path, *, seconds: float) -> dict[str, Any]:
    """Everything worth knowing about a model that was saved, in plain values."""
    from hashcade.learn import model_fingerprint, read_config

    resolved = read_config(saved)["resolved"]
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": model_fingerprint(saved),
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
            **{name: _version(name) for name in ("numpy", "numba", "torch", "safetensors")},
        },
    }


def describe(data: Items) -> str:
    """Data in one line."""
    shape = "×".join(map(str, data.items.shape[1:]))
    labels = labels_of(data)
    classes = f", {len(set(labels)):,} classes" if labels is not None else ""
    kind = "images" if data.is_images else "embeddings"
    return f"{len(data):,} {kind} ({shape}){classes} from {data.source}"


def write_card(directory: Path, card: dict[str, Any], output: Path) -> None:
    """Write the card into the directory of a model, for programs and for people."""
    replace_file(directory / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    replace_file(directory / "README.md", card_text(card, output))


def card_text(card: dict[str, Any], output: Path) -> str:
    """The card in Markdown."""
    data, table, metrics = card["data"], card["table"], card["metrics"]
    stages = ", ".join(f"{s['name']} {s['steps']:,}" for s in card["resolved"]["stages"])
    rows = {
        "data": data["summary"],
        "skipped": f"{len(data['skipped']):,} that could not be read",
        "table": "width {width}, depth {depth}, sparsity {sparsity}".format(**table)
        + f": {table['width'] ** table['depth']:,} buckets",
        "training": f"{stages} batches in {card['seconds']:.0f} s, seed {card['seed']}",
    }
    note = "There was no validation set, so there are no metrics."
    if metrics:
        rows |= {
            "precision@1": f"{metrics['precision_at_1']:.1f} %",
            "speed-up": f"{metrics['speedup_factor']:.1f}",
            "NMI of buckets and classes": f"{metrics['bucket_nmi']:.1f} %",
        }
        note = (
            "The metrics are those of the validation set, searched within itself. It also chose "
            "the weights, so expect a little less on new items."
        )
    settings = {name: value for name, value in card["settings"].items() if value is not None}
    return f"""# A hash table for {data["n_classes"]:,} classes

Created on {card["created"]} by hashcade {card["environment"]["hashcade"]}; fingerprint
`{card["fingerprint"][:12]}`. For programs: `card.json`.

| | |
|---|---|
{_rows(rows)}

{note}

## Settings

| setting | value |
|---|---|
{_rows(settings)}

## Use

```sh
hashcade build {output} DATA -o table/
hashcade search table/ QUERY
```
"""


def _rows(values: dict[str, Any]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in values.items())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
