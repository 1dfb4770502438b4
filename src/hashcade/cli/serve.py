"""``hashcade serve``."""

import os
from pathlib import Path
from typing import Annotated

from hashcade.cli import options as opt

_HOST = "Address to listen on; all but loopback need a token."
_TOKEN = "File with the token that clients must send."
_NAME = "the variable HASHCADE_TOKEN"
_PICTURES = "Images of the items: a folder, .npy, .npz or .json."
_DATA = "the images that the table was built from"
_NO_MODEL = "Serve without the model and torch: queries include their buckets or scores."
_WORK = "Queries × (candidates + 100 × buckets + 400 × results) of a search."
_MEMORY = "Bytes of memory for large requests and responses; beyond it they get 429."
_CONNECTIONS = "Concurrent connections; 0: 256, or as the limit of open files allows."
_IDLE = "Seconds after which an idle connection is closed."
_SEND = "Seconds for a client to read its response, plus one per megabyte."
_CACHE = "For a table in a cluster: size of the vector cache, such as 8GB."
_MODEL = "For a table in a cluster: a local copy of its model; by default it is fetched."
_TABLE = "A table made by hashcade fit or build, or redis://HOST:PORT/NAME."
_FOLD = "Save the index when its oldest unsaved change has this age."


def serve(
    table: Annotated[str, opt.argument("TABLE", _TABLE)],
    host: Annotated[str, opt.option(_HOST)] = "127.0.0.1",
    port: Annotated[int, opt.number("Port; 0: any free port.", min=0)] = 8000,
    token_file: Annotated[Path | None, opt.option(_TOKEN, metavar="FILE", default=_NAME)] = None,
    pictures: Annotated[Path | None, opt.option(_PICTURES, metavar="PATH", default=_DATA)] = None,
    no_model: Annotated[bool, opt.flag("--no-model", _NO_MODEL)] = False,
    read_only: Annotated[bool, opt.flag("--read-only", "Refuse changes.")] = False,
    model: Annotated[Path | None, opt.option(_MODEL, metavar="MODEL")] = None,
    cache: Annotated[str, opt.option(_CACHE, metavar="BYTES")] = "1GB",
    max_body: Annotated[int, opt.number("Maximum bytes of a request.")] = 16 << 20,
    max_batch: Annotated[int, opt.number("Maximum queries or items per request.")] = 1024,
    max_neighbors: Annotated[int, opt.number("Largest n_neighbors.")] = 1000,
    max_probe: Annotated[int, opt.number("Largest n_probe.")] = 4096,
    max_filter: Annotated[int, opt.number("Maximum ids of a filter.")] = 100_000,
    max_pixels: Annotated[int, opt.number("Maximum pixels of an uploaded image.")] = 25_000_000,
    max_work: Annotated[int, opt.number(_WORK)] = 500_000_000,
    max_requests: Annotated[int, opt.number("Concurrent requests; more get 429.")] = 64,
    max_memory: Annotated[int, opt.number(_MEMORY)] = 256 << 20,
    max_connections: Annotated[int, opt.number(_CONNECTIONS, min=0)] = 0,
    deadline: Annotated[float, opt.number("Time limit of a request, in seconds.", min=0)] = 10.0,
    idle_seconds: Annotated[float, opt.number(_IDLE, min=0)] = 15.0,
    send_seconds: Annotated[float, opt.number(_SEND, min=0)] = 10.0,
    threads: Annotated[int, opt.number("Concurrent searches; 0: one per core.", min=0)] = 0,
    fold_seconds: Annotated[float, opt.number(_FOLD, min=0)] = 60.0,
    fold_bytes: Annotated[int, opt.number("Or when unsaved changes have this size.")] = 64 << 20,
    stop_seconds: Annotated[float, opt.number("Time limit to shut down on SIGTERM.", min=0)] = 4.0,
    access_log: Annotated[bool, opt.flag("--access-log", "Log each request.")] = False,
) -> None:
    """Serve a table over HTTP, with a page to explore it. Needs the extra serve.

    \b
    Examples:
      hashcade serve table/
      hashcade serve table/ --port 9000 --fold-seconds 5
      hashcade serve table/ --no-model           needs no torch
      hashcade serve redis://host:6379/photos --cache 8GB
      HASHCADE_TOKEN=$(openssl rand -hex 16) hashcade serve table/ --host 0.0.0.0
    """
    token = os.environ.get("HASHCADE_TOKEN")
    if token_file is not None:
        token = token_file.read_text("utf-8").strip()
    from hashcade.serve import log_to_stderr, run

    log_to_stderr()
    run(
        table, use_model=not no_model, host=host, port=port, token=token, pictures=pictures,
        read_only=read_only, model=model, cache=opt.byte_count("--cache", cache),
        max_body=max_body, max_batch=max_batch, max_neighbors=max_neighbors,
        max_probe=max_probe, max_filter=max_filter, max_pixels=max_pixels,
        max_work=max_work, max_requests=max_requests, max_memory=max_memory,
        max_connections=max_connections, deadline=deadline, idle_seconds=idle_seconds,
        send_seconds=send_seconds, threads=threads, fold_seconds=fold_seconds,
        fold_bytes=fold_bytes, stop_seconds=stop_seconds, access_log=access_log,
    )  # fmt: skip
