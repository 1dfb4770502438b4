"""``hashcade fit`` and ``hashcade train``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade._extras import check_extras
from hashcade.cli import options as opt
from hashcade.cli.inputs import described, labels_of, read_data, root_of
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

if TYPE_CHECKING:
    from hashcade import data as _data

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
    refuse_existing(output, TABLE, force=force)
    if no_labels and labels is not None:
        raise ConfigError(f"--no-labels and --labels={labels} exclude each other")
    found = _read(
        data, need_labels=not no_labels, size=size, split=split, items=items, labels=labels,
        skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    settings = _settings(
        found, setting, width=width, depth=depth, sparsity=sparsity, loss=loss, steps=steps,
        base_steps=base_steps, device=device, random_state=seed, run_dir=run_dir,
        backbone=backbone, verbose=not quiet,
    )  # fmt: skip
    from hashcade.table import MODEL_DIR, HashTable

    start = time.perf_counter()
    table = HashTable(metric=metric, **settings)
    targets = None if no_labels else labels_of(found)
    table.fit(found.items, targets, names=found.names or None)
    table.catalog.data = root_of(data, split, found)
    seconds = time.perf_counter() - start
    with new_result(output, TABLE, force=force) as new:
        table.save(new)
        card = _write_card(table.hasher, found, new / MODEL_DIR, output, seconds)
    stats = table.index.stats()
    if as_json:
        print_json({"output": str(output), "card": card, "stats": table.with_labels(stats)})
        return
    used = f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"
    print_fields([("table", output), *_data_fields(card), ("buckets", used), *_result_fields(card)])


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
    refuse_existing(output, MODEL, force=force)
    found = _read(
        data, need_labels=True, size=size, split=split, items=items, labels=labels,
        skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    settings = _settings(
        found, setting, width=width, depth=depth, sparsity=sparsity, loss=loss, steps=steps,
        base_steps=base_steps, device=device, random_state=seed, run_dir=run_dir,
        backbone=backbone, verbose=not quiet,
    )  # fmt: skip
    from hashcade.learn import Hasher

    start = time.perf_counter()
    hasher = Hasher(**settings).fit(found.items, labels_of(found))
    seconds = time.perf_counter() - start
    with new_result(output, MODEL, force=force) as new:
        hasher.save(new)
        card = _write_card(hasher, found, new, output, seconds)
    if as_json:
        print_json(card)
        return
    model = f"{output} (fingerprint {card['fingerprint'][:12]})"
    print_fields([("model", model), *_data_fields(card), *_result_fields(card)])


def _read(path: Path, *, size: str, quiet: bool, **options: Any) -> _data.Items:
    """Read the data; what is missing for it is said before."""
    sides = opt.image_size(size)
    from hashcade.data import required_extras

    check_extras(torch="train", **required_extras(path))
    found = read_data(path, size=sides, quiet=quiet, **options)
    if not quiet:
        say(described(found))
    return found


def _settings(
    found: _data.Items, pairs: list[str] | None, *, backbone: str | None, **settings: Any
) -> dict[str, Any]:
    """Settings of a Hasher; --set has NAME=VALUE, with values as in JSON, else text."""
    if backbone in ("nin", "stride") and not found.is_images:
        raise ConfigError(f"--backbone={backbone} is for images, {found.source} has embeddings")
    settings["backbone"] = backbone or ("stride" if found.is_images else None)
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {pair}: must be NAME=VALUE")
        from hashcade.learn import Hasher

        allowed = Hasher().get_params()
        if name not in allowed:
            hint = f"use one of {', '.join(allowed)}"
            raise ConfigError(f"--set {name}: unknown setting", hint=hint)
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _write_card(
    hasher: Any, found: _data.Items, directory: Path, output: Path, seconds: float
) -> dict[str, Any]:
    from hashcade.cli.model_card import make_card, write_card

    card = make_card(hasher, found, directory, seconds=seconds)
    write_card(directory, card, output)
    return card


def _data_fields(card: dict[str, Any]) -> list[tuple[str, object]]:
    data, table = card["data"], card["table"]
    classes = f" of {data['n_classes']:,} classes" if data["n_classes"] else ""
    shape = f"width {table['width']}, depth {table['depth']}, sparsity {table['sparsity']}"
    return [("data", f"{data['n_items']:,} items{classes}"), ("shape", shape)]


def _result_fields(card: dict[str, Any]) -> list[tuple[str, object]]:
    metrics = card["metrics"]
    fields: list[tuple[str, object]] = [("trained in", f"{card['seconds']:.0f} s")]
    if metrics:
        precision = f"precision@1 {metrics['precision_at_1']:.1f} %"
        speedup = f"speed-up {metrics['speedup_factor']:.1f}"
        fields.insert(0, ("validation", f"{precision}, {speedup}"))
    return fields
