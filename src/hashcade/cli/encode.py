"""``hashcade encode``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, load_model, model_path, read_and_encode, root_of
from hashcade.errors import ConfigError


def encode(
    model: opt.Model,
    data: opt.Data,
    output: Annotated[Path, opt.option("File for it.", "--output", "-o", metavar="FILE.npz")],
    scores: Annotated[bool, opt.flag("--scores", "Write the slot scores as well.")] = False,
    split: opt.Split = None,
    items: opt.Items = None,
    labels: opt.Labels = None,
    skip_bad: opt.SkipBad = False,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Write the buckets and vectors of items to a file.

    For your own programs, or to build a table elsewhere: hashcade build takes the file in place
    of data, on a machine without torch. The file has bucket_ids and vectors, shape and
    model_fingerprint of the model, and labels, names and scores if there are any; no pickles.

    \b
    Examples:
      hashcade encode model/ photos/ -o codes.npz
      hashcade build model/ codes.npz -o table/
      python -c "import numpy as np; print(np.load('codes.npz')['bucket_ids'][:3])"
    """
    if output.suffix != ".npz":
        raise ConfigError(f"--output={output} must end in .npz")
    out.refuse_existing(output, out.FILE, force=force)
    hasher = load_model(model)
    found, encoded = read_and_encode(
        hasher, model, data, split=split, items=items, labels=labels, skip_bad=skip_bad, quiet=quiet
    )

    import numpy as np

    from hashcade.learn import model_fingerprint

    shape = hasher.shape_
    arrays: dict[str, Any] = {
        "bucket_ids": encoded.bucket_ids,
        "vectors": encoded.vectors,
        "shape": np.array([shape.width, shape.depth, shape.sparsity]),
        "model_fingerprint": np.array(model_fingerprint(model_path(model))),
        "data": np.array(str(root_of(data, split, found))),
    }
    y = labels_of(found)
    if y is not None:
        arrays["labels"] = np.array(y)
    if found.names:
        arrays["names"] = np.array(found.names)
    if scores:
        arrays["scores"] = encoded.scores
    with out.new_result(output, out.FILE, force=force) as new:
        np.savez(new, **arrays)
    occupied = len(np.unique(encoded.bucket_ids))
    result = {"output": str(output), "n_items": len(found), "n_occupied": occupied}
    buckets = f"{len(found):,} in {occupied:,} of {shape.n_buckets:,} buckets"
    out.report(as_json, result, ("codes", output), ("items", buckets))
