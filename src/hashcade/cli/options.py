"""Arguments and options of the commands, single and in groups."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer


def argument(metavar: str, help: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, show_default=False, help=help)


def option(
    help: str, *names: str, metavar: str = "NAME", min: float | None = None, default: str = ""
) -> Any:
    """An option with a value; ``default`` describes the meaning of None."""
    return typer.Option(*names, metavar=metavar, min=min, help=help, show_default=default or True)


number = partial(option, metavar="N", min=1)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(*name.split(), help=help)


# input
_DATA = (
    "A folder with one sub-folder of images per class, or embeddings as .npy, .npz or Parquet: a "
    "file, a directory of them, or a pattern in quotes."
)
_LABELS = (
    "Array (.npz), column (Parquet) or file (for .npy) of the labels; by default y or "
    "train_labels, label, or the file NAME_labels.npy or .txt next to NAME.npy."
)
_ITEMS = "Array (.npz) or column (Parquet) of the items; by default X or train, or embedding."
_SKIP = "Skip and list unreadable images, instead of failing."
_IDS = "Column (Parquet) of the ids: unique text or integers."
_PAYLOAD = (
    "Columns (Parquet) to store as payload, shown by search, such as text,url; all: every column "
    "that is not used otherwise."
)
Data = Annotated[Path, argument("DATA", _DATA)]
Table = Annotated[Path, argument("TABLE", "A table made by hashcade fit or build.")]
Model = Annotated[Path, argument("MODEL", "A model made by hashcade train; or a table.")]
Split = Annotated[str | None, option("Split of the data, if there are several: train, test, ...")]
Items = Annotated[str | None, option(_ITEMS)]
Quiet = Annotated[bool, flag("--quiet -q", "No progress on stderr.")]

# search
_PROBE = "Buckets to search. 1: the query's own. More improve recall, and take longer."
_FILL = "Whether to continue to further buckets until there are enough results."
NProbe = Annotated[int, number(_PROBE)]
Fill = Annotated[bool, flag("--fill/--no-fill", _FILL)]
Metric = Annotated[str, option("How results are ranked: euclidean, cosine or inner_product.")]
Vectors = Annotated[str, option("How vectors are stored: float32, or rounded to float16.")]
_FIRST_PASS = (
    "int8: also store quantized codes, so that a search reads only few vectors. The same results, "
    "a quarter more storage; faster when read from disk."
)
FirstPass = Annotated[str | None, option(_FIRST_PASS, default="none")]

_WHERE = (
    "Only items that match: a field of the payload, label, id or name, one of = != < <= > >=, and "
    "a JSON value, else text; =[...] matches any of a list. May be repeated, joined by and."
)
Where = Annotated[list[str] | None, option(_WHERE, "--where", metavar="FIELD<VALUE", default="all")]
_PLACE = (
    "How items with a known label are assigned: label (to the bucket of their label) or network "
    "(to the bucket that the model predicts, as in the paper)."
)
Place = Annotated[str, option(_PLACE)]

# output
NewTable = Annotated[Path, option("Output directory.", "--output", "-o", metavar="TABLE")]
NewModel = Annotated[Path, option("Output directory.", "--output", "-o", metavar="MODEL")]
Json = Annotated[bool, flag("--json", "Print the result as JSON.")]
Force = Annotated[bool, flag("--force -f", "Replace an existing result.")]

# training
_BACKBONE = (
    "For images stride (minutes on a CPU), fast (an hour) or nin (the paper's); for embeddings "
    "mlp, to learn new vectors as well."
)
IMAGE_NETWORKS = ("fast", "nin", "stride")
_NETWORKS, _FROM_DATA = "stride for images from scratch, none for embeddings", "from the data"
_BASE_STEPS = "Batches of the base stage, for images from scratch."
_BUDGET = "Time limit for training, such as 90s, 5m or 1h30m; without the features of photos."
_FEATURES = (
    "Features of photos: efficientnet-lite0 (extra transfer), or the path of an image encoder in "
    "ONNX format (extra onnx), which is stored with the model."
)
_DEFAULT_FEATURES = "efficientnet-lite0"
_PIXELS = (
    "Normalization of pixels for an ONNX file: imagenet (mean and standard deviation), clip, half "
    "(-1 to 1), unit (0 to 1) or raw (0 to 255)."
)
_SCRATCH = "Train a small network on the images alone, without pre-trained features."
_SET = "Any other setting of hashcade.Hasher, such as learning_rate=0.001; may be repeated."
_SIZE = (
    "Images are scaled to cover this size, and cropped. The networks for training from scratch are "
    "designed for 32."
)
_DEFAULT_SIZE = "224 for features, 32 from scratch"
_SAMPLE = "Train on at most this many items, evenly from all classes."
_RUN_DIR = "Directory for checkpoints and a log; the same command resumes an interrupted run."


@dataclass(frozen=True)
class Reading:
    """Options for reading data."""

    split: Split = None
    items: Items = None
    labels: Annotated[str | None, option(_LABELS)] = None
    skip_bad: Annotated[bool, flag("--skip-bad", _SKIP)] = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Keeping:
    """Columns of a Parquet file that are stored with the items."""

    ids: Annotated[str | None, option(_IDS, default="row numbers", metavar="COLUMN")] = None
    payload: Annotated[str | None, option(_PAYLOAD, default="none", metavar="COLUMNS")] = None

    def columns(self) -> dict[str, Any]:
        """Arguments for ``load``."""
        payload: Any = self.payload
        if payload is not None and payload != "all":
            payload = [name.strip() for name in payload.split(",") if name.strip()]
            if not payload:
                raise ValueError(f"--payload={self.payload} must name columns, or be all")
        return {"ids": self.ids, "payload": payload}


@dataclass(frozen=True)
class Training:
    """Options for training: settings of a ``Hasher``, and the treatment of images."""

    width: Annotated[int | None, number("Slots per level.", default="from the classes")] = None
    depth: Annotated[int, number("Levels.")] = 2
    sparsity: Annotated[int, number("Buckets per item.")] = 1
    loss: Annotated[str, option("npairs or triplet.")] = "npairs"
    backbone: Annotated[str | None, option(_BACKBONE, default=_NETWORKS)] = None
    steps: Annotated[int | None, number("Batches of the hash stage.", default=_FROM_DATA)] = None
    base_steps: Annotated[int | None, number(_BASE_STEPS, default=_FROM_DATA)] = None
    sample: Annotated[int | None, number(_SAMPLE, default="all")] = None
    random_state: Annotated[int, number("Random seed.", "--seed", min=0)] = 0
    device: Annotated[str, option("auto, cpu, cuda, ...")] = "auto"
    setting: Annotated[list[str] | None, option(_SET, "--set", metavar="NAME=VALUE")] = None
    budget: Annotated[str | None, option(_BUDGET, metavar="TIME", default="no limit")] = None
    features: Annotated[str | None, option(_FEATURES, default=_DEFAULT_FEATURES)] = None
    pixels: Annotated[str, option(_PIXELS)] = "imagenet"
    from_scratch: Annotated[bool, flag("--from-scratch", _SCRATCH)] = False
    size: Annotated[
        str | None, option(_SIZE, "--image-size", metavar="N or HxW", default=_DEFAULT_SIZE)
    ] = None
    run_dir: Annotated[Path | None, option(_RUN_DIR, metavar="DIR")] = None


@dataclass(frozen=True)
class Learning(Reading, Training):
    """Options of ``fit`` and ``train``."""

    force: Force = False
    as_json: Json = False


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: parameters that are dataclasses are replaced by their fields."""
    options: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in signature(verb).parameters.values():
        members, group = [parameter], parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            members = list(signature(group).parameters.values())
            groups[parameter.name] = group, [member.name for member in members]
        options += [member.replace(kind=Parameter.KEYWORD_ONLY) for member in members]

    @wraps(verb)
    def call(**values: Any) -> None:
        for name, (group, members) in groups.items():
            values[name] = group(**{member: values.pop(member) for member in members})
        verb(**values)

    call.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return call


def parse_where(conditions: list[str] | None) -> dict[str, Any] | None:
    """Parse ``--where`` to a filter for ``HashTable.search``."""
    where: dict[str, dict[str, Any]] = {}
    for text in conditions or ():
        match = re.fullmatch(r"([^<>=!]+)(<=|>=|!=|=|<|>)(.*)", text, re.DOTALL)
        if match is None:
            raise ValueError(
                f"--where {text!r} must be a field, one of = != < <= > >=, and a value"
            )
        field, operator, value = match[1].strip(), match[2], match[3].strip()
        try:
            operand = json.loads(value)
        except ValueError:
            operand = value
        if operator == "=" and isinstance(operand, list):
            operator = "in"
        if operator in where.setdefault(field, {}):
            raise ValueError(f"--where {text!r}: {field} {operator} is given twice")
        where[field][operator] = operand
    return where or None


def byte_count(name: str, text: str) -> int:
    """Parse an option such as ``512MB`` or ``8GB``, in powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{name}={text} must be a number of bytes like 512MB or 8GB")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def image_size(text: str | None) -> tuple[int, int] | None:
    """Parse height and width from ``32`` or ``32x48``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.strip())
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(sides) < 8:
        raise ValueError(f"--image-size={text} must be one number or HEIGHTxWIDTH, at least 8")
    return sides


def seconds(text: str | None) -> float | None:
    """Parse a duration such as ``90``, ``90s``, ``5m`` or ``1h30m``, in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s?)?", text.strip())
    hours, minutes, remainder = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + remainder
    if total == 0:
        raise ValueError(f"--budget={text} must be a time such as 90s, 5m or 1h30m")
    return float(total)


def n_bytes(text: str) -> int:
    """Parse ``500MB``, ``4GB`` or a plain number of bytes, in powers of 1000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"--memory={text} must be a number of bytes such as 500MB or 4GB")
    return int(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))
