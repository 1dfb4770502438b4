"""``hashcade build``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hashcade.cli._directory import new_directory, refuse_existing
from hashcade.cli._model import encode_data
from hashcade.cli._options import Force, Items, Json, Labels, Quiet, SkipBad, Split
from hashcade.cli._output import percent, print_fields, print_json
from hashcade.errors import ConfigError, DataError


@dataclass(frozen=True)
class _Codes:
    """All that an index is built from."""

    bucket_ids: Any
    vectors: Any
    labels: Any
    shape: Any
    class_names: tuple[int | str, ...]
    names: tuple[str, ...]
    model: Path
    fingerprint: str
    data: Path


def build(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="A model made by hashcade train; or codes made by hashcade encode, without DATA.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="INDEX", help="Directory for the index.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            show_default=False,
            help="What is to be found: as for hashcade train, but labels are not needed.",
        ),
    ] = None,
    split: Split = None,
    items: Items = None,
    labels: Labels = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Put items into the buckets that a model gives them.

    The index remembers its model, the names of images and the classes, if there are labels. Ids
    are the row numbers of the data.

    \b
    Examples:
      hashcade build model/ photos/ -o index/
      hashcade build model/ embeddings.npy -o index/
      hashcade build model/ cifar-100-python/ --split test -o index/
      hashcade build codes.npz -o index/         from encode; needs no torch
    """
    refuse_existing(output, "index", force=force)
    if data is None:
        codes = _from_file(model)
    else:
        hasher, found, encoded = encode_data(
            model, data, with_scores=False, skip_bad=skip_bad, quiet=quiet,
            split=split, items=items, labels=labels,
        )  # fmt: skip
        from hashcade.index import model_fingerprint

        codes = _Codes(
            encoded.bucket_ids, encoded.vectors, found.labels, hasher.shape_, found.class_names,
            found.names, model, model_fingerprint(model), _root(found.path, split, found.names),
        )  # fmt: skip
    stats = _write(codes, output, force=force)
    if as_json:
        print_json({"output": str(output), **stats})
        return
    fields: list[tuple[str, object]] = [
        ("index", output),
        ("items", f"{stats['n_items']:,} of dimension {stats['dim']:,}"),
        ("buckets", f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"),
        ("speed-up", f"{stats['expected_speedup']:.1f} expected"),
    ]
    if "purity" in stats:
        fields.append(("purity", percent(stats["purity"])))
    print_fields(fields)


def _write(codes: _Codes, output: Path, *, force: bool) -> dict[str, Any]:
    from hashcade.index import HashIndex, write_origin

    index = HashIndex.build(codes.bucket_ids, codes.vectors, labels=codes.labels, shape=codes.shape)
    with new_directory(output, "index", force=force) as made:
        index.save(made)
        write_origin(
            made, final=output, model=codes.model, data=codes.data,
            fingerprint=codes.fingerprint, class_names=codes.class_names, names=codes.names,
        )  # fmt: skip
    return index.stats()


def _root(path: Path, split: str | None, names: tuple[str, ...]) -> Path:
    """The folder that the names of images begin in."""
    return path / split if names and split and (path / split).is_dir() else path


def _from_file(path: Path) -> _Codes:
    """Codes that hashcade encode wrote."""
    from hashcade.codes import CodeShape
    from hashcade.data._arrays import keys_of_npz, read_npz
    from hashcade.data._files import existing

    place = existing(path)
    if place.suffix != ".npz":
        raise ConfigError(f"DATA is missing: {path} alone is no file made by hashcade encode")
    there = keys_of_npz(place)
    needed = ["bucket_ids", "vectors", "shape", "model", "model_fingerprint", "data"]
    missing = [key for key in needed if key not in there]
    if missing:
        raise DataError(f"{path} was not made by hashcade encode: it has no {missing[0]}")
    arrays = dict(zip(there, read_npz(place, there), strict=True))
    width, depth, sparsity = (int(number) for number in arrays["shape"])
    return _Codes(
        arrays["bucket_ids"],
        arrays["vectors"],
        arrays.get("labels"),
        CodeShape(width=width, depth=depth, sparsity=sparsity),
        tuple(arrays["class_names"].tolist()) if "class_names" in arrays else (),
        tuple(arrays["names"].tolist()) if "names" in arrays else (),
        Path(str(arrays["model"])),
        str(arrays["model_fingerprint"]),
        Path(str(arrays["data"])),
    )
