"""Arguments and options that several verbs share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="A folder with a folder of images per class; embeddings as .npy, .npz or Parquet; "
        "Cifar-100 or ImageNet 32×32 as their official files.",
    ),
]
Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL", show_default=False, help="A model made by hashcade train."),
]
Index = Annotated[
    Path,
    typer.Argument(metavar="INDEX", show_default=False, help="An index made by hashcade build."),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Which part, for data that has several: train, test, ...",
    ),
]
Items = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Key (.npz) or column (Parquet) of the items; without it X or train, or embedding.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Key (.npz), column (Parquet) or file (for .npy) of the labels; without it y or "
        "train_labels, label, or the file NAME_labels.npy or .txt beside NAME.npy.",
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Pass over images that cannot be read, and say which, instead of stopping.",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON, for programs."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Force = Annotated[
    bool,
    typer.Option("--force", "-f", help="Replace a result that is there."),
]


def image_size(text: str) -> tuple[int, int]:
    """Height and width from ``32`` or ``32x48``."""
    match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.strip())
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(sides) < 8:
        raise ValueError(f"--image-size={text} must be one number or HEIGHTxWIDTH, 8 at least")
    return sides
