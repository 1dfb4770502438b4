"""``hashcade serve``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hashcade._extras import check_extras
from hashcade.cli._directory import kind_of
from hashcade.cli._model import model_of_index
from hashcade.errors import ConfigError, StorageError

_BY = "hashcade serve MODEL INDEX (or do without: --no-model)"


def serve(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[MODEL] INDEX",
            show_default=False,
            help="The index; before it the model, if it is no longer where it was.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option(metavar="NAME", help="Where to listen; others than loopback need a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="the variable HASHCADE_TOKEN",
            help="File with the token that clients must send.",
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            show_default="the images that the index was built from",
            help="Pictures of the items: a folder, .npy, .npz or .json.",
        ),
    ] = None,
    no_model: Annotated[
        bool,
        typer.Option("--no-model", help="Do without the model: queries bring buckets or scores."),
    ] = False,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one a line.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse changes.")] = False,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request.")] = False,
) -> None:
    """Serve an index on HTTP, with a page to look into it. Needs the extra serve.

    \b
    Examples:
      hashcade serve index/
      hashcade serve model/ index/ --port 9000
      hashcade serve index/ --no-model           needs no torch
      HASHCADE_TOKEN=$(openssl rand -hex 16) hashcade serve index/ --host 0.0.0.0
    """
    if len(paths) > 2:
        raise ConfigError(f"{len(paths)} paths were given, must be INDEX or MODEL INDEX")
    *given, index = paths
    if no_model and given:
        raise ConfigError(f"--no-model and the model {given[0]} were given, must be one of them")
    if not index.exists():
        raise StorageError(f"{index} does not exist; check the path")
    if kind_of(index) != "index":
        raise StorageError(f"{index} holds no index: there is no manifest.json")
    check_extras(fastapi="serve", uvicorn="serve")
    from hashcade.index import read_origin

    origin = read_origin(index)
    model = None
    if given or (origin is not None and origin.model is not None and not no_model):
        model = model_of_index(index, origin, given[0] if given else None, by=_BY)
    token = os.environ.get("HASHCADE_TOKEN")
    if token_file is not None:
        token = token_file.read_text("utf-8").strip()
    from hashcade.serve._run import log_to_stderr, run

    log_to_stderr()
    run(
        index, model, host=host, port=port, token=token, pictures=pictures, names=names,
        own_pictures=True, read_only=read_only, access_log=access_log,
    )  # fmt: skip
