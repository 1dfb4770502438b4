"""``python -m hashcade.serve``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hashcade.errors import HashcadeError
from hashcade.serve._run import log_to_stderr, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve an index; 2 and one line on stderr if that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m hashcade.serve",
        description="Serve an index on HTTP, with a page to look into it.",
        epilog="The token is taken from the variable HASHCADE_TOKEN or from --token-file.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="[model/] index/")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pictures", type=Path, help="folder, .npz, .npy or .json")
    parser.add_argument("--names", type=Path, help="names of the classes")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--access-log", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-requests", type=int, default=64)
    parser.add_argument("--deadline", type=float, default=10.0)
    parser.add_argument("--fold-seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    if len(options.paths) > 2:
        parser.error("give the index, or the model and the index")
    log_to_stderr()
    settings = vars(options)
    *model, index = settings.pop("paths")
    token_file = settings.pop("token_file")
    try:
        token = os.environ.get("HASHCADE_TOKEN")
        if token_file is not None:
            token = token_file.read_text("utf-8").strip()
        run(index, model[0] if model else None, token=token, **settings)
    except (HashcadeError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
