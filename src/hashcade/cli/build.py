"""``hashcade build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hashcade._io import read_file, replace_file
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, load_model, model_path, read_and_encode, root_of
from hashcade.errors import ConfigError

MODEL_FILES = ("config.json", "model.safetensors", "card.json", "README.md")
_DATA = (
    "The items: as for hashcade fit, but labels are not needed. Or a file made by hashcade "
    "encode, which needs no torch."
)


def build(
    model: opt.Model,
    data: Annotated[Path, opt.argument("DATA", _DATA)],
    output: opt.NewTable,
    metric: opt.Metric = "euclidean",
    split: opt.Split = None,
    items: opt.Items = None,
    labels: opt.Labels = None,
    skip_bad: opt.SkipBad = False,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Fill a table with items by a model that was trained before.

    The model is copied into the table. Ids are the row numbers of the data; names of images and
    labels, if there are any, are remembered.

    \b
    Examples:
      hashcade build model/ photos/ -o table/
      hashcade build model/ embeddings.npy -o table/
      hashcade build model/ codes.npz -o table/        from hashcade encode
    """
    out.refuse_existing(output, out.TABLE, force=force)
    from hashcade.store import MODEL_DIR
    from hashcade.table import HashTable

    codes = _read_codes(data)
    if codes is not None:
        table = HashTable.from_parts(None, *_from_codes(codes, data, model, metric))
    else:
        hasher = load_model(model)
        found, encoded = read_and_encode(
            hasher, model, data, split=split, items=items, labels=labels, skip_bad=skip_bad,
            quiet=quiet,
        )  # fmt: skip
        table = HashTable.from_parts(hasher, metric=metric)
        table.add(encoded, labels=labels_of(found), names=found.names or None)
        table.catalog.data = root_of(data, split, found)
    with out.new_result(output, out.TABLE, force=force) as new:
        table.save(new)
        for name in MODEL_FILES:  # with its card; from codes the table was filled without a model
            if (model_path(model) / name).is_file():
                replace_file(new / MODEL_DIR / name, read_file(model_path(model) / name))
    stats = table.stats()
    out.report(
        as_json,
        {"output": str(output), **stats},
        ("table", output),
        ("items", f"{stats['n_items']:,} of dimension {stats['dim']:,}"),
        ("buckets", f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"),
        ("speed-up", f"{stats['expected_speedup']:.1f} expected"),
    )


def _read_codes(path: Path) -> dict[str, Any] | None:
    """The arrays of a file made by hashcade encode; None for other data."""
    if path.suffix != ".npz" or not path.is_file():
        return None
    from hashcade.data import read_npz

    arrays = read_npz(path)
    needed = {"bucket_ids", "vectors", "shape", "model_fingerprint", "data"}
    return arrays if needed <= arrays.keys() else None


def _from_codes(codes: dict[str, Any], data: Path, model: Path, metric: str) -> tuple[Any, Any]:
    """Index and catalog."""
    from hashcade.codes import CodeShape
    from hashcade.index import HashIndex
    from hashcade.learn import model_fingerprint
    from hashcade.store import Catalog

    expected, given = str(codes["model_fingerprint"]), model_fingerprint(model_path(model))
    if expected != given:
        raise ConfigError(
            f"{data} was made with another model: it has the fingerprint {expected[:12]}, "
            f"{model} has {given[:12]}",
            hint="give the right model, or encode again",
        )
    width, depth, sparsity = (int(number) for number in codes["shape"])
    shape = CodeShape(width=width, depth=depth, sparsity=sparsity)
    names = dict(enumerate(codes["names"].tolist())) if "names" in codes else None
    catalog = Catalog(names=names, metric=metric, data=Path(str(codes["data"])))
    numbers = catalog.codes(codes.get("labels"), len(codes["vectors"]))
    index = HashIndex.build(codes["bucket_ids"], codes["vectors"], labels=numbers, shape=shape)
    return index, catalog
