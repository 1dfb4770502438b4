"""All verbs put together. Nothing heavy is imported here: ``--help`` must be there at once."""

from typing import Annotated

import typer

from hashcade._version import __version__
from hashcade.cli import cluster
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.cli.build import add, build, encode, remove
from hashcade.cli.demo import demo
from hashcade.cli.fit import fit, train
from hashcade.cli.inspect import inspect, verify
from hashcade.cli.search import evaluate, search
from hashcade.cli.serve import serve

_CLUSTER = "Publish tables into a Redis Cluster, and look after them. Needs the extra redis."
_VERSION = "Show the version and exit."


def warmup(as_json: opt.Json = False) -> None:
    """Compile all kernels now, so that no later command has to.

    They are cached on disk, once per installation.

    \b
    Examples:
      hashcade warmup
    """
    from hashcade.warmup import warmup as compile_kernels

    seconds = compile_kernels()
    out.report(as_json, {"seconds": seconds}, ("compiled", f"in {seconds:.1f} s"))


VERBS = (
    demo, fit, train, build, add, remove, search, evaluate, inspect, verify, encode, serve, warmup,
)  # fmt: skip


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
        app.command(name=verb.__name__)(opt.spread(verb))
    group = typer.Typer(help=_CLUSTER, rich_markup_mode=None, no_args_is_help=True)
    for verb in cluster.VERBS:
        group.command(name=verb.__name__)(opt.spread(verb))
    app.add_typer(group, name="cluster")
    return app


def _print_version(show: bool) -> None:
    if show:
        typer.echo(f"hashcade {__version__}")
        raise typer.Exit


def hashcade(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help=_VERSION)
    ] = False,
) -> None:
    """Learn a hash table for similarity search, search it, look into it.

    \b
    hashcade fit photos/ -o table/         learn from labelled images or embeddings
    hashcade search table/ query.jpg       look into a few buckets instead of everything
    hashcade add table/ more-photos/       add items later
    hashcade inspect table/                see what is in it

    A table is one directory: a model, an index, and the labels and names of the items. Progress
    goes to stderr, results to stdout; --json is for programs. Exit codes: 0 success, 1 internal
    error, 2 an error that the message explains, 130 stopped by Ctrl-C.
    """
