"""Arguments and options of the verbs, alone and in groups."""

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
    """An option with a value; ``default`` describes what None stands for."""
    return typer.Option(*names, metavar=metavar, min=min, help=help, show_default=default or True)


number = partial(option, metavar="N", min=1)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(*name.split(), help=help)


# what is read
_DATA = (
    "A folder with one sub-folder of images per class, or embeddings as .npy, .npz or Parquet: a "
    "file, a directory of them, or a pattern in quotes."
)
_LABELS = (
    "Array (.npz), column (Parquet) or file (for .npy) of the labels; without it y or "
    "train_labels, label, or the file NAME_labels.npy or .txt beside NAME.npy."
)
_ITEMS = "Array (.npz) or column (Parquet) of the items; without it X or train, or embedding."
_SKIP = "Skip images that cannot be read, and say which, instead of stopping."
_IDS = "Column (Parquet) of the ids: text, or integers; none twice."
_PAYLOAD = (
    "Columns (Parquet) that the table keeps and search shows, such as text,url; all: every column "
    "that is not read as something else."
)
Data = Annotated[Path, argument("DATA", _DATA)]
Table = Annotated[Path, argument("TABLE", "A table made by hashcade fit or build.")]
Model = Annotated[Path, argument("MODEL", "A model made by hashcade train; or a table.")]
Split = Annotated[str | None, option("Which part, for data with several: train, test, ...")]
Items = Annotated[str | None, option(_ITEMS)]
Quiet = Annotated[bool, flag("--quiet -q", "No progress on stderr.")]

# how a search works
_PROBE = "Buckets to look into. 1: the query's own. More find more, and take longer."
_FILL = "Continue to further buckets until there are enough results, or stay in the query's own."
NProbe = Annotated[int, number(_PROBE)]
Fill = Annotated[bool, flag("--fill/--no-fill", _FILL)]
Metric = Annotated[str, option("How results are ranked: euclidean, cosine or inner_product.")]
Vectors = Annotated[str, option("How vectors are stored: float32, or rounded to float16.")]
_FIRST_PASS = (
    "int8: store codes beside the vectors, of which a search reads most, and of the vectors few. "
    "The same results, a quarter more to store; faster from a disk."
)
FirstPass = Annotated[str | None, option(_FIRST_PASS, default="none")]

_WHERE = (
    "Only items for which this holds: a field of the payload, label, id or name, one of = != < <= "
    "> >=, and a value as in JSON, else text; =[...] is one of several. May be repeated: and."
)
Where = Annotated[list[str] | None, option(_WHERE, "--where", metavar="FIELD<VALUE", default="all")]
_PLACE = (
    "Where items go whose label the model knows: label (to the bucket of their label) or network "
    "(where the model puts them, as in the paper)."
)
Place = Annotated[str, option(_PLACE)]

# what is written
NewTable = Annotated[Path, option("Directory for it.", "--output", "-o", metavar="TABLE")]
NewModel = Annotated[Path, option("Directory for it.", "--output", "-o", metavar="MODEL")]
Json = Annotated[bool, flag("--json", "Print the result as JSON, for programs.")]
Force = Annotated[bool, flag("--force -f", "Replace an older result.")]

# how a model is trained
_BACKBONE = (
    "For images stride (for minutes on CPUs), fast (for an hour) or nin (the paper's); for "
    "embeddings mlp, to learn new vectors as well."
)
IMAGE_NETWORKS = ("fast", "nin", "stride")
_NETWORKS, _BY_DATA = "stride for images from scratch, none for embeddings", "from the data"
_BASE_STEPS = "Batches of the base stage, for images from scratch."
_BUDGET = "Time that training may take, such as 90s, 5m or 1h30m; features of photos come before."
_FEATURES = (
    "What photos are learned from: efficientnet-lite0 (extra transfer), or the path of an ONNX "
    "file of an image encoder (extra onnx). The model keeps it."
)
_USUAL_FEATURES = "efficientnet-lite0"
_PIXELS = (
    "How an ONNX file takes pixels: imagenet (less the mean colour, over the deviation), clip, "
    "half (-1 to 1), unit (0 to 1) or raw (0 to 255)."
)
_SCRATCH = "Train a small network on the images alone, without pre-trained features."
_SET = "Any other setting of hashcade.Hasher, such as learning_rate=0.001; may be repeated."
_SIZE = (
    "Images are scaled until they cover this size, and cropped to it. The networks from scratch "
    "are made for 32."
)
_USUAL_SIZE = "224 for features, 32 from scratch"
_SAMPLE = "Learn from so many items at most, of all classes evenly."
_RUN_DIR = "Keep checkpoints and a log here; the same command resumes after an interruption."


@dataclass(frozen=True)
class Reading:
    """How data are read."""

    split: Split = None
    items: Items = None
    labels: Annotated[str | None, option(_LABELS)] = None
    skip_bad: Annotated[bool, flag("--skip-bad", _SKIP)] = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Keeping:
    """Columns of a Parquet file that the table keeps with the items."""

    ids: Annotated[str | None, option(_IDS, default="row numbers", metavar="COLUMN")] = None
    payload: Annotated[str | None, option(_PAYLOAD, default="none", metavar="COLUMNS")] = None

    def columns(self) -> dict[str, Any]:
        """As ``load`` takes them."""
        payload: Any = self.payload
        if payload is not None and payload != "all":
            payload = [name.strip() for name in payload.split(",") if name.strip()]
            if not payload:
                raise ValueError(f"--payload={self.payload} must name columns, or be all")
        return {"ids": self.ids, "payload": payload}


@dataclass(frozen=True)
class Training:
    """How a model is trained: settings of a ``Hasher``, and what to make of images."""

    width: Annotated[int | None, number("Slots per level.", default="from the classes")] = None
    depth: Annotated[int, number("Levels.")] = 2
    sparsity: Annotated[int, number("Buckets per item.")] = 1
    loss: Annotated[str, option("npairs or triplet.")] = "npairs"
    backbone: Annotated[str | None, option(_BACKBONE, default=_NETWORKS)] = None
    steps: Annotated[int | None, number("Batches of the hash stage.", default=_BY_DATA)] = None
    base_steps: Annotated[int | None, number(_BASE_STEPS, default=_BY_DATA)] = None
    sample: Annotated[int | None, number(_SAMPLE, default="all")] = None
    random_state: Annotated[int, number("Random seed.", "--seed", min=0)] = 0
    device: Annotated[str, option("auto, cpu, cuda, ...")] = "auto"
    setting: Annotated[list[str] | None, option(_SET, "--set", metavar="NAME=VALUE")] = None
    budget: Annotated[str | None, option(_BUDGET, metavar="TIME", default="no limit")] = None
    features: Annotated[str | None, option(_FEATURES, default=_USUAL_FEATURES)] = None
    pixels: Annotated[str, option(_PIXELS)] = "imagenet"
    from_scratch: Annotated[bool, flag("--from-scratch", _SCRATCH)] = False
    size: Annotated[
        str | None, option(_SIZE, "--image-size", metavar="N or HxW", default=_USUAL_SIZE)
    ] = None
    run_dir: Annotated[Path | None, option(_RUN_DIR, metavar="DIR")] = None


@dataclass(frozen=True)
class Learning(Reading, Training):
    """What ``fit`` and ``train`` share: options of training, of reading, and these."""

    force: Force = False
    as_json: Json = False


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer takes it: with the options of a group (a dataclass) in place of the group."""
    options: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in signature(verb).parameters.values():
        members, group = [parameter], parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            members = list(signature(group).parameters.values())
            groups[parameter.name] = group, [member.name for member in members]
        options += [member.replace(kind=Parameter.KEYWORD_ONLY) for member in members]

    @wraps(verb)
    def call(**given: Any) -> None:
        for name, (group, members) in groups.items():
            given[name] = group(**{member: given.pop(member) for member in members})
        verb(**given)

    call.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return call


def parsed_where(conditions: list[str] | None) -> dict[str, Any] | None:
    """A filter from ``--where``, for ``HashTable.search``."""
    where: dict[str, dict[str, Any]] = {}
    for text in conditions or ():
        match = re.fullmatch(r"([^<>=!]+)(<=|>=|!=|=|<|>)(.*)", text, re.DOTALL)
        if match is None:
            raise ValueError(
                f"--where {text!r} must be a field, one of = != < <= > >=, and a value"
            )
        field, operator, value = match[1].strip(), match[2], match[3].strip()
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        if operator == "=" and isinstance(parsed, list):
            operator = "in"
        if operator in where.setdefault(field, {}):
            raise ValueError(f"--where {text!r}: {field} {operator} is given twice")
        where[field][operator] = parsed
    return where or None


def byte_count(name: str, text: str) -> int:
    """Bytes, from an option such as ``512MB`` or ``8GB``: powers of 1024."""
    read = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if read is None:
        raise ValueError(f"{name}={text} must be a number of bytes like 512MB or 8GB")
    return int(float(read[1]) * 1024 ** " KMGT".index(read[2].upper() or " "))


def image_size(text: str | None) -> tuple[int, int] | None:
    """Height and width from ``32`` or ``32x48``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.strip())
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(sides) < 8:
        raise ValueError(f"--image-size={text} must be one number or HEIGHTxWIDTH, at least 8")
    return sides


def seconds(text: str | None) -> float | None:
    """Seconds from ``90``, ``90s``, ``5m``, ``1h30m``."""
    if text is None:
        return None
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s?)?", text.strip())
    hours, minutes, rest = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + rest
    if total == 0:
        raise ValueError(f"--budget={text} must be a time such as 90s, 5m or 1h30m")
    return float(total)


def n_bytes(text: str) -> int:
    """Bytes from ``500MB``, ``4GB`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"--memory={text} must be a number of bytes such as 500MB or 4GB")
    return int(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))
