"""Downloads, from a server on this machine."""

import hashlib
import http.server
import threading

import pytest

from experiments.datasets.download import download_cifar100
from hashcade.errors import DataError

CONTENT = bytes(range(256)) * 4000  # about a megabyte
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if server.status != 200:
            self.send_error(server.status)
            return
        start = 0
        if server.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(CONTENT):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if server.says_length:
            self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : server.breaks_at])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.ranges, server.says_length = [], True, True
        server.status, server.breaks_at = 200, None
        server.url = f"http://127.0.0.1:{server.server_address[1]}/sets/cifar.tar.gz"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(server, folder, **options):
    return download_cifar100(folder, url=server.url, md5=MD5, **options)


@pytest.mark.parametrize("says_length", [True, False])
def test_a_download_with_progress(server, tmp_path, says_length):
    server.says_length = says_length
    seen = []
    archive = fetch(server, tmp_path / "new", progress=lambda *now: seen.append(now))
    assert archive == tmp_path / "new" / "cifar.tar.gz"
    assert archive.read_bytes() == CONTENT
    assert list(archive.parent.iterdir()) == [archive]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[0][0] == 0
    assert seen[-1][0] == len(CONTENT)
    assert {total for _, total in seen} == {len(CONTENT) if says_length else None}


def test_what_is_there_is_not_downloaded_again(server, tmp_path):
    fetch(server, tmp_path)
    fetch(server, tmp_path)
    assert len(server.asked) == 1
    (tmp_path / "cifar.tar.gz").write_bytes(b"something else")
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_resumes(server, tmp_path, ranges):
    server.breaks_at = 300_000
    with pytest.raises(DataError, match=r"of 1024000 bytes|failed after \d+ bytes") as caught:
        fetch(server, tmp_path)
    assert "again to resume" in caught.value.hint
    part = tmp_path / "cifar.tar.gz.part"
    assert list(tmp_path.iterdir()) == [part]
    there = part.stat().st_size
    assert 0 < there <= 300_000
    server.breaks_at, server.ranges = None, ranges
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={there}-"]
    assert not part.exists()


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_long_enough_is_fetched_anew(server, tmp_path, left):
    (tmp_path / "cifar.tar.gz.part").write_bytes(left)
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match=f"md5 is {MD5}, must be {'0' * 32}; the download was"):
        download_cifar100(tmp_path, url=server.url, md5="0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_keeps_the_part(server, tmp_path):
    def interrupt(done, total):
        if done > 500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server, tmp_path, progress=interrupt)
    assert [file.name for file in tmp_path.iterdir()] == ["cifar.tar.gz.part"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[1] is not None


def test_errors_of_the_server_are_one_line(server, tmp_path):
    server.status = 404
    with pytest.raises(DataError, match=r"failed after 0 bytes \(HTTPError: HTTP Error 404"):
        fetch(server, tmp_path)
    with pytest.raises(DataError, match="failed after 0 bytes"):
        download_cifar100(tmp_path, url="http://127.0.0.1:1/cifar.tar.gz")
    with pytest.raises(ValueError, match="must begin with https:// or http://"):
        download_cifar100(tmp_path, url="file:///etc/hostname")
