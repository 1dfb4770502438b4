"""``hashcade encode``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hashcade.cli._directory import new_file, refuse_existing_file
from hashcade.cli._model import encode_data
from hashcade.cli._options import Data, Force, Items, Json, Labels, Model, Quiet, SkipBad, Split
from hashcade.cli._output import print_fields, print_json
from hashcade.errors import ConfigError


def encode(
    model: Model,
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.npz", help="File for the result.")
    ],
    scores: Annotated[
        bool, typer.Option("--scores", help="Write the slot scores as well.")
    ] = False,
    split: Split = None,
    items: Items = None,
    labels: Labels = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write the buckets and vectors of items to a file.

    To be built into an index elsewhere: hashcade build takes the file in place of model and
    data, on a machine without torch. It is .npz without pickles: bucket_ids, vectors, and what is
    there of labels, class_names, names and scores; shape and fingerprint of the model go along.

    \b
    Examples:
      hashcade encode model/ photos/ -o codes.npz
      hashcade build codes.npz -o index/
      python -c "import numpy as np; print(np.load('codes.npz')['bucket_ids'][:3])"
    """
    if output.suffix != ".npz":
        raise ConfigError(f"--output={output} must end in .npz")
    refuse_existing_file(output, force=force)
    hasher, found, encoded = encode_data(
        model, data, with_scores=scores, skip_bad=skip_bad, quiet=quiet,
        split=split, items=items, labels=labels,
    )  # fmt: skip

    import numpy as np

    from hashcade.index import model_fingerprint

    shape = hasher.shape_
    arrays: dict[str, Any] = {
        "bucket_ids": encoded.bucket_ids,
        "vectors": encoded.vectors,
        "shape": np.array([shape.width, shape.depth, shape.sparsity]),
        "model": np.array(str(model.absolute())),
        "model_fingerprint": np.array(model_fingerprint(model)),
        "data": np.array(str(found.path.absolute())),
    }
    if found.labels is not None:
        arrays |= {"labels": found.labels, "class_names": np.array(found.class_names)}
    if found.names:
        arrays["names"] = np.array(found.names)
    if encoded.scores is not None:
        arrays["scores"] = encoded.scores
    with new_file(output, force=force) as made:
        np.savez(made, **arrays)
    occupied = len(np.unique(encoded.bucket_ids))
    if as_json:
        print_json(
            {
                "output": str(output),
                "n_items": len(found.items),
                "n_occupied": occupied,
                "n_buckets": shape.n_buckets,
            }
        )
    else:
        print_fields(
            [
                ("codes", output),
                ("items", f"{len(found.items):,} in {occupied:,} of {shape.n_buckets:,} buckets"),
            ]
        )
