"""Commands that change the items of tables: ``build``, ``encode``, ``add`` and ``remove``."""

import os
from glob import has_magic
from pathlib import Path
from typing import Annotated, Any

from hashcade._progress import Progress
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli import warn
from hashcade.cli.inputs import labels_of, load_model, load_table, read_and_encode, root_of
from hashcade.errors import ConfigError

_CODES = {"bucket_ids", "vectors", "shape", "model_fingerprint", "data"}
_DATA = (
    "The items, as for hashcade fit; labels are optional. Or a file written by hashcade encode, "
    "which needs no torch. Or Parquet shards that need not fit into memory: several files, glob "
    "patterns, directories, or addresses such as s3://bucket/shards."
)
_WORKERS = "Number of processes, for shards."
_MEMORY = (
    "Memory for the data of all workers together, for shards: 500MB, 4GB. Each process needs some "
    "200 MB in addition."
)
_RAY = "Run on Ray, for shards: auto, or the address of a cluster. Needs the extra ray."

_IN_MEMORY = "leave them out, or give one file"
_NEW_LABELS = "Add unknown labels as new classes; without it they are an error."


def build(
    model: opt.Model,
    data: Annotated[list[str], opt.argument("DATA...", _DATA)],
    output: opt.NewTable,
    *,
    metric: opt.Metric = "euclidean",
    place: opt.Place = "label",
    vectors: opt.Vectors = "float32",
    first_pass: opt.FirstPass = None,
    workers: Annotated[int | None, opt.number(_WORKERS, default="one per core")] = None,
    memory: Annotated[str, opt.option(_MEMORY, metavar="BYTES")] = "1GB",
    ray: Annotated[str | None, opt.option(_RAY, metavar="ADDRESS", default="not used")] = None,
    keep: opt.Keeping,
    reading: opt.Reading,
    force: opt.Force = False,
    as_json: opt.Json = False,
) -> None:
    """Build a table from items, with a trained model.

    The model is copied into the table. Labels and the names of images are stored, if there are
    any. A build from shards that was interrupted is resumed by the same command: finished work is
    kept in TABLE.building, next to the table.

    \b
    Examples:
      hashcade build model/ photos/ -o table/
      hashcade build model/ embeddings.npy -o table/
      hashcade build model/ embeddings.parquet --payload all -o table/
      hashcade build model/ codes.npz -o table/        from hashcade encode
      hashcade build model/ 'shards/*.parquet' -o table/ --memory 2GB
    """
    if _are_shards(data):
        if first_pass is not None or vectors != "float32":
            raise ConfigError("--first-pass and --vectors are not for shards", hint=_IN_MEMORY)
        stats = _build_from_shards(
            model, data, output, metric, place, workers, memory, ray, keep, reading, force
        )
    else:
        storage = {"first_pass": first_pass, "dtype": vectors}
        stats = _build_in_memory(
            model, Path(data[0]), output, metric, place, storage, keep, reading, force
        )
    warnings = out.warn(warn.about_buckets(stats))
    out.report(
        as_json,
        {"output": str(output), **stats, "warnings": warnings},
        ("table", output),
        ("items", f"{stats['n_items']:,} of dimension {stats['dim']:,}"),
        ("buckets", out.OCCUPIED.format(**stats)),
        ("speed-up", f"{stats['expected_speedup']:.1f} expected"),
    )


def _are_shards(data: list[str]) -> bool:
    """Whether items are in several files, or remote."""
    if len(data) > 1 or "://" in data[0]:
        return True
    path = Path(data[0])
    if path.is_dir():
        return any(True for pattern in ("*.parquet", "*/*.parquet") for _ in path.glob(pattern))
    return not path.exists() and has_magic(data[0])


def _build_from_shards(
    model: Path, data: list[str], output: Path, metric: str, place: str, workers: int | None,
    memory: str, ray: str | None, keep: opt.Keeping, reading: opt.Reading, force: bool,
) -> dict[str, Any]:  # fmt: skip
    for name, value in (("--split", reading.split), ("--skip-bad", reading.skip_bad)):
        if value:
            raise ConfigError(f"{name} is not for shards of Parquet", hint="leave it out")
    from hashcade.batch import build_table

    in_memory = any(address.startswith("memory://") for address in data)
    if workers is None and ray is None and not in_memory:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    display = Progress(False if reading.quiet else None)
    try:
        return build_table(
            model, data, output, items=reading.items or "embedding", labels=reading.labels,
            **keep.columns(), metric=metric, place=place, workers=workers,
            memory=opt.n_bytes(memory), ray=ray, force=force, progress=display.update,
        )  # fmt: skip
    finally:
        display.clear()


def _build_in_memory(
    model: Path, data: Path, output: Path, metric: str, place: str, storage: dict[str, Any],
    keep: opt.Keeping, reading: opt.Reading, force: bool,
) -> dict[str, Any]:  # fmt: skip
    out.refuse_existing(output, out.TABLE, force=force)
    from hashcade.codes import CodeShape
    from hashcade.data import read_npz
    from hashcade.index import Encoded, HashIndex, check_storage
    from hashcade.learn import copy_model, model_fingerprint
    from hashcade.store import MODEL_DIR, Catalog, model_path
    from hashcade.table import HashTable

    check_storage(**storage, unit_length=metric == "cosine")
    codes = read_npz(data) if data.suffix == ".npz" and data.is_file() else {}
    if not codes.keys() >= _CODES:
        codes = _encode(model, data, reading, keep=keep)
    elif keep != opt.Keeping():
        hint = "give the Parquet file itself"
        raise ConfigError(f"{data} has codes, and no columns for --ids or --payload", hint=hint)
    codes_model, fingerprint = str(codes["model_fingerprint"]), model_fingerprint(model_path(model))
    if codes_model != fingerprint:
        raise ConfigError(
            f"{data} was made with another model: it has the fingerprint {codes_model[:12]}, "
            f"{model} has {fingerprint[:12]}",
            hint="give the right model, or encode again",
        )
    width, depth, sparsity = map(int, codes["shape"])
    shape = CodeShape(width=width, depth=depth, sparsity=sparsity)
    catalog = Catalog(metric=metric, place=place, data=Path(str(codes["data"])))
    points, buckets, names = codes["vectors"], codes["bucket_ids"], codes.get("names")
    if place == "label":
        buckets = codes.get("bucket_ids_by_label", buckets)
    unit = metric == "cosine"
    empty = HashIndex.build(
        buckets[:0], points[:0], labels=[], shape=shape, unit_length=unit, **storage,
    )  # fmt: skip
    table = HashTable.from_parts(None, empty, catalog)
    table.add(
        Encoded(points, buckets, None, by_path=False), labels=codes.get("labels"),
        names=None if names is None else [str(name) for name in names], new_labels=True,
        ids=codes.get("ids"), payload=codes.get("payload"),
    )  # fmt: skip
    with out.new_result(output, out.TABLE, force=force) as new:
        table.save(new)
        table.close()  # before it is renamed
        copy_model(model_path(model), new / MODEL_DIR)
    return table.stats()


def encode(
    model: opt.Model,
    data: opt.Data,
    output: Annotated[Path, opt.option("Output file.", "--output", "-o", metavar="FILE.npz")],
    *,
    scores: Annotated[bool, opt.flag("--scores", "Also write the slot scores.")] = False,
    reading: opt.Reading,
    force: opt.Force = False,
    as_json: opt.Json = False,
) -> None:
    """Write the buckets and vectors of items to a file.

    For your own programs, or to build a table on a machine without torch: hashcade build accepts
    the file as data. The file has bucket_ids and vectors, shape and model_fingerprint of the model,
    and, if available, labels with bucket_ids_by_label, names and scores; no pickles.

    \b
    Examples:
      hashcade encode model/ photos/ -o codes.npz
      hashcade build model/ codes.npz -o table/
      python -c "import numpy as np; print(np.load('codes.npz')['bucket_ids'][:3])"
    """
    if output.suffix != ".npz":
        raise ConfigError(f"--output={output} must end in .npz")
    out.refuse_existing(output, out.FILE, force=force)
    import numpy as np

    codes = _encode(model, data, reading, scores=scores)
    with out.new_result(output, out.FILE, force=force) as new:
        np.savez(new, **codes)
    (n_items, _), (width, depth, _) = codes["vectors"].shape, codes["shape"]
    occupied = len(np.unique(codes["bucket_ids"]))
    result = {"output": str(output), "n_items": n_items, "n_occupied": occupied}
    buckets = f"{n_items:,} in {occupied:,} of {width**depth:,} buckets"
    out.report(as_json, result, ("codes", output), ("items", buckets))


def _encode(
    model: Path, data: Path, reading: opt.Reading, scores: bool = False,
    keep: opt.Keeping | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The arrays that ``hashcade encode`` writes; with ``keep`` also ids and payload."""
    import numpy as np

    from hashcade.learn import model_fingerprint
    from hashcade.store import model_path

    hasher = load_model(model)
    dataset, encoded = read_and_encode(hasher, model, data, reading, keep=keep)
    columns = {} if keep is None else {"ids": dataset.ids, "payload": dataset.payload}
    shape, labels, by_label = hasher.shape_, labels_of(dataset), {}
    if labels is not None:
        bucket_ids = hasher.place(encoded, np.array(labels, dtype=object)).bucket_ids
        by_label = {"labels": labels, "bucket_ids_by_label": bucket_ids}
    return {
        "bucket_ids": encoded.bucket_ids,
        "vectors": encoded.vectors,
        "shape": [shape.width, shape.depth, shape.sparsity],
        "model_fingerprint": model_fingerprint(model_path(model)),
        "data": str(root_of(data, reading, dataset)),
        **by_label,
        **columns,
        **({"names": dataset.names} if dataset.names else {}),
        **({"scores": encoded.scores} if scores else {}),
    }


def add(
    table: opt.Table,
    data: opt.Data,
    *,
    new_labels: Annotated[bool, opt.flag("--new-labels", _NEW_LABELS)] = False,
    keep: opt.Keeping,
    reading: opt.Reading,
    as_json: opt.Json = False,
) -> None:
    """Add items to a table. Labels are optional; only new labels change the model.

    Without --ids, ids continue after the largest one that the table ever had; a table with text
    ids needs --ids.

    \b
    Examples:
      hashcade add table/ more-photos/
      hashcade add table/ new.npy --json       prints the ids
      hashcade add table/ new.parquet --ids sku --payload text,url
    """
    with load_table(table) as hash_table:
        dataset, encoded = read_and_encode(hash_table.hasher, table, data, reading, keep=keep)
        root, names = root_of(data, reading, dataset), list(dataset.names)
        if root != hash_table.catalog.data:  # names are relative to the folder of the table's items
            names = [str(root / name) for name in names]
        ids = hash_table.add(
            dataset.items if new_labels else encoded,
            labels=labels_of(dataset), names=names or None, new_labels=new_labels,
            ids=dataset.ids, payload=dataset.payload,
        )  # fmt: skip
        hash_table.save(table)
        n_items = len(hash_table)
    result = {"table": str(table), "ids": ids.tolist(), "n_items": n_items}
    span = f", ids {ids.min()} to {ids.max()}" if dataset.ids is None and len(ids) else ""
    added = out.pluralize(len(ids), "item") + span
    out.report(as_json, result, ("added", added), ("table", out.pluralize(n_items, "item")))


def remove(
    table: opt.Table,
    ids: Annotated[list[str] | None, opt.argument("ID...", "Ids of items.")] = None,
    where: opt.Where = None,
    as_json: opt.Json = False,
) -> None:
    """Remove items from a table, by id or by a filter.

    If one of the ids is unknown, nothing is removed.

    \b
    Examples:
      hashcade remove table/ 17
      hashcade remove table/ 17 4 2019
      hashcade remove table/ --where 'price<10' --where brand=acme
    """
    if bool(ids) == bool(where):
        raise ConfigError("give ids of items, or --where, and not both")
    with load_table(table) as hash_table:
        item_ids: Any = ids
        if ids and hash_table.catalog.id_kind != "str":
            if bad := [item for item in ids if not item.isdecimal()]:
                raise ConfigError(f"{bad[0]!r} is not an id, those of {table} are integers")
            item_ids = [int(item) for item in ids]
        n_removed = hash_table.remove(item_ids or None, where=opt.parse_where(where))
        hash_table.save(table)
        n_items = len(hash_table)
    result = {"table": str(table), "removed": n_removed, "n_items": n_items}
    removed, remaining = out.pluralize(n_removed, "item"), out.pluralize(n_items, "item")
    out.report(as_json, result, ("removed", removed), ("table", remaining))
