"""``hashcade train``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hashcade._extras import check_extras
from hashcade.cli._directory import new_directory, refuse_existing
from hashcade.cli._input import Input, extras_for, read_input
from hashcade.cli._options import (
    Data,
    Force,
    Items,
    Json,
    Labels,
    Quiet,
    SkipBad,
    Split,
    image_size,
)
from hashcade.cli._output import print_fields, print_json, say
from hashcade.errors import ConfigError


def train(
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="Directory for the model.")
    ],
    width: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, show_default="from the classes", help="Slots per level."),
    ] = None,
    depth: Annotated[int, typer.Option(metavar="N", min=1, help="Levels.")] = 2,
    sparsity: Annotated[int, typer.Option(metavar="N", min=1, help="Buckets per item.")] = 1,
    loss: Annotated[str, typer.Option(metavar="NAME", help="npairs or triplet.")] = "npairs",
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="stride for images, none for embeddings",
            help="For images stride (made for CPUs) or nin (the paper's); for embeddings mlp, "
            "to learn new vectors as well.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default="from the data", help="Batches of the hash stage."
        ),
    ] = None,
    base_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="from the data",
            help="Batches of the base stage, for images.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of everything.")] = 0,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, ...")] = "auto",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting of hashcade.Hasher, as often as wanted: rate=0.001.",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            "--image-size",
            metavar="N or HxW",
            help="Images from files are scaled until they cover this size, and cut to it. Both "
            "networks are made for 32.",
        ),
    ] = "32",
    split: Split = None,
    items: Items = None,
    labels: Labels = None,
    skip_bad: SkipBad = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep checkpoints and a log here; the same command goes on after a break.",
        ),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn a hash table from labelled images or embeddings.

    Writes a model (config.json, model.safetensors) with a card that says what it was made of
    (README.md, card.json). Needs the extra train (torch); images need the extra images.

    \b
    Examples:
      hashcade train photos/ -o model/            folders of images by class
      hashcade train vectors.npy -o model/        labels in vectors_labels.npy
      hashcade train vectors.parquet --items clip --labels kind -o model/
      hashcade train cifar-100-python/ --split train --run-dir run/ -o model/
    """
    refuse_existing(output, "model", force=force)
    sides = image_size(size)
    check_extras(torch="train", **extras_for(data))
    settings = _settings(setting)
    found = read_input(
        data, need_labels=True, split=split, items=items, labels=labels,
        size=sides, skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    if backbone in ("nin", "stride") and not found.is_images:
        raise ConfigError(f"--backbone={backbone} is for images, {found.source} has embeddings")
    from hashcade.learn import Hasher

    hasher = Hasher(
        **{
            "width": width, "depth": depth, "sparsity": sparsity, "loss": loss, "steps": steps,
            "base_steps": base_steps, "device": device, "random_state": seed,
            "run_dir": run_dir, "verbose": not quiet,
            "backbone": backbone or ("stride" if found.is_images else None),
            **settings,
        }
    )  # fmt: skip
    if not quiet:
        say(found.describe())
    start = time.perf_counter()
    hasher.fit(found.items, found.original_labels())
    card = _write(hasher, found, output, force=force, seconds=time.perf_counter() - start)
    if as_json:
        print_json(card)
    else:
        _print(card, output)


def _write(
    hasher: Any, found: Input, output: Path, *, force: bool, seconds: float
) -> dict[str, Any]:
    from hashcade.cli._card import make_card, write_card

    with new_directory(output, "model", force=force) as made:
        hasher.save(made)
        card = make_card(hasher, found, made, seconds=seconds)
        write_card(made, card, output)
    return card


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """Settings from NAME=VALUE: numbers, true, false and null as in JSON, else text."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {pair}: must be NAME=VALUE")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    if settings:
        from hashcade.learn import Hasher

        known = Hasher().get_params()
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise ConfigError(f"--set {unknown[0]}: no such setting; there are {', '.join(known)}")
    return settings


def _print(card: dict[str, Any], output: Path) -> None:
    table, figures = card["table"], card["figures"]
    fields = [
        ("model", f"{output} (fingerprint {card['fingerprint'][:12]})"),
        ("data", f"{card['data']['n_items']:,} items of {card['data']['n_classes']:,} classes"),
        (
            "table",
            f"width {table['width']}, depth {table['depth']}, sparsity {table['sparsity']}: "
            f"{table['width'] ** table['depth']:,} buckets",
        ),
    ]
    if figures:
        fields.append(
            (
                "on items set aside",
                f"precision@1 {figures['precision_at_1']:.1f} %, "
                f"{figures['speedup_factor']:.1f} times fewer items looked at",
            )
        )
    fields.append(("trained in", f"{card['seconds']:.0f} s"))
    print_fields(fields)
