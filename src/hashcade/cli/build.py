"""``hashcade build``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli.inputs import encode_items, labels_of, load_model, model_path, read_data, root_of
from hashcade.cli.outputs import (
    TABLE,
    new_result,
    percent,
    print_fields,
    print_json,
    refuse_existing,
)
from hashcade.errors import ConfigError

if TYPE_CHECKING:
    from hashcade.table import HashTable

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
    refuse_existing(output, TABLE, force=force)
    codes = _read_codes(data)
    if codes is not None:
        table = _from_codes(codes, data, model, metric)
    else:
        hasher = load_model(model)
        found = read_data(
            data, size=hasher.config_.image_size, split=split, items=items, labels=labels,
            skip_bad=skip_bad, quiet=quiet,
        )  # fmt: skip
        encoded = encode_items(hasher, found, model, quiet=quiet)
        from hashcade.table import HashTable

        table = HashTable.from_parts(hasher, metric=metric)
        table.add(encoded, labels=labels_of(found), names=found.names or None)
        table.catalog.data = root_of(data, split, found)
    _write(table, model, output, force=force)
    stats = table.stats()
    if as_json:
        print_json({"output": str(output), **stats})
        return
    fields: list[tuple[str, object]] = [
        ("table", output),
        ("items", f"{stats['n_items']:,} of dimension {stats['dim']:,}"),
        ("buckets", f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"),
        ("speed-up", f"{stats['expected_speedup']:.1f} expected"),
    ]
    if "purity" in stats:
        fields.append(("purity", percent(stats["purity"])))
    print_fields(fields)


def _write(table: HashTable, model: Path, output: Path, *, force: bool) -> None:
    """Write the table with a copy of the model, its card included."""
    from hashcade.cli.model_card import CARD_FILES
    from hashcade.table import MODEL_DIR

    with new_result(output, TABLE, force=force) as new:
        table.save(new)
        if table.hasher is None:
            shutil.copytree(model_path(model), new / MODEL_DIR)
            return
        for name in CARD_FILES:
            if (model_path(model) / name).is_file():
                shutil.copyfile(model_path(model) / name, new / MODEL_DIR / name)


# -- codes made by hashcade encode -----------------------------------------------------------------


def _read_codes(path: Path) -> dict[str, Any] | None:
    """The arrays of a file made by hashcade encode; None for other data."""
    if path.suffix != ".npz" or not path.is_file():
        return None
    from hashcade.data import read_npz

    arrays = read_npz(path)
    needed = {"bucket_ids", "vectors", "shape", "model_fingerprint", "data"}
    return arrays if needed <= arrays.keys() else None


def _from_codes(codes: dict[str, Any], data: Path, model: Path, metric: str) -> HashTable:
    from hashcade.codes import CodeShape
    from hashcade.index import HashIndex
    from hashcade.learn import model_fingerprint
    from hashcade.store import Catalog
    from hashcade.table import HashTable

    expected, given = str(codes["model_fingerprint"]), model_fingerprint(model_path(model))
    if expected != given:
        raise ConfigError(
            f"{data} was made with another model: it has the fingerprint {expected[:12]}, "
            f"{model} has {given[:12]}",
            hint="give the right model, or encode again",
        )
    width, depth, sparsity = (int(number) for number in codes["shape"])
    catalog = Catalog(metric=metric, data=Path(str(codes["data"])))
    numbers = catalog.codes(codes.get("labels"), len(codes["vectors"]))
    index = HashIndex.build(
        codes["bucket_ids"],
        codes["vectors"],
        labels=numbers,
        shape=CodeShape(width=width, depth=depth, sparsity=sparsity),
    )
    if "names" in codes:
        import numpy as np

        catalog.name_items(np.arange(len(numbers)), codes["names"].tolist())
    return HashTable.from_parts(None, index, catalog)
