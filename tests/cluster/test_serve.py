"""The service in front of a table in a cluster."""

import numpy as np
import pytest

from hashcade import HashTable
from hashcade.cli.options import byte_count
from hashcade.cluster import Reader, Writer, publish
from hashcade.errors import ClusterError, ConfigError
from hashcade.index import Encoded
from hashcade.serve import Client, ServeSettings
from tests.cluster.factories import Kind, items, saved_table
from tests.serve.factories import process, serving


@pytest.fixture
def place(tmp_path):
    saved_table(tmp_path / "table", Kind(), np.random.default_rng(0))
    return tmp_path / "table"


@pytest.fixture
def address(place, shared_cluster, request):
    name = f"serve-{abs(hash(request.node.name)):x}"
    reader = Reader(shared_cluster.url)
    publish(place, reader, name, activate=True)
    reader.close()
    return f"{shared_cluster.url}/{name}"


def query(n=3):
    return items(Kind(), n, np.random.default_rng(1))


def body(encoded, **options):
    vectors, buckets = encoded.vectors.tolist(), encoded.bucket_ids.tolist()
    return {"vectors": vectors, "bucket_ids": buckets, **options}


def test_answers_are_those_of_the_table(place, address):
    asked = body(query(), where={"price": {"<": 7}})
    with serving(table=place) as local, serving(table=address) as remote:
        one, two = (client.post("/v1/search", json=asked) for client in (local, remote))
        assert one.status_code == two.status_code == 200
        assert two.json() == one.json()
        assert two.headers["X-Hashcade-Bucket"] == str(asked["bucket_ids"][0][0])
        assert one.headers["X-Hashcade-Bucket"] == two.headers["X-Hashcade-Bucket"]
        item = one.json()["ids"][0][0]
        for path in (f"/v1/items/{item}", f"/v1/search/item/{item}", "/v1/tree"):
            assert remote.get(path).json() == local.get(path).json(), path
        assert remote.get("/v1/stats").json()["read_only"] is True


def test_changes_are_refused(address):
    asked = {"vectors": query(1).vectors.tolist(), "bucket_ids": [[1]]}
    with serving(table=address) as client:
        for answer in (
            client.post("/v1/items", json=asked),
            client.post("/v1/items/remove", json={"ids": [1]}),
            client.delete("/v1/items/1"),
            client.post("/v1/save"),
        ):
            assert answer.status_code == 403
            assert "read only" in answer.json()["error"]


def test_ready_tells_of_generation_and_servers(address, shared_cluster):
    with serving(table=address) as client:
        told = client.get("/ready").json()
        assert told["status"] == "ready"
        assert told["generation"] == client.app.state.service.durable.cluster.generation
        assert (told["directory_loaded"], told["servers_reachable"]) == (True, 1.0)
        assert told["slots_reachable"] == 1.0


def test_an_answer_that_must_have_seen_a_change(place, plain_redis):
    header = "X-Hashcade-Min-Sequence"
    with (
        Writer(place, Reader(plain_redis.url), "t") as writer,
        serving(table=place, read_only=True) as local,
    ):
        writer.publish(activate=True)
        with serving(table=f"{plain_redis.url}/t") as client:
            asked = query(1)
            (new,) = writer.add(asked).tolist()
            seen = {header: str(writer.sequence)}
            answer = client.post("/v1/search", json=body(asked), headers=seen)
            assert new in answer.json()["ids"][0]
            too_new = {header: str(writer.sequence + 1)}
            answer = client.post("/v1/search", json=body(asked), headers=too_new)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "has not arrived" in answer.json()["error"]
            wrong = client.post("/v1/search", json=body(asked), headers={header: "-1"})
            assert wrong.status_code == 422
        assert local.post("/v1/search", json=body(asked), headers=seen).status_code == 422


def test_metrics_of_the_cluster(address, shared_cluster):
    with serving(table=address) as client:
        for _ in range(3):
            client.post("/v1/search", json=body(query()))
        text = client.get("/metrics").text
        generation = client.app.state.service.durable.cluster.generation
        assert f'hashcade_cluster_generation_info{{generation="{generation}"}} 1.0' in text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        for name in ("requests_total", "keys_total", "nodes_total", "bytes_total", "cache_bytes",
                     "blocks_fetched_total"):  # fmt: skip
            assert float(values[f"hashcade_cluster_{name}"]) > 0, name
        for name, value in (("fallbacks", 0), ("damaged", 0), ("searches", 3), ("cache_hits", 2)):
            assert float(values[f"hashcade_cluster_{name}_total"]) == value, name
        server = shared_cluster.masters[0].address
        assert f'hashcade_cluster_fetch_seconds_total{{server="{server}"}}' in values


@pytest.mark.slow
def test_a_lost_master_without_replica_is_503_and_not_ready(place, own_cluster):
    reader = Reader(own_cluster.url)
    publish(place, reader, "lost", activate=True)
    with serving(table=f"{own_cluster.url}/lost", cache=0) as client:
        asked = [body(query(50)[slice(i, i + 1)]) for i in range(50)]
        assert {client.post("/v1/search", json=one).status_code for one in asked} == {200}
        lost = own_cluster.masters[0]
        lost.kill()
        own_cluster.replica_of(lost).kill()
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        assert ready.json()["slots_reachable"] == pytest.approx(2 / 3, abs=0.01)


def test_another_generation_is_taken_over(place, address, shared_cluster):
    name = address.rpartition("/")[2]
    with serving(table=address) as client:
        before = client.get("/ready").json()["generation"]
        table = HashTable.open(place)
        table.remove([int(client.get("/v1/items").json()["items"][0]["id"])])
        n_items = len(table)
        table.close()
        reader = Reader(shared_cluster.url)
        publish(place, reader, name, activate=True)
        reader.close()
        client.post("/v1/reload")
        assert client.get("/ready").json()["generation"] != before
        assert client.get("/v1/stats").json()["index"]["n_items"] == n_items


def test_in_a_process_of_its_own(place, address, tmp_path):
    encoded = query()
    table = HashTable.load(place)
    settings = {"log": tmp_path / "log", "cache": 1 << 20}
    with process(address, **settings) as service, Client(service.url) as client:
        found = client.search(encoded.vectors, bucket_ids=encoded.bucket_ids)
    expected = table.search(Encoded(encoded.vectors, encoded.bucket_ids, None, False))
    assert found.ids.tolist() == expected.ids.tolist()


def test_settings_are_checked(shared_cluster, tmp_path):
    with (
        pytest.raises(ConfigError, match="must end in its name"),
        serving(table=shared_cluster.url),
    ):
        pass
    with (
        pytest.raises(ClusterError, match="nothing"),
        serving(table=f"{shared_cluster.url}/nothing"),
    ):
        pass
    with pytest.raises(ConfigError, match="has its own"):
        ServeSettings(table=tmp_path, model=tmp_path)


def test_the_command_takes_an_address_and_a_size(monkeypatch):
    import hashcade.serve
    from hashcade.cli.serve import serve

    taken = {}
    monkeypatch.setattr(
        hashcade.serve, "run", lambda table, **more: taken.update(more, table=table)
    )
    monkeypatch.setattr(hashcade.serve, "log_to_stderr", lambda: None)
    serve("redis://host:1/photos", cache="1.5GB", model="model")
    assert taken["table"] == "redis://host:1/photos"
    assert taken["cache"] == 3 << 29
    assert taken["model"] == "model"


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("0", 0), ("512MB", 512 << 20), ("8 GiB", 8 << 30), ("2t", 2 << 40)]
)
def test_sizes(text, n_bytes):
    assert byte_count("--cache", text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1XB", "1e9", "nan"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=r"--cache=.* must be a number of bytes"):
        byte_count("--cache", text)
