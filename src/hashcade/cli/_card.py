"""The card of a model: what it was made of, with which settings, and what it is worth."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashcade._version import __version__

if TYPE_CHECKING:
    from hashcade.cli._input import Input
    from hashcade.learn import Hasher

_PACKAGES = ("numpy", "numba", "torch", "safetensors")


def make_card(hasher: Hasher, found: Input, saved: Path, *, seconds: float) -> dict[str, Any]:
    """Everything worth knowing about a model, in plain values."""
    from hashcade.index import model_fingerprint

    config = json.loads((saved / "config.json").read_bytes())
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": model_fingerprint(saved),
        "data": {
            "source": found.source,
            "kind": "images" if found.is_images else "embeddings",
            "item_shape": list(found.items.shape[1:]),
            "n_items": len(found.items),
            "n_classes": len(found.class_names),
            "skipped": list(found.skipped),
        },
        "table": config["plan"]["shape"],
        "settings": {
            name: value if isinstance(value, (int, float, str, type(None))) else str(value)
            for name, value in hasher.get_params().items()
            if name not in ("run_dir", "verbose")
        },
        "plan": config["plan"],
        "seed": hasher.random_state,  # type: ignore[attr-defined]
        "figures": dict(hasher.validation_),
        "seconds": round(seconds, 3),
        "environment": {
            "hashcade": __version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def write_card(directory: Path, card: dict[str, Any], place: Path) -> None:
    """Write the card into the directory of a model, for programs and for people."""
    text = json.dumps(card, indent=1, ensure_ascii=False) + "\n"
    for name, content in (("card.json", text), ("README.md", card_text(card, place))):
        with (directory / name).open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def card_text(card: dict[str, Any], place: Path) -> str:
    """The card in Markdown."""
    data, table, figures = card["data"], card["table"], card["figures"]
    stages = ", ".join(f"{stage['name']} {stage['steps']:,}" for stage in card["plan"]["stages"])
    lines = [
        f"# A hash table for {data['n_classes']:,} classes",
        "",
        f"Made on {card['made']} by hashcade {card['environment']['hashcade']}; fingerprint "
        f"`{card['fingerprint'][:12]}`. All of this for programs: `card.json`.",
        "",
        "| | |",
        "|---|---|",
        f"| data | {data['n_items']:,} {data['kind']} ({_times(data['item_shape'])}), "
        f"{data['n_classes']:,} classes, from `{data['source']}` |",
        f"| passed over | {len(data['skipped']):,} that could not be read |",
        f"| table | width {table['width']}, depth {table['depth']}, sparsity {table['sparsity']}: "
        f"{table['width'] ** table['depth']:,} buckets |",
        f"| training | {stages} batches in {card['seconds']:.0f} s, seed {card['seed']} |",
    ]
    if figures:
        lines += [
            f"| precision@1 | {figures['precision_at_1']:.1f} % |",
            f"| items looked at | {figures['speedup_factor']:.1f} times fewer than all |",
            f"| NMI of buckets and classes | {figures['bucket_nmi']:.1f} % |",
            "",
            "The figures are of items that were set aside, searched among themselves. They also "
            "chose the weights, so expect a little less on new items.",
        ]
    else:
        lines += ["", "Nothing was set aside, so there are no figures."]
    changed = {name: value for name, value in card["settings"].items() if value is not None}
    lines += ["", "## Settings", "", "| setting | value |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in changed.items()]
    lines += [
        "",
        "## Use",
        "",
        "```sh",
        f"hashcade build {place} DATA -o index/",
        "hashcade search index/ QUERY",
        "```",
        "",
    ]
    return "\n".join(lines)


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
