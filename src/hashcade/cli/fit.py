"""``hashcade fit`` and ``hashcade train``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

from hashcade._extras import check_extras
from hashcade.cli import options as opt
from hashcade.cli.inputs import labels_of, read_data, root_of
from hashcade.cli.outputs import (
    MODEL,
    TABLE,
    new_result,
    print_fields,
    print_json,
    refuse_existing,
    say,
)
from hashcade.errors import ConfigError

_NO_LABELS = "Learn without labels: clusters of the embeddings take the place of classes."


def fit(
    data: opt.Data,
    output: opt.NewTable,
    width: opt.Width = None,
    depth: opt.Depth = 2,
    sparsity: opt.Sparsity = 1,
    metric: opt.Metric = "euclidean",
    loss: opt.Loss = "npairs",
    backbone: opt.Backbone = None,
    steps: opt.Steps = None,
    base_steps: opt.BaseSteps = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    setting: opt.Setting = None,
    no_labels: Annotated[bool, opt.flag("--no-labels", _NO_LABELS)] = False,
    size: opt.ImageSize = "32",
    split: opt.Split = None,
    items: opt.Items = None,
    labels: opt.Labels = None,
    skip_bad: opt.SkipBad = False,
    run_dir: opt.RunDir = None,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Learn a hash table from labelled images or embeddings, and fill it with them.

    Writes a table: one directory with the model, the index, and the labels and names of the
    items. Ids are the row numbers of the data. Needs the extra train (torch); images need the
    extra images. In two stages: hashcade train, then hashcade build.

    \b
    Examples:
      hashcade fit photos/ -o table/            one sub-folder of images per class
      hashcade fit vectors.npy -o table/        labels in vectors_labels.npy
      hashcade fit vectors.parquet --items clip --labels kind -o table/
      hashcade fit photos/ --split train --run-dir run/ -o table/
    """
    _learn(TABLE, **locals())


def train(
    data: opt.Data,
    output: opt.NewModel,
    width: opt.Width = None,
    depth: opt.Depth = 2,
    sparsity: opt.Sparsity = 1,
    loss: opt.Loss = "npairs",
    backbone: opt.Backbone = None,
    steps: opt.Steps = None,
    base_steps: opt.BaseSteps = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    setting: opt.Setting = None,
    size: opt.ImageSize = "32",
    split: opt.Split = None,
    items: opt.Items = None,
    labels: opt.Labels = None,
    skip_bad: opt.SkipBad = False,
    run_dir: opt.RunDir = None,
    force: opt.Force = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Learn a model alone, to fill tables with it later.

    Writes a model (config.json, model.safetensors) with a card that says what it was trained on
    (README.md, card.json). Needs the extra train (torch); images need the extra images.

    \b
    Examples:
      hashcade train photos/ -o model/
      hashcade train vectors.npz --width 32 --set learning_rate=0.001 -o model/
      hashcade build model/ other-photos/ -o table/
    """
    _learn(MODEL, **locals())


def _learn(
    kind: str,
    data: Path,
    output: Path,
    *,
    split: str | None,
    labels: str | None,
    size: str,
    setting: list[str] | None,
    backbone: str | None,
    seed: int,
    force: bool,
    quiet: bool,
    as_json: bool,
    items: str | None,
    skip_bad: bool,
    no_labels: bool = False,
    metric: str = "euclidean",
    **settings: Any,
) -> None:
    """Learn, and write a table or a model; ``settings`` are those of a Hasher."""
    refuse_existing(output, kind, force=force)
    sides = opt.image_size(size)
    if no_labels and labels is not None:
        raise ConfigError(f"--no-labels and --labels={labels} exclude each other")
    from hashcade.data import required_extras

    check_extras(torch="train", **required_extras(data))
    found = read_data(
        data, need_labels=not no_labels, ignore_labels=no_labels, size=sides, split=split,
        items=items, labels=labels, skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    if backbone in ("nin", "stride") and not found.is_images:
        raise ConfigError(f"--backbone={backbone} is for images, {found.source} has embeddings")
    settings["backbone"] = backbone or ("stride" if found.is_images else None)
    settings |= {"random_state": seed, "verbose": not quiet, **_parsed(setting or [])}

    from hashcade.cli.model_card import describe, make_card, write_card
    from hashcade.learn import Hasher
    from hashcade.table import MODEL_DIR, HashTable

    y = labels_of(found)
    if not quiet:
        say(describe(found))
    start = time.perf_counter()
    if kind == TABLE:
        table = HashTable(metric=metric, **settings)
        table.fit(found.items, y, names=found.names or None)
        table.catalog.data = root_of(data, split, found)
        hasher, save = table.hasher, table.save
    else:
        hasher = Hasher(**settings).fit(found.items, y)
        save = hasher.save
    seconds = time.perf_counter() - start
    with new_result(output, kind, force=force) as new:
        save(new)
        model = new / MODEL_DIR if kind == TABLE else new
        card = make_card(hasher, found, model, seconds=seconds)
        write_card(model, card, output if kind == MODEL else output / MODEL_DIR)
    if as_json:
        print_json({"output": str(output), **card})
        return
    shape, metrics = card["table"], card["metrics"]
    fields: list[tuple[str, object]] = [
        (kind, output),
        ("data", f"{len(found):,} items of {card['data']['n_classes']:,} classes"),
        ("shape", "width {width}, depth {depth}, sparsity {sparsity}".format(**shape)),
    ]
    if kind == TABLE:
        stats = table.stats()
        occupied = f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"
        fields.append(("buckets", occupied))
    if metrics:
        precision = f"precision@1 {metrics['precision_at_1']:.1f} %"
        speedup = f"speed-up {metrics['speedup_factor']:.1f}"
        fields.append(("validation", f"{precision}, {speedup}"))
    print_fields(*fields, ("time", f"{seconds:.0f} s"))


def _parsed(pairs: list[str]) -> dict[str, Any]:
    """Settings from NAME=VALUE, with values as in JSON, else text."""
    from hashcade.learn import Hasher

    settings: dict[str, Any] = {}
    allowed = Hasher().get_params() if pairs else {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {pair}: must be NAME=VALUE")
        if name not in allowed:
            hint = f"use one of {', '.join(allowed)}"
            raise ConfigError(f"--set {name}: unknown setting", hint=hint)
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings
