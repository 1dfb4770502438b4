"""Arguments and options of the verbs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer


def argument(metavar: str, help: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, show_default=False, help=help)


def option(help: str, *names: str, metavar: str = "NAME", default: str | None = None) -> Any:
    """An option with a text or a path; ``default`` describes what None stands for."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=default or True)


def number(help: str, *names: str, min: float = 1, default: str | None = None) -> Any:
    """An option with a number."""
    return typer.Option(*names, metavar="N", min=min, help=help, show_default=default or True)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(*name.split(), help=help)


# what is read
_DATA = "A folder with one sub-folder of images per class, or embeddings as .npy, .npz or Parquet."
_LABELS = (
    "Array (.npz), column (Parquet) or file (for .npy) of the labels; without it y or "
    "train_labels, label, or the file NAME_labels.npy or .txt beside NAME.npy."
)
_ITEMS = "Array (.npz) or column (Parquet) of the items; without it X or train, or embedding."
_SKIP = "Skip images that cannot be read, and say which, instead of stopping."
Data = Annotated[Path, argument("DATA", _DATA)]
Table = Annotated[Path, argument("TABLE", "A table made by hashcade fit or build.")]
Model = Annotated[Path, argument("MODEL", "A model made by hashcade train; or a table.")]
Split = Annotated[str | None, option("Which part, for data with several: train, test, ...")]
Items = Annotated[str | None, option(_ITEMS)]
Labels = Annotated[str | None, option(_LABELS)]
SkipBad = Annotated[bool, flag("--skip-bad", _SKIP)]

# how a search works
_PROBE = "Buckets to look into. 1: the query's own. More find more, and take longer."
_FILL = "Continue to further buckets until there are enough results, or stay in the query's own."
NProbe = Annotated[int, number(_PROBE)]
Fill = Annotated[bool, flag("--fill/--no-fill", _FILL)]
Metric = Annotated[str, option("How results are ranked: euclidean or inner_product.")]

# what is written
NewTable = Annotated[Path, option("Directory for it.", "--output", "-o", metavar="TABLE")]
NewModel = Annotated[Path, option("Directory for it.", "--output", "-o", metavar="MODEL")]
Json = Annotated[bool, flag("--json", "Print the result as JSON, for programs.")]
Quiet = Annotated[bool, flag("--quiet -q", "No progress on stderr.")]
Force = Annotated[bool, flag("--force -f", "Replace an older result.")]

# how a model is trained
_BACKBONE = (
    "For images stride (fast on CPUs) or nin (the paper's); for embeddings mlp, to learn new "
    "vectors as well."
)
_SET = "Any other setting of hashcade.Hasher, such as learning_rate=0.001; may be repeated."
_SIZE = (
    "Images from files are scaled until they cover this size, and cropped to it. Both networks "
    "are made for 32."
)
_RUN_DIR = "Keep checkpoints and a log here; the same command resumes after an interruption."
_NETWORKS = "stride for images, none for embeddings"
Width = Annotated[int | None, number("Slots per level.", default="from the classes")]
Depth = Annotated[int, number("Levels.")]
Sparsity = Annotated[int, number("Buckets per item.")]
Loss = Annotated[str, option("npairs or triplet.")]
Backbone = Annotated[str | None, option(_BACKBONE, default=_NETWORKS)]
Steps = Annotated[int | None, number("Batches of the hash stage.", default="from the data")]
BaseSteps = Annotated[
    int | None, number("Batches of the base stage, for images.", default="from the data")
]
Seed = Annotated[int, number("Random seed.", min=0)]
Device = Annotated[str, option("auto, cpu, cuda, ...")]
Setting = Annotated[list[str] | None, option(_SET, "--set", metavar="NAME=VALUE")]
ImageSize = Annotated[str, option(_SIZE, "--image-size", metavar="N or HxW")]
RunDir = Annotated[Path | None, option(_RUN_DIR, metavar="DIR")]


def image_size(text: str) -> tuple[int, int]:
    """Height and width from ``32`` or ``32x48``."""
    match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.strip())
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(sides) < 8:
        raise ValueError(f"--image-size={text} must be one number or HEIGHTxWIDTH, at least 8")
    return sides
