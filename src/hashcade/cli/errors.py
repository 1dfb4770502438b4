"""From exceptions to one line with a hint, and an exit code."""

import os
import signal
import sys

import typer

from hashcade.cli.outputs import say
from hashcade.errors import HashcadeError

OK, INTERNAL, ERROR, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
DEBUG = "HASHCADE_DEBUG"


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run the application; everything that goes wrong becomes one line and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if not arguments and "_HASHCADE_COMPLETE" not in os.environ:
        arguments = ["--help"]
    try:
        code = app(arguments, standalone_mode=False, prog_name="hashcade")
        sys.stdout.flush()
    except typer.Abort:
        return _fail("stopped")
    except typer.TyperException as error:  # a mistake in the command itself
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "hashcade"
        return _fail(f"{_one_line(error.format_message()).rstrip('.')}; see: {command} --help")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our results has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERNAL
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        if isinstance(error, HashcadeError | ValueError | ImportError | OSError | MemoryError):
            return _fail(explained(error))
        what = f"{type(error).__name__}: {_one_line(error)}"
        _fail(f"internal error (please report it): {what}; {DEBUG}=1 shows where")
        return INTERNAL
    if code == INTERRUPTED:
        _fail("stopped; no partial result was left behind")
    return code if isinstance(code, int) else OK


def explained(error: BaseException) -> str:
    """The message of an error, with its hint if it has one."""
    hint = getattr(error, "hint", None)
    message = _one_line(error) or type(error).__name__
    if isinstance(error, MemoryError):
        message, hint = "not enough memory", "use fewer items, or smaller ones"
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{message}; {hint}" if hint else message


def _one_line(error: object) -> str:
    """The first line of a message, and how many more there are."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 else ""
    return (lines[0] if lines else "") + more


def _fail(message: str) -> int:
    say(f"hashcade: {message}")
    return ERROR


def _terminate(*_: object) -> None:
    raise SystemExit(TERMINATED)  # so that temporary files are removed
