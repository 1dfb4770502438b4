"""``hashcade fit`` and ``hashcade train``."""

import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from hashcade._extras import check_extras
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, read_data, root_of
from hashcade.errors import ConfigError

_NO_LABELS = "Learn without labels: clusters of the embeddings take the place of classes."


def fit(
    data: opt.Data,
    output: opt.NewTable,
    *,
    metric: opt.Metric = "euclidean",
    no_labels: Annotated[bool, opt.flag("--no-labels", _NO_LABELS)] = False,
    given: opt.Learning,
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
    if no_labels and given.labels is not None:
        raise ConfigError(f"--no-labels and --labels={given.labels} exclude each other")
    _learn(data, output, given, metric, labelled=not no_labels)


def train(data: opt.Data, output: opt.NewModel, *, given: opt.Learning) -> None:
    """Learn a model alone, to fill tables with it later.

    Writes a model (config.json, model.safetensors) with a card that says what it was trained on
    (README.md, card.json). Needs the extra train (torch); images need the extra images.

    \b
    Examples:
      hashcade train photos/ -o model/
      hashcade train vectors.npz --width 32 --set learning_rate=0.001 -o model/
      hashcade build model/ other-photos/ -o table/
    """
    _learn(data, output, given)


def _learn(
    data: Path, output: Path, given: opt.Learning, metric: str | None = None, labelled: bool = True
) -> None:
    """Learn, and write a table, or without a metric a model."""
    kind = out.MODEL if metric is None else out.TABLE
    out.refuse_existing(output, kind, force=given.force)
    sides = opt.image_size(given.size)
    from hashcade.data import required_extras

    check_extras(torch="train", **required_extras(data))
    found = read_data(data, given, labelled=labelled, size=sides)
    if given.backbone in ("nin", "stride") and not found.is_images:
        hint = f"leave out --backbone={given.backbone}, which is for images"
        raise ConfigError(f"{found.source} has embeddings", hint=hint)
    settings = {field.name: getattr(given, field.name) for field in fields(opt.Training)}
    settings["backbone"] = given.backbone or ("stride" if found.is_images else None)
    del settings["size"], settings["setting"]
    settings |= {"verbose": not given.quiet, **_parsed(given.setting)}

    from hashcade.cli.model_card import describe, write_card
    from hashcade.learn import Hasher
    from hashcade.store import MODEL_DIR
    from hashcade.table import HashTable

    if not given.quiet:
        out.say(describe(found))
    y: Any = labels_of(found)
    lines: dict[str, str] = {}
    hasher: Any
    start = time.perf_counter()
    if metric is None:
        hasher = Hasher(**settings).fit(found.items, y)
        save = hasher.save
    else:
        table = HashTable(metric=metric, **settings)
        table.fit(found.items, y, names=found.names or None)
        table.catalog.data = root_of(data, given, found)
        hasher, save = table.hasher, table.save
        lines["buckets"] = out.OCCUPIED.format(**table.stats())
    seconds = time.perf_counter() - start
    with out.new_result(output, kind, force=given.force) as new:
        save(new)
        card = write_card(new if metric is None else new / MODEL_DIR, hasher, found, seconds)
    if card["metrics"]:
        text = "precision@1 {precision_at_1:.1f} %, speed-up {speedup_factor:.1f}"
        lines["validation"] = text.format(**card["metrics"])
    out.report(
        given.as_json,
        {"output": str(output), **card},
        (kind, output),
        ("data", f"{len(found):,} items of {card['data']['n_classes']:,} classes"),
        ("shape", out.SHAPE.format(**card["table"])),
        *lines.items(),
        ("time", f"{seconds:.0f} s"),
    )


def _parsed(pairs: list[str] | None) -> dict[str, Any]:
    """Settings from NAME=VALUE, with values as in JSON, else text."""
    from hashcade.learn import Hasher

    settings, allowed = {}, Hasher().get_params()
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or name not in allowed:
            hint = f"use NAME=VALUE with one of {', '.join(allowed)}"
            raise ConfigError(f"--set {pair}: unknown setting", hint=hint)
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings
