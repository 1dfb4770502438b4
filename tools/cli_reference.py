"""The reference of the command line, made from the commands themselves.

``python tools/cli_reference.py docs/cli.md`` writes it; a test says when it is stale.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer.main

_HEAD = """# Command line

Made from the commands by `make docs-cli`; every text is what `--help` prints.

Results go to stdout, progress and messages to stderr. With `--json` a result is one JSON value. An
error is one line on stderr that says what was wrong and what to do.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | an internal error (please report it); `HASHCADE_DEBUG=1` shows where |
| 2 | an error that the message explains |
| 130 | stopped by Ctrl-C |
| 143 | stopped by SIGTERM |

A half-written table, model or file is never left behind. `hashcade --install-completion` sets
up the completion of your shell.
"""


def reference() -> str:
    """The whole reference as Markdown."""
    from hashcade.cli.app import make_app

    group: Any = typer.main.get_command(make_app())
    parts = [_HEAD, _section("hashcade", _help(group, "hashcade"))]
    for name, command in group.commands.items():
        parts.append(_section(f"hashcade {name}", _help(command, f"hashcade {name}")))
        for inner, verb in getattr(command, "commands", {}).items():
            path = f"hashcade {name} {inner}"
            parts.append(_section(path, _help(verb, path)))
    return "\n".join(parts)


def _help(command: Any, path: str) -> str:
    with command.make_context(path, [], resilient_parsing=True, max_content_width=90) as context:
        context.terminal_width = 90  # the same text on every terminal
        text: str = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


def main() -> None:
    """Write the reference to a file."""
    path = Path(sys.argv[1])
    path.write_text(reference(), encoding="utf-8")
    print(f"written {os.fspath(path)}")


if __name__ == "__main__":
    main()
