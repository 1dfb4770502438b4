"""``hashcade fit`` and ``hashcade train``."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Annotated, Any

from hashcade._extras import check_extras
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.inputs import labels_of, read_data, root_of
from hashcade.errors import ConfigError

_NO_LABELS = "Learn without labels: clusters of the embeddings take the place of classes."
_OF_HASHER = ("width", "depth", "sparsity", "loss", "steps", "base_steps", "device", "run_dir")


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
    _learn(out.TABLE, locals())


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
    _learn(out.MODEL, {"no_labels": False, **locals()})


def _learn(kind: str, options: dict[str, Any]) -> None:
    """Learn, and write a table or a model."""
    given = SimpleNamespace(**options)
    out.refuse_existing(given.output, kind, force=given.force)
    sides = opt.image_size(given.size)
    if given.no_labels and given.labels is not None:
        raise ConfigError(f"--no-labels and --labels={given.labels} exclude each other")
    from hashcade.data import required_extras

    check_extras(torch="train", **required_extras(given.data))
    found = read_data(
        given.data, need_labels=not given.no_labels, ignore_labels=given.no_labels, size=sides,
        split=given.split, items=given.items, labels=given.labels, skip_bad=given.skip_bad,
        quiet=given.quiet,
    )  # fmt: skip
    if given.backbone in ("nin", "stride") and not found.is_images:
        hint = f"leave out --backbone={given.backbone}, which is for images"
        raise ConfigError(f"{found.source} has embeddings", hint=hint)
    settings = {name: options[name] for name in _OF_HASHER}
    settings["backbone"] = given.backbone or ("stride" if found.is_images else None)
    settings |= {"random_state": given.seed, "verbose": not given.quiet, **_parsed(given.setting)}

    from hashcade.cli.model_card import describe, make_card, write_card
    from hashcade.learn import Hasher
    from hashcade.store import MODEL_DIR
    from hashcade.table import HashTable

    if not given.quiet:
        out.say(describe(found))
    y: Any = labels_of(found)
    hasher: Any
    start = time.perf_counter()
    if kind == out.TABLE:
        table = HashTable(metric=given.metric, **settings)
        table.fit(found.items, y, names=found.names or None)
        table.catalog.data = root_of(given.data, given.split, found)
        hasher, save = table.hasher, table.save
    else:
        hasher = Hasher(**settings).fit(found.items, y)
        save = hasher.save
    seconds = time.perf_counter() - start
    with out.new_result(given.output, kind, force=given.force) as new:
        save(new)
        model = new / MODEL_DIR if kind == out.TABLE else new
        card = make_card(hasher, found, model, seconds=seconds)
        write_card(model, card)
    fields = {}
    if kind == out.TABLE:
        stats = table.stats()
        fields["buckets"] = f"{stats['n_occupied']:,} of {stats['n_buckets']:,} are occupied"
    if card["metrics"]:
        text = "precision@1 {precision_at_1:.1f} %, speed-up {speedup_factor:.1f}"
        fields["validation"] = text.format(**card["metrics"])
    out.report(
        given.as_json,
        {"output": str(given.output), **card},
        (kind, given.output),
        ("data", f"{len(found):,} items of {card['data']['n_classes']:,} classes"),
        ("shape", "width {width}, depth {depth}, sparsity {sparsity}".format(**card["table"])),
        *fields.items(),
        ("time", f"{seconds:.0f} s"),
    )


def _parsed(pairs: list[str] | None) -> dict[str, Any]:
    """Settings from NAME=VALUE, with values as in JSON, else text."""
    from hashcade.learn import Hasher

    settings: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        allowed = Hasher().get_params()
        if not equals or name not in allowed:
            hint = f"use NAME=VALUE with one of {', '.join(allowed)}"
            raise ConfigError(f"--set {pair}: unknown setting", hint=hint)
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings
