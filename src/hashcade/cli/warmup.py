"""``hashcade warmup``."""

from __future__ import annotations

import time

from hashcade.cli import options as opt
from hashcade.cli import outputs as out


def warmup(as_json: opt.Json = False) -> None:
    """Compile all kernels now, so that no later command has to.

    They are cached on disk, once per installation.

    \b
    Examples:
      hashcade warmup
    """
    start = time.perf_counter()
    from hashcade._kernels import compilation_seconds
    from hashcade.codes import warmup as warm_codes
    from hashcade.index import warmup as warm_index

    warm_codes()
    warm_index()
    seconds = {"compiling": compilation_seconds(), "total": time.perf_counter() - start}
    out.report(as_json, seconds, *((name, f"{value:.1f} s") for name, value in seconds.items()))
