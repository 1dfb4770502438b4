"""From exceptions to one line with the way out, and an exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import typer

from hashcade.errors import HashcadeError, IndexLockedError

OK, MISTAKE, ERROR, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
DEBUG = "HASHCADE_DEBUG"

# The library speaks of its arguments, the command line of its options.
_OPTIONS = [
    (r"say which with split=", "say which with --split"),
    (r"; or give labels=", "; or name a file with --labels"),
    (r"another can be named with (items_key|embedding)=", "name another with --items"),
    (r"another can be named with label=", "name another with --labels"),
    (r"others can be named with items_key= and labels_key=", "name others with --items, --labels"),
    (r"items_key='(.*)' and labels_key=None go together", r"--items=\1 needs --labels as well"),
    (r"give a size to make them equal", "make them equal with --image-size"),
    (r"choose another run_dir", "choose another --run-dir"),
]
# What to do about messages that do not say it themselves.
_WAYS_OUT = [
    (r"is no hashcade model", "make a model with: hashcade train DATA -o MODEL"),
    (r"holds no index", "make an index with: hashcade build MODEL DATA -o INDEX"),
    (r"was built with another model: .* has \w{12}$", "restore the right one, or build again"),
    (r"^[^:;]* does not exist$", "check the path"),
    (r"not an image that can be read", "remove the file, or pass it over with --skip-bad"),
    (r"has \d+ pixels, max_pixels=", "make it smaller, or pass it over with --skip-bad"),
    (r"none of \d+ images can be read", "check that they are images"),
    (r"No space left on device|File too large", "make room, or write elsewhere with -o"),
    (r"Permission denied|Read-only file system", "choose a place that you may write to"),
    (r"is damaged|is missing$|must have \d+$", "make it again, or restore a copy"),
    (r"has NaN or infinite values", "remove or mend these rows"),
    (r"must have at least 2$", "give items of more classes"),
]


def run(app: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run the application; everything that goes wrong becomes one line and an exit code."""
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, _terminate)
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A verb that is asked for nothing is told what is missing; hashcade alone shows its verbs.
    completing = "_HASHCADE_COMPLETE" in os.environ
    try:
        code = app(
            given if given or completing else ["--help"],
            standalone_mode=False,
            prog_name="hashcade",
        )
        sys.stdout.flush()
    except (typer.TyperException, typer.Abort) as error:
        return _fail(_usage(error))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our results has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return MISTAKE
    except (HashcadeError, ValueError, ImportError, OSError, MemoryError) as error:
        _reraise_if_debugging()
        return _fail(explained(error))
    except Exception as error:
        _reraise_if_debugging()
        _fail(
            f"a mistake inside hashcade ({type(error).__name__}: {one_line(str(error))}); "
            f"{DEBUG}=1 shows where"
        )
        return MISTAKE
    if code == INTERRUPTED:
        _fail("stopped; nothing half-written is left")
    return code if isinstance(code, int) else OK


def explained(error: BaseException) -> str:
    """The message of an error in the words of the command line, with the way out."""
    message = _message(error)
    for pattern, words in _OPTIONS:
        message = re.sub(pattern, words, message)
    if isinstance(error, IndexLockedError):
        return f"{message}; try again when it is done, or choose another place"
    for pattern, way_out in _WAYS_OUT:
        if re.search(pattern, message):
            return f"{message}; {way_out}"
    return message


def one_line(text: str) -> str:
    """Text without line breaks; of several lines the first, and how many more there are."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 else ""
    return (lines[0] if lines else "") + more


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory; use fewer items, or smaller ones"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, HashcadeError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return one_line(str(error)) or type(error).__name__


def _usage(error: Any) -> str:
    """A mistake in the command itself."""
    if isinstance(error, typer.Abort):
        return "stopped"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "hashcade"
    return f"{one_line(error.format_message()).rstrip('.')}; see: {command} --help"


def _fail(message: str) -> int:
    print(f"hashcade: {message}", file=sys.stderr, flush=True)
    return ERROR


def _reraise_if_debugging() -> None:
    if os.environ.get(DEBUG):
        raise


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)  # so that what cleans up, cleans up
