"""Real Redis servers: one cluster for the ordinary tests, own ones for the faults."""

import os
import shutil

import pytest

from hashcade.cluster import Reader
from tests.cluster.servers import PlainServer, Servers, closing


@pytest.fixture(scope="session", autouse=True)
def redis_server():
    """Without the program there is nothing to test; where tests must run, that is a failure."""
    if shutil.which("redis-server") is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("redis-server is not on PATH; make test-cluster installs it")


@pytest.fixture(scope="session")
def shared_cluster(redis_server, tmp_path_factory):
    """Three masters with a replica each; every test uses a name of its own in it."""
    with closing(Servers(tmp_path_factory.mktemp("redis"))) as servers:
        yield servers


@pytest.fixture
def own_cluster(redis_server, tmp_path):
    """Three masters with a replica each, for one test to break."""
    with closing(Servers(tmp_path / "redis")) as servers:
        yield servers


@pytest.fixture
def plain_redis(redis_server, tmp_path):
    """One Redis server that is no cluster."""
    with closing(PlainServer(tmp_path / "redis")) as server:
        yield server


@pytest.fixture
def server(plain_redis):
    return plain_redis


@pytest.fixture
def reader(server):
    reader = Reader(server.url)
    yield reader
    reader.close()
