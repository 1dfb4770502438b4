"""``python -m hashcade.reproduce EXPERIMENT --preset PRESET``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from hashcade.errors import HashcadeError
from hashcade.reproduce._progress import duration
from hashcade.reproduce._reproduce import EXPERIMENTS, PRESETS, reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line: progress to stderr, the page's name to stdout."""
    parser = argparse.ArgumentParser(
        prog="python -m hashcade.reproduce",
        description="Run an experiment of the paper, or go on where a run stopped.",
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--out", default="docs/results", help="folder for the page and its rows")
    parser.add_argument("--work", help="folder for features, models and checkpoints")
    parser.add_argument("--data", help="folder with the official files (default: HASHCADE_DATA)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", help="methods, losses, or k1 to k4")
    parser.add_argument("--max-steps", type=int, help="cut training, to see that it runs")
    parser.add_argument("--page", help="name of the page")
    parser.add_argument("--render", action="store_true", help="write the page from stored rows")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    options = parser.parse_args(arguments)
    try:
        done = reproduce(
            options.experiment,
            options.preset,
            out=options.out,
            work=options.work,
            data=options.data,
            seeds=options.seeds,
            only=options.only,
            max_steps=options.max_steps,
            page=options.page,
            render_only=options.render,
        )
    except (HashcadeError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    page = None if done.page is None else str(done.page)
    if options.json:
        summary = {"page": page, "rows": len(done.rows), "computed": done.n_computed}
        print(json.dumps({**summary, "seconds": round(done.seconds, 1)}))
    else:
        print(
            f"{len(done.rows)} rows, {done.n_computed} of them computed now in "
            f"{duration(done.seconds)}; {page or 'no page'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
