"""TLS and two users: the reader of docs/cluster.md may read the blocks, and nothing else."""

import hashlib
import subprocess
from pathlib import Path

import numpy as np
import pytest
import redis

from hashcade import ClusterError
from hashcade.cluster import ClusterTable, Reader, publish, verify
from tests.cluster.factories import Kind, assert_same, items, saved_table
from tests.cluster.load import fill
from tests.cluster.servers import Servers, closing

TIMEOUT = 10.0  # seconds: connections make keys for TLS, on a busy machine
USERS = Path(__file__).parents[2] / "deploy" / "redis-users.acl"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    new = "openssl req -newkey rsa:2048 -nodes -batch"
    sign = "openssl x509 -req -days 2 -CA ca.crt -CAkey ca.key -CAcreateserial -extfile san"
    for command in (
        f"{new} -x509 -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
        f"{new} -subj /CN=redis -keyout redis.key -out redis.csr",
        f"{sign} -in redis.csr -out redis.crt",
        f"{new} -x509 -days 2 -subj /CN=other -keyout other.key -out other.crt",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def secure(redis_server, certificates, tmp_path_factory):
    users = tmp_path_factory.mktemp("acl") / "users.acl"
    lines = USERS.read_text()
    for name in ("writer", "reader"):
        digest = hashlib.sha256(f"of-{name}".encode()).hexdigest()
        lines = lines.replace(f"{name.upper()}_SHA256", digest)
    users.write_text(lines + "user admin on >of-admin ~* &* +@all\n")
    options = {
        "port": "0",
        "tls-port": "PORT",
        "tls-cert-file": certificates / "redis.crt",
        "tls-key-file": certificates / "redis.key",
        "tls-ca-cert-file": certificates / "ca.crt",
        "tls-auth-clients": "no",
        "tls-replication": "yes",
        "tls-cluster": "yes",
        "aclfile": users,
        "masteruser": "admin",
        "masterauth": "of-admin",
    }
    client = {
        "username": "admin",
        "password": "of-admin",
        "ssl": True,
        "ssl_ca_certs": str(certificates / "ca.crt"),
    }
    folder = tmp_path_factory.mktemp("secure")
    with closing(Servers(folder, options=options, scheme="rediss", client=client)) as servers:
        yield servers


def connect(servers, certificates, name, **options):
    return Reader(
        servers.url,
        username=f"hashcade-{name}",
        password=f"of-{name}",
        timeout=TIMEOUT,
        **{"ca_file": certificates / "ca.crt", **options},
    )


def test_the_writer_writes_and_the_reader_reads(secure, certificates, monkeypatch):
    values = fill(connect(secure, certificates, "writer"), 60)
    monkeypatch.setenv("HASHCADE_REDIS_USER", "hashcade-reader")
    monkeypatch.setenv("HASHCADE_REDIS_PASSWORD", "of-reader")
    monkeypatch.setenv("HASHCADE_REDIS_CA", str(certificates / "ca.crt"))
    reader = Reader(secure.url, timeout=TIMEOUT)
    assert reader.get_many(list(values)) == list(values.values())
    assert len(reader.masters) == 3


def test_a_table_is_published_by_one_and_searched_by_the_other(secure, certificates, tmp_path):
    table = saved_table(tmp_path / "table", Kind(), np.random.default_rng(0))
    writer = connect(secure, certificates, "writer")
    publish(tmp_path / "table", writer, "secure", activate=True)
    assert verify(writer, "secure") == []
    encoded = items(Kind(), 20, np.random.default_rng(1))
    with ClusterTable.open(
        secure.url,
        name="secure",
        username="hashcade-reader",
        password="of-reader",
        ca_file=certificates / "ca.crt",
        timeout=TIMEOUT,
    ) as remote:
        assert_same(remote.search(encoded), table.search(encoded))
        with pytest.raises(ClusterError, match="refused"):
            publish(tmp_path / "table", remote.reader, "secure")


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "hashcade:{load/0}:b", "forged"),
        ("GET", "other:key"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("EVAL", "return 1", 0),
        ("SET", "hashcade:{secure}:current", "forged"),
        ("UNLINK", "hashcade:{load/0}:b"),
    ],
)
def test_the_reader_may_do_nothing_else(secure, certificates, command):
    reader = connect(secure, certificates, "reader")
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:\d+ refused \w+: ") as caught:
        reader.run("hashcade:{load/0}:b", *command)
    assert isinstance(caught.value.__cause__, redis.exceptions.NoPermissionError)
    assert "docs/cluster.md" in caught.value.hint


def test_a_wrong_password_is_refused_and_not_repeated_in_the_message(secure, certificates):
    with pytest.raises(ClusterError, match="refused") as caught:
        Reader(
            secure.url,
            username="hashcade-reader",
            password="guess",
            ca_file=certificates / "ca.crt",
            timeout=TIMEOUT,
        )
    assert "HASHCADE_REDIS_PASSWORD" in caught.value.hint
    assert "guess" not in f"{caught.value!r} {caught.value.hint}"


def test_no_password_is_refused(secure, certificates):
    with pytest.raises(ClusterError, match="refused") as caught:
        Reader(secure.url, ca_file=certificates / "ca.crt", timeout=TIMEOUT)
    assert "HASHCADE_REDIS_PASSWORD" in caught.value.hint


def test_a_server_of_another_authority_is_refused(secure, certificates):
    with pytest.raises(ClusterError, match="certificate verify failed"):
        connect(secure, certificates, "reader", ca_file=certificates / "other.crt")


def test_a_server_without_tls_is_no_server(shared_cluster, certificates):
    with pytest.raises(ClusterError, match="did not answer"):
        Reader(shared_cluster.url.replace("redis:", "rediss:"), ca_file=certificates / "ca.crt")
