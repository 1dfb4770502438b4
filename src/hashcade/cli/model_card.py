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

CARD_FILES = ("card.json", "README.md")
_PACKAGES = ("numpy", "numba", "torch", "safetensors")


def make_card(hasher: Hasher, data: Items, saved: Path, *, seconds: float) -> dict[str, Any]:
    """Everything worth knowing about a model that was saved, in plain values."""
    from hashcade.learn import model_fingerprint, read_config

    resolved = read_config(saved)["resolved"]
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": model_fingerprint(saved),
        "data": {
            "source": data.source,
            "kind": "images" if data.is_images else "embeddings",
            "item_shape": list(data.items.shape[1:]),
            "n_items": len(data),
            "n_classes": len(set(labels_of(data) or ())),
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
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def write_card(directory: Path, card: dict[str, Any], output: Path) -> None:
    """Write the card into the directory of a model, for programs and for people."""
    text = json.dumps(card, indent=1, ensure_ascii=False) + "\n"
    for name, content in zip(CARD_FILES, (text, card_text(card, output)), strict=True):
        replace_file(directory / name, content)


def card_text(card: dict[str, Any], output: Path) -> str:
    """The card in Markdown."""
    data, table, metrics = card["data"], card["table"], card["metrics"]
    stages = ", ".join(f"{s['name']} {s['steps']:,}" for s in card["resolved"]["stages"])
    shape = "×".join(map(str, data["item_shape"]))
    lines = [
        f"# A hash table for {data['n_classes']:,} classes",
        "",
        f"Created on {card['created']} by hashcade {card['environment']['hashcade']}; fingerprint "
        f"`{card['fingerprint'][:12]}`. For programs: `card.json`.",
        "",
        "| | |",
        "|---|---|",
        f"| data | {data['n_items']:,} {data['kind']} ({shape}), "
        f"{data['n_classes']:,} classes, from `{data['source']}` |",
        f"| skipped | {len(data['skipped']):,} that could not be read |",
        f"| table | width {table['width']}, depth {table['depth']}, sparsity {table['sparsity']}: "
        f"{table['width'] ** table['depth']:,} buckets |",
        f"| training | {stages} batches in {card['seconds']:.0f} s, seed {card['seed']} |",
    ]
    if metrics:
        lines += [
            f"| precision@1 | {metrics['precision_at_1']:.1f} % |",
            f"| speed-up | {metrics['speedup_factor']:.1f} times fewer candidates than items |",
            f"| NMI of buckets and classes | {metrics['bucket_nmi']:.1f} % |",
            "",
            "The metrics are those of the validation set, searched within itself. It also chose "
            "the weights, so expect a little less on new items.",
        ]
    else:
        lines += ["", "There was no validation set, so there are no metrics."]
    lines += ["", "## Settings", "", "| setting | value |", "|---|---|"]
    lines += [
        f"| {name} | {value} |" for name, value in card["settings"].items() if value is not None
    ]
    lines += ["", "## Use", "", "```sh", f"hashcade build {output} DATA -o table/"]
    lines += ["hashcade search table/ QUERY", "```", ""]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
