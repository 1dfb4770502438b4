"""Bodies and answers in JSON: the description that clients get is made from this."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_MAX = 2**63 - 1


def _digits(value: object) -> object:
    """Refuse what pydantic would take for a number in an address: " 5", "+5", "5.0", "1_000"."""
    if isinstance(value, str) and not re.fullmatch("-?[0-9]+", value):
        raise ValueError("must be a whole number, in digits")
    return value


Digits = BeforeValidator(_digits)
Number = Annotated[int, Field(ge=0, le=_MAX)]
TextId = Annotated[str, Field(max_length=1000)]
Id = Number | TextId  # as those of the table are: numbers or text
Ids = Annotated[list[Id], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=1, le=_MAX), Digits]
Label = Annotated[int, Field(ge=-(2**63), le=_MAX)] | Annotated[str, Field(max_length=1000)]
Name = Annotated[str, Field(max_length=1000)]
FilterText = Annotated[str, Field(max_length=4000)]  # percent-encoded within a head of 64 kB


def _array(item: dict[str, Any], *least: int, optional: bool = False) -> Any:
    """Describe an array of numbers, with the fewest of each dimension; it is read beforehand."""
    for fewest in reversed(least):
        item = {"type": "array", "items": item, "minItems": fewest}
    return WithJsonSchema({"anyOf": [item, {"type": "null"}]} if optional else item)


_NUMBER, _BUCKET = {"type": "number"}, {"type": "integer", "minimum": 0, "maximum": _MAX}
Vector = Annotated[Any, _array(_NUMBER, 1)]
Vectors = Annotated[Any, _array(_NUMBER, 1, 1)]
Buckets = Annotated[Any, _array(_BUCKET, 0, optional=True)]
BucketRows = Annotated[Any, _array(_BUCKET, 0, 0, optional=True)]
Scores = Annotated[Any, _array(_NUMBER, 1, 1, optional=True)]
ScoreRows = Annotated[Any, _array(_NUMBER, 1, 1, 1, optional=True)]
MaybeInfinite = float | None  # null: beyond the range of float32, which JSON has no word for


# -- requests: an unknown name is an error, and in a body "5" is not 5 -----------------------------


class Options(BaseModel):
    """How to search."""

    model_config = ConfigDict(extra="forbid")

    n_neighbors: Count = 10
    n_probe: Count = Field(1, description="1: the query's own buckets; more: the best so many.")
    max_candidates: Count | None = None
    fill: bool = Field(True, description="Go on to further buckets for want of neighbours.")


class ItemOptions(Options):
    """How to search for an item or an image, and among what."""

    where: FilterText | None = Field(None, description="A filter, as JSON.")


class BinaryOptions(Options):
    """How to search, and the content of the body."""

    n_queries: Count
    by: Literal["bucket_ids", "scores", "model"] = Field(
        "bucket_ids", description="What follows the vectors; with model nothing does."
    )
    json_bytes: Annotated[int, Field(ge=0, le=_MAX), Digits] = Field(
        0, description="Length of a Selection in JSON, with which the body begins."
    )


class Selection(BaseModel, strict=True, extra="forbid"):
    """What may be a result, and what to answer about it."""

    filter_ids: Ids | None = Field(None, description="Only these items may be results.")
    exclude_ids: Ids | None = Field(None, description="One per query: not a result of it.")
    where: dict[str, Any] | None = Field(None, description="A filter, as HashTable.search has it.")
    include: Annotated[list[Literal["labels", "names", "payload"]], Field(fail_fast=True)] = Field(
        ["labels", "names", "payload"], description="What to answer beside ids and distances."
    )


class SearchRequest(Selection, Options, strict=True):
    """Queries, and where to look."""

    vectors: Vectors = Field(description="Without bucket_ids and scores: items for the model.")
    bucket_ids: BucketRows = Field(None, description="Buckets of each query.")
    scores: ScoreRows = Field(None, description="Of slots: [query][level][slot].")


class ExplainRequest(Options, strict=True):
    """One query, and where to look."""

    vector: Vector
    bucket_ids: Buckets = None
    scores: Scores = None
    where: dict[str, Any] | None = Field(None, description="A filter, as HashTable.search has it.")


class AddRequest(BaseModel, strict=True, extra="forbid"):
    """Items to add."""

    vectors: Vectors = Field(description="One per item. Without bucket_ids: items for the model.")
    bucket_ids: BucketRows = None
    ids: Ids | None = Field(None, description="Default: the next free ones.")
    labels: Annotated[list[Label | None], Field(fail_fast=True)] | None = None
    new_labels: bool = Field(False, description="Let labels that are new become classes.")
    names: Annotated[list[Name | None], Field(fail_fast=True)] | None = None
    payload: Annotated[list[dict[str, Any] | None], Field(fail_fast=True)] | None = Field(
        None, description="An object per item."
    )
    replace: bool = Field(False, description="Put items in the place of those with their ids.")


class RemoveRequest(BaseModel, strict=True, extra="forbid"):
    """Items to remove: by id, all of which must be in the table, or by a filter."""

    ids: Annotated[list[Id], Field(min_length=1, fail_fast=True)] | None = None
    where: dict[str, Any] | None = Field(None, description="A filter, as HashTable.search has it.")


BODIES: list[tuple[type[BaseModel], Literal["validation"]]] = [
    (body, "validation") for body in (SearchRequest, ExplainRequest, AddRequest, RemoveRequest)
]


# -- answers ---------------------------------------------------------------------------------------


class Problem(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="One line that gives both sides of what does not fit.")


class SearchAnswer(BaseModel):
    """Neighbours of each query, best first: as many as there are."""

    ids: list[list[int | str]]
    distances: list[list[MaybeInfinite]] = Field(description="Null: beyond float32.")
    labels: list[list[Label | None]] | None = Field(None, description="Missing if not included.")
    names: list[list[str | None]] | None = None
    payload: list[list[dict[str, Any] | None]] | None = None
    candidates: list[int] = Field(description="Items compared with each query.")
    truncated: list[bool]
    exact: list[bool]
    n_items: int = Field(description="Items in the table.")


class ItemBrief(BaseModel):
    """An item in a list."""

    id: int | str
    label: Label | None
    name: str | None
    picture: bool = Field(description="Whether there is a picture of it.")
    payload: dict[str, Any] | None


class ClassCount(BaseModel):
    """Entries of one class; the label is null for items without one."""

    label: Label | None
    count: int


class Slot(BaseModel):
    """A slot on the path of the query."""

    slot: int
    score: MaybeInfinite
    rank: int | None
    n_buckets: int
    n_entries: int


class Level(BaseModel):
    """A level of the tree, from the top."""

    level: int
    nodes: list[Slot]
    scores: list[MaybeInfinite] | None = Field(description="Of all slots of the level.")


class Bucket(BaseModel):
    """A bucket, and a part of its items."""

    bucket: int
    path: list[int]
    size: int
    items: list[ItemBrief]


class VisitedBucket(Bucket):
    """A bucket that was searched, and the first of its items."""

    classes: list[ClassCount] | None = Field(description="Most frequent first.")
    score: MaybeInfinite
    candidates: int = Field(description="Items that were compared with the query.")
    fill: bool = Field(description="Whether it was visited for want of neighbours.")


class Neighbour(ItemBrief):
    """A result."""

    distance: MaybeInfinite = Field(description="Null: beyond float32.")
    buckets: list[int]


class Explanation(BaseModel):
    """The path of one query through the tree, and its results."""

    levels: list[Level]
    buckets: list[VisitedBucket]
    results: list[Neighbour]
    candidates: int
    truncated: bool
    n_items: int


class Item(ItemBrief):
    """An item of the table."""

    bucket_ids: list[int]
    paths: list[list[int]]
    vector: list[float] | None


class Sample(BaseModel):
    """Some items."""

    items: list[ItemBrief]
    n_matching: int = Field(description="Items that pass the filter; without one, all.")
    n_items: int


class Classes(BaseModel):
    """Some classes."""

    labels: list[Label]
    n_matching: int
    n_classes: int


class _Counts(BaseModel):
    n_buckets: int
    n_entries: int
    purity: float | None
    n_classes: int | None
    classes: list[ClassCount] | None = Field(description="The 20 most frequent ones.")


class Child(_Counts):
    """A node below another one."""

    slot: int
    items: list[ItemBrief] = Field(description="Some of its items; of the largest nodes alone.")


class Node(_Counts):
    """A node of the tree."""

    path: list[int]
    children: list[Child]
    bucket: int | None = Field(description="At the end of a path: the id of the bucket.")


class Changed(BaseModel):
    """A change that is on disk."""

    ids: list[int | str]
    n_items: int


class Stats(BaseModel):
    """The table and the service in numbers."""

    index: dict[str, Any] = Field(description="As HashIndex.stats; classes as a list.")
    n_classes: int | None = Field(description="Null: the items have no labels.")
    shape: dict[str, int]
    metric: str
    ids: Literal["int", "str"] | None = Field(description="Kind of the ids.")
    limits: dict[str, float]
    model: Literal["embeddings", "images"] | None = Field(description="What the model takes.")
    item_shape: list[int] | None = Field(description="Of an item; of features, if there are any.")
    features: str | None = Field(description="The network whose features of images it takes.")
    pictures: bool
    read_only: bool
    unsaved_changes: int
    version: str


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether requests are answered, and changes taken."""

    status: Literal["ready", "not ready"]
    writes: str = Field(description="Ok, or why changes are not taken.")
    saves: str = Field(description="Ok, or why the index could not be saved.")
    generation: str | None = Field(None, description="Of a table in a cluster: what is searched.")
    directory_loaded: bool | None = Field(None, description="Whether its buckets are known.")
    servers_reachable: float | None = Field(None, description="Share of the Redis servers.")
    slots_reachable: float | None = Field(None, description="Share of the keys that can be read.")


class Done(BaseModel):
    """Whether there was something to do."""

    done: bool
    n_items: int
