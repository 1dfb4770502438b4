"""All verbs put together. Nothing heavy is imported here: ``--help`` must be there at once."""

from __future__ import annotations

from typing import Annotated

import typer

from hashcade._version import __version__
from hashcade.cli._build import build
from hashcade.cli._demo import demo
from hashcade.cli._encode import encode
from hashcade.cli._evaluate import evaluate
from hashcade.cli._inspect import inspect
from hashcade.cli._reproduce import reproduce
from hashcade.cli._search import search
from hashcade.cli._serve import serve
from hashcade.cli._train import train
from hashcade.cli._verify import verify

VERBS = (demo, train, encode, build, search, evaluate, reproduce, inspect, verify, serve)


def make_app() -> typer.Typer:
    """The application with its verbs."""
    app = typer.Typer(
        name="hashcade",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(hashcade)
    for verb in VERBS:
        app.command(name=verb.__name__)(verb)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hashcade {__version__}")
        raise typer.Exit


def hashcade(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, and leave.",
        ),
    ] = False,
) -> None:
    """Learn a hash table for similarity search, build it, search it, look into it.

    \b
    hashcade train photos/ -o model/           folders of images by class, or embeddings
    hashcade build model/ photos/ -o index/    put the items into their buckets
    hashcade search index/ query.jpg           look into a few buckets instead of everything

    Progress goes to stderr, results to stdout; --json is for programs. Exit codes: 0 done, 1 a
    mistake inside hashcade, 2 an error that the message explains, 130 stopped by Ctrl-C.
    """
