"""``hashcade warmup``."""

from __future__ import annotations

from hashcade.cli import options as opt
from hashcade.cli import outputs as out


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
