"""``hashcade cluster``: tables in a Redis Cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hashcade._progress import progress_bar
from hashcade.cli import options as opt
from hashcade.cli import outputs as out
from hashcade.errors import ClusterError

if TYPE_CHECKING:
    from hashcade.cluster import Reader

_URL = "redis://HOST:PORT of any server of the cluster; rediss:// with TLS."
_PASSWORD = "File with the password of the user."
_VARIABLE = "the variable HASHCADE_REDIS_PASSWORD"
_GENERATION = "A generation, as listed by hashcade cluster generations."
_OF_CURRENT = "the current one"
_FIRST_PASS = (
    "int8: a search fetches quantized codes, and then only few vectors. The same results, a third "
    "of the bytes, a second round trip; faster for blocks of some 500 KB, or slow networks."
)
_INCOMPLETE = "Also generations whose publisher died before they were complete."

Url = Annotated[str, opt.argument("URL", _URL)]
Name = Annotated[str, opt.option("Name of the table in the cluster.", metavar="NAME")]
PasswordFile = Annotated[Path | None, opt.option(_PASSWORD, metavar="FILE", default=_VARIABLE)]
Which = Annotated[str | None, opt.option(_GENERATION, metavar="GENERATION", default=_OF_CURRENT)]


@contextmanager
def _connect(url: str, password_file: Path | None) -> Iterator["Reader"]:
    from hashcade.cluster import Reader

    password = os.environ.get("HASHCADE_REDIS_PASSWORD")
    if password_file is not None:
        password = password_file.read_text("utf-8").strip()
    reader = Reader(url, password=password)
    try:
        yield reader
    finally:
        reader.close()


def publish(
    table: opt.Table,
    url: Url,
    name: Name,
    activate: Annotated[bool, opt.flag("--activate", "Make it the current generation.")] = False,
    first_pass: Annotated[str | None, opt.option(_FIRST_PASS, default="none")] = None,
    password_file: PasswordFile = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Write a table to a Redis Cluster, as a new generation. Needs the extra redis.

    The current generation is not touched. After data loss in Redis, or an interruption, the same
    command writes what is missing.

    \b
    Examples:
      hashcade cluster publish table/ redis://10.0.0.1:6379 --name photos --activate
    """
    from hashcade.cluster import LARGE_BLOCK
    from hashcade.cluster import publish as publish_table

    with _connect(url, password_file) as reader, progress_bar("read", quiet=quiet) as progress:
        manifest = publish_table(
            table, reader, name, activate=activate, first_pass=first_pass, progress=progress
        )
    mean, p99 = manifest.mean_block_bytes, manifest.p99_block_bytes
    warnings = []
    if mean > LARGE_BLOCK:
        warnings.append(
            f"a block has {mean / 1024:,.0f} KB on average, and a query reads one or more: train "
            "with more buckets, send queries of one bucket to one node, or use --first-pass int8"
        )
    result = {
        "generation": manifest.generation,
        "active": activate,
        "n_items": manifest.n_items,
        "n_buckets": manifest.n_buckets,
        "mean_block_bytes": mean,
        "p99_block_bytes": p99,
        "warnings": out.warn(warnings),
    }
    state = "active" if activate else f"not active; see: hashcade cluster activate {url}"
    out.report(
        as_json,
        result,
        ("generation", f"{manifest.generation}, {state}"),
        ("items", f"{manifest.n_items:,} in {out.pluralize(manifest.n_buckets, 'bucket')}"),
        (
            "blocks",
            f"{mean / 1024:,.1f} KB on average, {p99 / 1024:,.1f} KB at the 99th percentile",
        ),
    )


def generations(
    url: Url, name: Name, password_file: PasswordFile = None, as_json: opt.Json = False
) -> None:
    """List the generations of a table, the newest first.

    \b
    Examples:
      hashcade cluster generations redis://10.0.0.1:6379 --name photos
    """
    from hashcade.cluster import Generations

    with _connect(url, password_file) as reader:
        rows = Generations(reader, name).describe()
    if as_json:
        out.report(True, {"generations": rows})
        return
    columns = ("generation", "use", "state", "created_at", "n_items", "n_buckets", "nodes")
    titles = ("generation", "use", "state", "created", "items", "buckets", "nodes")
    out.print_table(titles, [[row.get(column) for column in columns] for row in rows])


def activate(
    url: Url,
    generation: Annotated[str, opt.argument("GENERATION", _GENERATION)],
    name: Name,
    password_file: PasswordFile = None,
    as_json: opt.Json = False,
) -> None:
    """Make a generation the current one, for all query nodes within a second.

    \b
    Examples:
      hashcade cluster activate redis://10.0.0.1:6379 6f1c0a2b9d3e4f50 --name photos
    """
    from hashcade.cluster import Generations

    with _connect(url, password_file) as reader:
        Generations(reader, name).activate(generation)
    out.report(as_json, {"generation": generation}, ("active", generation))


def rollback(
    url: Url, name: Name, password_file: PasswordFile = None, as_json: opt.Json = False
) -> None:
    """Activate the previous generation.

    \b
    Examples:
      hashcade cluster rollback redis://10.0.0.1:6379 --name photos
    """
    from hashcade.cluster import Generations

    with _connect(url, password_file) as reader:
        generation = Generations(reader, name).rollback()
    out.report(as_json, {"generation": generation}, ("active", generation))


def retire(
    url: Url,
    name: Name,
    generation: Annotated[
        str | None, opt.option(_GENERATION, metavar="GENERATION", default="all but the last two")
    ] = None,
    incomplete: Annotated[bool, opt.flag("--incomplete", _INCOMPLETE)] = False,
    password_file: PasswordFile = None,
    as_json: opt.Json = False,
) -> None:
    """Delete generations: by default all but the current and the previous one.

    A generation that a query node uses is refused.

    \b
    Examples:
      hashcade cluster retire redis://10.0.0.1:6379 --name photos
    """
    from hashcade.cluster import retire as retire_generations

    with _connect(url, password_file) as reader:
        names = retire_generations(reader, name, generation, incomplete=incomplete)
    out.report(as_json, {"retired": names}, ("retired", ", ".join(names) or "none"))


def verify(
    url: Url,
    name: Name,
    generation: Which = None,
    password_file: PasswordFile = None,
    as_json: opt.Json = False,
) -> None:
    """Read every key of a generation, and list what is missing or damaged.

    \b
    Examples:
      hashcade cluster verify redis://10.0.0.1:6379 --name photos
    """
    from hashcade.cluster import verify as verify_generation

    with _connect(url, password_file) as reader:
        problems = verify_generation(reader, name, generation)
    out.report(as_json, {"problems": problems}, *(("damaged", problem) for problem in problems))
    if problems:
        raise ClusterError(
            out.pluralize(len(problems), "problem"),
            hint=f"hashcade cluster repair TABLE {url} --name {name}",
        )
    if not as_json:
        out.show("everything is there")


def repair(
    table: opt.Table,
    url: Url,
    name: Name,
    generation: Which = None,
    password_file: PasswordFile = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Write missing or damaged keys again, from the table that was published.

    \b
    Examples:
      hashcade cluster repair table/ redis://10.0.0.1:6379 --name photos
    """
    from hashcade.cluster import repair as repair_generation

    with _connect(url, password_file) as reader, progress_bar("read", quiet=quiet) as progress:
        n = repair_generation(table, reader, name, generation, progress=progress)
    out.report(as_json, {"repaired": n}, ("repaired", out.pluralize(n, "block or file")))


VERBS: tuple[Any, ...] = (publish, generations, activate, rollback, retire, verify, repair)
