"""Download Cifar-100 from its official site: ``python -m experiments.datasets.download FOLDER``."""

from __future__ import annotations

import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from experiments.datasets.files import md5_of, reason
from hashcade.errors import DataError

CIFAR100_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
CIFAR100_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
_CHUNK = 1 << 18
_TIMEOUT = 60.0  # seconds without a byte
_HINT = "start it again to resume"

Progress = Callable[[int, int | None], None]


def download_cifar100(
    folder: str | Path,
    *,
    progress: Progress | None = None,
    url: str = CIFAR100_URL,
    md5: str = CIFAR100_MD5,
) -> Path:
    """Download the archive of Cifar-100 (161 MB), unless it is already there.

    Until it is complete and its checksum is right it is called ``….part``; an interrupted download
    resumes from there. ``progress`` is called with the bytes received and the total, None if the
    server does not say.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"url={url!r} must begin with https:// or http://")
    archive = Path(folder).expanduser() / url.rpartition("/")[2]
    if archive.exists() and md5_of(archive) == md5:
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.part")
    _fetch(url, part, progress or _silent)
    digest = md5_of(part)
    if digest != md5:
        part.unlink()  # resuming from it could never succeed
        raise DataError(f"{url}: md5 is {digest}, must be {md5}; the download was removed")
    os.replace(part, archive)
    return archive


def _silent(done: int, total: int | None) -> None:
    pass


def _fetch(url: str, part: Path, progress: Progress) -> None:
    """Fill ``part`` up to the length that the server says, from where it ends now."""
    done = part.stat().st_size if part.exists() else 0
    total: int | None = None
    try:
        with _open(url, done) as response:
            if done and not _resumes(response, done):
                done = 0
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdecimal() else None
            with part.open("r+b" if done else "wb") as file:
                file.seek(done)
                progress(done, total)
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    progress(done, total)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())  # complete on disk before it gets its name
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{url}: download failed after {done} bytes {reason(error)}", hint=_HINT
        ) from None
    if total is not None and done < total:
        raise DataError(f"{url}: the connection ended after {done} of {total} bytes", hint=_HINT)


def _open(url: str, start: int) -> http.client.HTTPResponse:
    """Ask for the file from byte ``start`` on; for all of it if the server refuses."""
    headers = {"User-Agent": "hashcade", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url, 0)  # the part is as long as the file, or longer
        raise
    return response


def _resumes(response: http.client.HTTPResponse, start: int) -> bool:
    """Whether the server begins where it was asked to; some send everything again."""
    says = response.headers.get("Content-Range", "")
    return response.status == http.client.PARTIAL_CONTENT and says.startswith(f"bytes {start}-")


def main() -> int:
    """Download into the folder named on the command line."""
    if len(sys.argv) != 2:
        print("usage: python -m experiments.datasets.download FOLDER", file=sys.stderr)
        return 2

    def show(done: int, total: int | None) -> None:
        print(f"\r{done >> 20} of {(total or 0) >> 20} MB", end="", file=sys.stderr, flush=True)

    print(download_cifar100(sys.argv[1], progress=show))
    return 0


if __name__ == "__main__":
    sys.exit(main())
