"""What goes over the wire as JSON: the description that clients get is made from this."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_MAX = 2**63 - 1


def _in_digits(value: object) -> object:
    """Refuse what pydantic would take for a number in an address: " 5", "+5", "5.0", "1_000"."""
    if isinstance(value, str) and not re.fullmatch("-?[0-9]+", value):
        raise ValueError("must be a whole number, in digits")
    return value


InDigits = BeforeValidator(_in_digits)
Id = Annotated[int, Field(ge=0, le=_MAX)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=_MAX)]
Label = Annotated[int, Field(ge=-(2**63), le=_MAX)]
Told = float | None  # a number that may be infinite, which JSON has no word for
Vector = Annotated[list[Number], Field(min_length=1)]


class _Strict(BaseModel):
    """What comes in: a name that is not known is a mistake, and "5" is not 5."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="One line that gives both sides of what does not fit.")


class SearchRequest(_Strict):
    """Queries, and where to look."""

    vectors: Annotated[list[Vector], Field(min_length=1)] = Field(
        description="One vector per query. With neither bucket_ids nor scores: items for the model."
    )
    bucket_ids: list[list[Id]] | None = Field(None, description="Buckets of each query.")
    scores: list[list[Vector]] | None = Field(
        None, description="Slot scores of each query: depth lists of width numbers."
    )
    n_neighbors: Count = 10
    n_probe: Count | None = Field(None, description="With scores: how many buckets.")
    max_candidates: Count | None = None
    fill: Literal["path", "none"] = "path"
    filter_ids: list[Id] | None = Field(None, description="Only these may be found.")
    exclude_ids: list[Id] | None = Field(None, description="One per query: not to be found.")
    metric: Literal["euclidean", "inner_product"] = "euclidean"


class ExplainRequest(_Strict):
    """One query, and where to look."""

    vector: Vector
    bucket_ids: list[Id] | None = None
    scores: list[Vector] | None = None
    n_neighbors: Count = 10
    n_probe: Count | None = None
    max_candidates: Count | None = None
    fill: Literal["path", "none"] = "path"
    metric: Literal["euclidean", "inner_product"] = "euclidean"


class Options(BaseModel):
    """How to search, in the address."""

    model_config = ConfigDict(extra="forbid")

    n_neighbors: Annotated[Count, InDigits] = 10
    n_probe: Annotated[Count, InDigits] | None = None
    max_candidates: Annotated[Count, InDigits] | None = None
    fill: Literal["path", "none"] = "path"
    metric: Literal["euclidean", "inner_product"] = "euclidean"


class BinaryOptions(Options):
    """How to search, and what the body holds."""

    n_queries: Annotated[Count, InDigits]
    where: Literal["bucket_ids", "scores", "model"] = Field(
        "bucket_ids", description="What follows the vectors; with model nothing does."
    )


class SearchAnswer(BaseModel):
    """Neighbours of each query, best first: as many as there are."""

    ids: list[list[int]]
    distances: list[list[Told]] = Field(description="Null: beyond the range of float32.")
    candidates: list[int] = Field(description="Items that were looked at.")
    truncated: list[bool]
    n_items: int = Field(description="Items in the index.")


class Slot(BaseModel):
    """A slot that the query goes through."""

    slot: int
    score: Told
    rank: int | None
    n_buckets: int
    n_entries: int


class Level(BaseModel):
    """A level of the tree, from the top."""

    level: int
    nodes: list[Slot]
    scores: list[Told] | None = Field(
        description="Of all slots of the level; null: beyond the range of float32."
    )


class VisitedBucket(BaseModel):
    """A bucket that was looked into."""

    bucket: int
    path: list[int]
    size: int
    classes: dict[str, int] | None = Field(description="Entries of each label, most first.")
    score: Told
    looked_at: int
    fill: bool = Field(description="Whether it was visited for want of neighbours.")
    items: list[ItemBrief] = Field(description="The first of its items.")


class ItemBrief(BaseModel):
    """An item in a list."""

    id: int
    label: int | None
    picture: bool = Field(description="Whether there is a picture of it.")


class Neighbour(ItemBrief):
    """An item that was found."""

    distance: Told = Field(description="Null: beyond the range of float32.")
    buckets: list[int]


class Explanation(BaseModel):
    """The way of one query through the tree, and what it found."""

    levels: list[Level]
    buckets: list[VisitedBucket]
    results: list[Neighbour]
    candidates: int
    truncated: bool
    n_items: int


class Item(ItemBrief):
    """An item of the index."""

    bucket_ids: list[int]
    paths: list[list[int]]
    vector: list[float] | None


class Sample(BaseModel):
    """Some items."""

    items: list[ItemBrief]
    n_items: int


class Child(BaseModel):
    """A node below another one."""

    slot: int
    n_buckets: int
    n_entries: int
    purity: float | None
    classes: dict[str, int] | None
    items: list[ItemBrief] = Field(description="Some of its items.")


class Node(BaseModel):
    """A node of the tree."""

    path: list[int]
    n_buckets: int
    n_entries: int
    purity: float | None
    classes: dict[str, int] | None
    children: list[Child]
    bucket: int | None = Field(description="At the end of a path: the id of the bucket.")


class Bucket(BaseModel):
    """A part of the items of a bucket."""

    bucket: int
    path: list[int]
    size: int
    items: list[ItemBrief]


class AddRequest(_Strict):
    """Items to add."""

    vectors: Annotated[list[Vector], Field(min_length=1)] = Field(
        description="One per item. Without bucket_ids: items for the model."
    )
    bucket_ids: list[list[Id]] | None = None
    ids: list[Id] | None = Field(None, description="Default: the next ones that are free.")
    labels: list[Label] | None = None


class RemoveRequest(_Strict):
    """Items to remove: all of them must be there."""

    ids: Annotated[list[Id], Field(min_length=1)]


class Changed(BaseModel):
    """A change that is on disk."""

    ids: list[int]
    n_items: int


class Stats(BaseModel):
    """The index and the service in numbers."""

    index: dict[str, Any] = Field(description="As HashIndex.stats gives it.")
    shape: dict[str, int]
    label_names: dict[str, str]
    limits: dict[str, float]
    model: str | None = Field(description="What the model takes: embeddings or images.")
    item_shape: list[int] | None
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


class Done(BaseModel):
    """Whether there was something to do."""

    done: bool
    n_items: int


VisitedBucket.model_rebuild()
