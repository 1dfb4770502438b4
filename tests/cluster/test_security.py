"""TLS and two users: the reader of docs/cluster.md may read the blocks, and nothing else."""

import subprocess

import pytest
import redis

from hashcade import ClusterError
from hashcade.cluster import Reader
from tests.cluster.load import fill
from tests.cluster.servers import Servers, closing

READER = (
    "~hashcade:* -@all +get +mget +getrange +hmget +hgetall +readonly +asking +cluster +xread "
    "+ping +hello +client +auth"
)
WRITER = READER + (
    " +set +append +unlink +eval +evalsha +script +xadd +xtrim +hset +incr +exists +expire "
    "+info +config|get +wait"
)


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
    users.write_text(
        "user default off\n"
        "user admin on >of-admin ~* &* +@all\n"
        f"user writer on >of-writer {WRITER}\n"
        f"user reader on >of-reader {READER}\n"
    )
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
        username=name,
        password=f"of-{name}",
        timeout=0.5,  # the first connection makes keys for TLS on a busy machine
        **{"ca_file": certificates / "ca.crt", **options},
    )


def test_the_writer_writes_and_the_reader_reads(secure, certificates, monkeypatch):
    values = fill(connect(secure, certificates, "writer"), 60)
    monkeypatch.setenv("HASHCADE_REDIS_USER", "reader")
    monkeypatch.setenv("HASHCADE_REDIS_PASSWORD", "of-reader")
    monkeypatch.setenv("HASHCADE_REDIS_CA", str(certificates / "ca.crt"))
    reader = Reader(secure.url, timeout=0.5)
    assert reader.get_many(list(values)) == list(values.values())
    assert len(reader.masters) == 3


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "hashcade:{load/0}:b", "forged"),
        ("GET", "other:key"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("EVAL", "return 1", 0),
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
        Reader(secure.url, username="reader", password="guess", ca_file=certificates / "ca.crt")
    assert "HASHCADE_REDIS_PASSWORD" in caught.value.hint
    assert "guess" not in f"{caught.value!r} {caught.value.hint}"


def test_no_password_is_refused(secure, certificates):
    with pytest.raises(ClusterError, match="refused") as caught:
        Reader(secure.url, ca_file=certificates / "ca.crt")
    assert "HASHCADE_REDIS_PASSWORD" in caught.value.hint


def test_a_server_of_another_authority_is_refused(secure, certificates):
    with pytest.raises(ClusterError, match="certificate verify failed"):
        connect(secure, certificates, "reader", ca_file=certificates / "other.crt")


def test_a_server_without_tls_is_no_server(shared_cluster, certificates):
    with pytest.raises(ClusterError, match="did not answer"):
        Reader(shared_cluster.url.replace("redis:", "rediss:"), ca_file=certificates / "ca.crt")
