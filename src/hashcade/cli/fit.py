"""``hashcade fit`` and ``hashcade train``, and the model card that they write."""

import json
import os
import platform
import time
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade._extras import check_extras
from hashcade._io import replace_file
from hashcade._version import __version__
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli import warn
from hashcade.cli.inputs import labels_of, read_data, root_of
from hashcade.errors import ConfigError

if TYPE_CHECKING:
    from hashcade.data import ImageFeatures, Items

_SCRATCH_SIZE = (32, 32)
_NO_NETWORK = "the pre-trained network that photos are learned with is not installed"
_INSTALL = (
    "run: pip install 'hashcade[transfer]'; or add --from-scratch, to learn from the images alone "
    "at 32×32, which takes longer and is far less precise"
)
_NO_LABELS = "Learn without labels: clusters of the embeddings replace classes."


def fit(
    data: opt.Data,
    output: opt.NewTable,
    *,
    metric: opt.Metric = "euclidean",
    no_labels: Annotated[bool, opt.flag("--no-labels", _NO_LABELS)] = False,
    keep: opt.Keeping,
    options: opt.Learning,
) -> None:
    """Learn a hash table from labelled images or embeddings, and fill it with them.

    Writes a table: one directory with the model, the index, and the ids, labels, names and
    payload of the items. Needs the extra train (torch). For photos it uses features of a
    pre-trained network (extras images and transfer), cached in ~/.cache/hashcade/features or
    $HASHCADE_CACHE. The same in two steps: hashcade train, then hashcade build.

    \b
    Examples:
      hashcade fit photos/ -o table/            one sub-folder of photos per class
      hashcade fit photos/ -o table/ --features encoder.onnx --budget 5m
      hashcade fit vectors.npy -o table/        labels in vectors_labels.npy
      hashcade fit vectors.parquet --items clip --labels kind -o table/
      hashcade fit vectors.parquet --ids sku --payload text,url -o table/
      hashcade fit photos/ --split train --run-dir run/ -o table/
    """
    for name in ("labels", "sample"):
        value = getattr(options, name)
        if no_labels and value is not None:
            raise ConfigError(f"--no-labels and --{name}={value} exclude each other")
    _learn(data, output, options, metric, labelled=not no_labels, keep=keep)


def train(data: opt.Data, output: opt.NewModel, *, options: opt.Learning) -> None:
    """Train a model, to build tables with it later.

    Writes a model (config.json, model.safetensors) with a model card (README.md, card.json). Needs
    the extra train (torch); photos as for hashcade fit. Data may be larger than memory. Under
    torchrun all processes train one model together (data parallel).

    \b
    Examples:
      hashcade train photos/ -o model/
      hashcade train 'shards/*.parquet' --sample 200000 -o model/
      torchrun --nproc-per-node 2 -m hashcade train vectors.npy -o model/
      hashcade train vectors.npz --width 32 --set learning_rate=0.001 -o model/
      hashcade build model/ other-photos/ -o table/
    """
    _learn(data, output, options)


def _learn(
    data: Path, output: Path, options: opt.Learning, metric: str | None = None,
    labelled: bool = True, keep: opt.Keeping | None = None,
) -> None:  # fmt: skip
    """Train, and write a table, or without a metric only a model."""
    from hashcade.learn import is_first_rank

    is_first = is_first_rank()  # only this process writes and prints
    options = options if is_first else replace(options, quiet=True)
    kind = out.MODEL if metric is None else out.TABLE
    out.refuse_existing(output, kind, force=options.force)
    sides, budget = opt.image_size(options.size), opt.seconds(options.budget)
    from hashcade.data import holds_images, required_extras

    scratch = _from_scratch(options)
    check_extras(torch="train", **required_extras(data))
    features = None if scratch else _features(options, sides)
    no_network = features is None and not scratch
    if no_network and holds_images(data):  # before photos are read, which is slow
        raise ConfigError(_NO_NETWORK, hint=_INSTALL)
    size = None if features is not None else sides or _SCRATCH_SIZE
    # A table needs all items, a model alone only a sample.
    sample = {}
    if metric is None:
        sample = {"sample": options.sample, "random_state": options.random_state}
    dataset = read_data(data, options, labelled, size, features, keep, **sample)
    if no_network and dataset.is_images:
        raise ConfigError(_NO_NETWORK, hint=_INSTALL)
    _check_options(options, dataset)
    settings = _settings(options, dataset) | {"budget": budget}
    settings["features"] = features if dataset.features else None
    settings |= _parse_settings(options.setting)

    from hashcade.learn import Hasher
    from hashcade.store import MODEL_DIR
    from hashcade.table import HashTable

    if not options.quiet:
        out.say(_describe(dataset))
    y: Any = labels_of(dataset)
    image_size = features.image_size if features is not None and dataset.features else size
    warnings = out.warn(warn.about_data(dataset, y, image_size)) if is_first else []
    lines: dict[str, str] = {}
    hasher: Any
    start = time.perf_counter()
    if metric is None:
        hasher = Hasher(**settings).fit(dataset.items, y)
        if not is_first:
            return
        save = hasher.save
    else:
        table = HashTable(metric=metric, **settings)
        columns: dict[str, Any] = {"ids": dataset.ids, "payload": dataset.payload}
        table.fit(dataset.items, y, names=dataset.names or None, **columns)
        if not is_first:
            return
        table.catalog.data = root_of(data, options, dataset)
        hasher, save = table.hasher, table.save
        stats = table.stats()
        lines["buckets"] = out.OCCUPIED.format(**stats)
        warnings += out.warn(warn.about_buckets(stats))
    seconds = time.perf_counter() - start
    with out.new_result(output, kind, force=options.force) as new:
        save(new)
        if metric is not None:
            table.close()  # before it is renamed
        card = _write_card(new if metric is None else new / MODEL_DIR, hasher, dataset, seconds)
    if card["metrics"]:
        text = "precision@1 {precision_at_1:.1f} %, speed-up {speedup_factor:.1f}"
        lines["validation"] = text.format(**card["metrics"])
        precision = card["metrics"]["precision_at_1"]
        chance, images = warn.chance(y), dataset.is_images
        warnings += out.warn(warn.about_precision(precision, chance, images=images))
    out.report(
        options.as_json,
        {"output": str(output), **card, "warnings": warnings},
        (kind, output),
        ("data", f"{len(dataset):,} items of {card['data']['n_classes']:,} classes"),
        ("shape", out.SHAPE.format(**card["table"])),
        *lines.items(),
        ("time", f"{seconds:.0f} s"),
    )


def _check_options(options: opt.Learning, data: "Items") -> None:
    option = None
    if options.backbone in opt.IMAGE_NETWORKS and not data.is_images:
        option = f"--backbone={options.backbone}"
    elif not data.is_images and data.features is None:
        option = f"--features={options.features}" if options.features else None
        option = "--from-scratch" if options.from_scratch else option
    if option is not None:
        hint = f"leave out {option}, which is for images"
        raise ConfigError(f"{data.source} has embeddings", hint=hint)
    if data.features and options.base_steps is not None:
        hint = "add --from-scratch, or leave it out"
        message = f"--base-steps={options.base_steps} is for training from scratch"
        raise ConfigError(message, hint=hint)


def _settings(options: opt.Learning, data: "Items") -> dict[str, Any]:
    """Settings of the hasher that have their own option."""
    settings = {field.name: getattr(options, field.name) for field in fields(opt.Training)}
    for name in ("size", "setting", "pixels", "from_scratch"):  # not settings of the hasher
        del settings[name]
    settings["backbone"] = options.backbone or ("stride" if data.is_images else None)
    return settings | {"verbose": not options.quiet}


def _from_scratch(options: opt.Learning) -> bool:
    """Whether to train on images without pre-trained features."""
    network = options.backbone in opt.IMAGE_NETWORKS
    if options.features is not None and (options.from_scratch or network):
        other = "--from-scratch" if options.from_scratch else f"--backbone={options.backbone}"
        raise ConfigError(f"--features={options.features} and {other} exclude each other")
    return options.from_scratch or network


def _features(options: opt.Learning, sides: tuple[int, int] | None) -> "ImageFeatures | None":
    """The requested pre-trained network, or the default one if it is installed."""
    from hashcade.data import ImageFeatures

    if options.features is not None:
        features = ImageFeatures(options.features, image_size=sides, pixels=options.pixels)
        check_extras(**features.extras)
        return features
    default = ImageFeatures(image_size=sides)
    return default if default.missing is None else None


def _parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Settings from NAME=VALUE, where values are JSON, else text."""
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


def _write_card(model: Path, hasher: Any, data: Any, seconds: float) -> dict[str, Any]:
    """Write the model card, as JSON and as Markdown, into the directory of a model."""
    from importlib.metadata import version

    from hashcade.learn import model_fingerprint, read_config

    resolved = read_config(model)["resolved"]
    card = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": model_fingerprint(model),
        "data": {
            "source": data.source,
            "summary": _describe(data),
            "item_shape": list(data.items.shape[1:]),
            "n_items": len(data),
            "n_classes": len(hasher.classes_),
            "skipped": list(data.skipped),
        },
        "table": resolved["shape"],
        "settings": {
            name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in {**hasher.get_params(), "features": data.features}.items()
            if name not in ("run_dir", "verbose")
        },
        "resolved": resolved,
        "seed": hasher.random_state,
        "metrics": dict(hasher.validation_),
        "seconds": round(seconds, 3),
        "environment": {
            "hashcade": __version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            **{name: version(name) for name in ("numpy", "numba", "torch", "safetensors")},
        },
    }
    replace_file(model / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    replace_file(model / "README.md", _card_text(card))
    return card


def _describe(data: Any) -> str:
    """One line about the data."""
    kind, classes = "images" if data.is_images else "embeddings", set(labels_of(data) or ())
    shape = "×".join(map(str, data.items.shape[1:]))
    if data.features is not None:
        kind, shape = "images", f"{shape} features of {data.features}"
    return f"{len(data):,} {kind} ({shape}), {len(classes):,} classes from {data.source}"


def _card_text(card: dict[str, Any]) -> str:
    """The model card in Markdown."""
    stages = ", ".join(f"{s['name']} {s['steps']:,}" for s in card["resolved"]["stages"])
    rows = {
        "created": f"{card['created']} by hashcade {card['environment']['hashcade']}",
        "fingerprint": card["fingerprint"][:12],
        "data": card["data"]["summary"],
        "skipped": f"{len(card['data']['skipped']):,} that could not be read",
        "table": out.SHAPE.format(**card["table"]),
        "training": f"{stages} batches in {card['seconds']:.0f} s",
        **{name: f"{value:.1f}" for name, value in card["metrics"].items()},
        **{name: value for name, value in card["settings"].items() if value is not None},
    }
    lines = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# A hash table for {card["data"]["n_classes"]:,} classes

Metrics are those of the validation set, searched within itself. It also chose the weights, so
expect a little less on new items. For programs: `card.json`.

| | |
|---|---|
{lines}
"""
