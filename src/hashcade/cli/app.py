"""The application with all commands; errors become one line with a hint, and an exit code.

Nothing heavy is imported here: ``--help`` must be fast.
"""

import os
import signal
import sys
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
from hashcade.errors import HashcadeError

_CLUSTER = "Publish tables to a Redis Cluster, and manage them. Needs the extra redis."
DEBUG = "HASHCADE_DEBUG"
_VERSION = "Show the version and exit."


def warmup(as_json: opt.Json = False) -> None:
    """Compile all kernels in advance, so that no later command has to.

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
    """Create the application with its commands."""
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
    """Learn a hash table for similarity search, search it, and inspect it.

    \b
    hashcade fit photos/ -o table/         learn from labelled images or embeddings
    hashcade search table/ query.jpg       search a few buckets instead of all items
    hashcade add table/ more-photos/       add items later
    hashcade inspect table/                show what is in it

    A table is one directory: a model, an index, and the labels and names of the items. Progress
    goes to stderr, results to stdout; --json is for programs. Exit codes: 0 success, 1 internal
    error, 2 an error that the message explains, 130 stopped by Ctrl-C.
    """


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run the application; any error becomes one line and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if not arguments and "_HASHCADE_COMPLETE" not in os.environ:
        arguments = ["--help"]
    try:
        code = app(arguments, standalone_mode=False, prog_name="hashcade")
        sys.stdout.flush()
    except typer.Abort:
        return _fail("stopped")
    except typer.TyperException as error:  # a usage error
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "hashcade"
        return _fail(f"{_one_line(error.format_message()).rstrip('.')}; see: {command} --help")
    except KeyboardInterrupt:
        code = out.INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return out.INTERNAL
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        if isinstance(error, HashcadeError | ValueError | ImportError | OSError | MemoryError):
            return _fail(error_message(error))
        details = f"{type(error).__name__}: {_one_line(error)}"
        _fail(f"internal error (please report it): {details}; {DEBUG}=1 shows where")
        return out.INTERNAL
    if code == out.INTERRUPTED:
        _fail("stopped; no partial result was left behind")
    return code if isinstance(code, int) else out.OK


def error_message(error: BaseException) -> str:
    """The message of an error, with its hint if there is one."""
    hint = getattr(error, "hint", None)
    message = _one_line(error) or type(error).__name__
    if isinstance(error, MemoryError):
        message, hint = "not enough memory", "use fewer items, or smaller ones"
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{message}; {hint}" if hint else message


def _one_line(error: object) -> str:
    """The first line of a message, and the number of further lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 else ""
    return (lines[0] if lines else "") + more


def _fail(message: str) -> int:
    out.say(f"hashcade: {message}")
    return out.ERROR


def _terminate(*_: object) -> None:
    raise SystemExit(out.TERMINATED)  # temporary files are removed on the way out
