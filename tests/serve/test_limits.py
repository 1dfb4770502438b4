"""What is refused: strangers, giants, bombs, nonsense, and too much at once."""

import base64
import logging
import threading
import time

import numpy as np
import pytest

from hashcade import ConfigError, IndexLockedError
from hashcade.serve import ServeSettings, create_app, middleware
from hashcade.serve.app import PAGES
from hashcade.store import NewItems
from tests.serve.factories import DIM, TOKEN, make_table, serving

GOOD = {"vectors": [[0.0] * DIM], "bucket_ids": [[1]]}
FILTERED = {**GOOD, "filter_ids": [1]}  # searched in a thread, never in the event loop
PATIENCE = 60  # seconds; what takes longer has failed


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """A client of one service for all requests that change nothing."""
    with serving(table=make_table(tmp_path_factory.mktemp("unchanged") / "table")) as client:
        yield client


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


# -- who asks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_off_loopback_there_must_be_a_token(place, host):
    with pytest.raises(ConfigError, match="a token is needed"):
        ServeSettings(table=place, host=host)
    ServeSettings(table=place, host=host, token=TOKEN)


@pytest.mark.parametrize("token", ["short", "with a space in it", "ümlaut-and-long-enough"])
def test_a_poor_token_is_refused_and_not_repeated(place, token):
    with pytest.raises(ConfigError, match="the token") as caught:
        ServeSettings(table=place, token=token)
    assert token not in str(caught.value)


def routes_of(client):
    for path, methods in client.app.openapi()["paths"].items():
        for method in methods:
            yield method.upper(), path.replace("{item_id}", "1").replace("{bucket_id}", "1")
    for path in (*PAGES, "/openapi.json", "/nowhere"):
        yield "GET", path


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer wrong-horse-battery-x",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
        "Basic !!!",
        "Basic " + base64.b64encode(b"user:nonsense").decode(),
        TOKEN,
    ],
)
def test_with_a_wrong_token_every_route_but_health_answers_401(place, header, monkeypatch):
    monkeypatch.setattr(middleware, "_GUESS_SECONDS", 0.0)  # guesses are slowed elsewhere
    headers = {} if header is None else {"Authorization": header}
    with serving(table=place, token=TOKEN) as client:
        for method, path in routes_of(client):
            answer = client.request(method, path, headers=headers)
            expected = 200 if path == "/health" else 401
            assert answer.status_code == expected, (method, path)
            if expected == 401:
                assert answer.headers["www-authenticate"].startswith("Basic")


def test_with_the_token_everything_is_open(place):
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    with serving(table=place, token=TOKEN) as client:
        for header in (f"Bearer {TOKEN}", f"bearer  {TOKEN} ", f"Basic {basic}"):
            for path in ("/v1/stats", "/", "/metrics"):
                answer = client.get(path, headers={"Authorization": header})
                assert answer.status_code == 200


def test_tokens_are_compared_in_constant_time(place, monkeypatch):
    """The comparison is hmac's, on digests: neither length nor common beginning shows."""
    seen = []
    import hmac

    real = hmac.compare_digest
    monkeypatch.setattr(
        "hashcade.serve.middleware.hmac.compare_digest",
        lambda a, b: seen.append((a, b)) or real(a, b),
    )
    with serving(table=place, token=TOKEN) as client:
        client.get("/v1/stats", headers={"Authorization": "Bearer x"})
        client.get("/v1/stats", headers={"Authorization": f"Bearer {TOKEN}"})
    assert [len(a) == len(b) == 32 for a, b in seen] == [True, True]


def test_without_a_token_only_local_names_are_answered(client):
    for host in ("evil.example", "127.0.0.2:8000"):
        assert client.get("/v1/stats", headers={"Host": host}).status_code == 403
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert client.get("/v1/stats", headers={"Host": host}).status_code == 200


def test_the_name_that_it_listens_on_is_a_local_one(place):
    with serving(table=place, host="127.0.0.2") as other:
        for host in ("127.0.0.2:8000", "127.0.0.2", "localhost"):
            assert other.get("/v1/stats", headers={"Host": host}).status_code == 200
        assert other.get("/v1/stats", headers={"Host": "evil.example"}).status_code == 403
        own = {"Host": "LocalHost:80", "Origin": "http://localhost:80"}
        assert other.delete("/v1/items/1", headers=own).status_code == 200


def test_pages_of_other_sites_can_change_nothing(client):
    stranger = {"Origin": "http://evil.example"}
    assert client.delete("/v1/items/1", headers=stranger).status_code == 403
    assert client.get("/v1/items/1").status_code == 200
    own = {"Origin": "http://localhost"}
    assert client.delete("/v1/items/1", headers=own).status_code == 200


def test_neither_tokens_nor_vectors_are_logged(place, caplog):
    caplog.set_level(logging.DEBUG)
    secret = 0.8172635
    with serving(table=place, token=TOKEN, access_log=True) as client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for bad in ([secret] * DIM, [secret] * (DIM + 1), [secret, None]):
            client.post("/v1/search", headers=headers, json={**GOOD, "vectors": [bad]})
            client.post("/v1/items", headers=headers, json={**GOOD, "vectors": [bad]})
    assert "POST /v1/search 200" in caplog.text
    assert TOKEN not in caplog.text
    assert "8172635" not in caplog.text


def test_a_path_cannot_forge_lines_of_the_log(place, caplog):
    caplog.set_level(logging.INFO, "hashcade.serve.access")
    with serving(table=place, access_log=True) as client:
        client.get("/x%0a2026-01-01%20INFO%20DELETE%20/v1/items/1%20200%1b[2J%e2%80%a8%c3%a9")
        client.get("/v1/items/1")
    paths = [r.getMessage() for r in caplog.records if r.name == "hashcade.serve.access"]
    assert paths == [
        "GET /x%0A2026-01-01%20INFO%20DELETE%20/v1/items/1%20200%1B%5B2J%E2%80%A8%C3%A9 404",
        "GET /v1/items/1 200",
    ]


# -- how large -----------------------------------------------------------------------------------


def test_a_body_that_says_it_is_giant_is_not_read(place):
    with serving(table=place, max_body=1000) as client:
        answer = client.post("/v1/search", content=b"x" * 1001)
        assert answer.status_code == 413
        assert "max_body=1000" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/binary?n_queries=1", "/v1/items"])
def test_a_body_that_does_not_say_so_is_cut_off(place, path):
    read = []

    def endless():
        for _ in range(1000):
            read.append(1)
            yield b"[" * 100

    kind = "application/octet-stream" if "binary" in path else "application/json"
    with serving(table=place, max_body=1000) as client:
        answer = client.post(path, content=endless(), headers={"Content-Type": kind})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vectors": [[0.0] * DIM] * 5, "bucket_ids": [[1]] * 5}, "5 must be <= max_batch=4"),
        ({"n_neighbors": 11}, "n_neighbors=11 must be <= max_neighbors=10"),
        ({"n_probe": 9}, "n_probe=9 must be <= max_probe=8"),
        ({"filter_ids": list(range(21))}, "21 must be <= max_filter=20"),
    ],
)
def test_more_than_the_limits_is_refused_with_both_sides(place, change, words):
    limits = {"max_batch": 4, "max_neighbors": 10, "max_probe": 8, "max_filter": 20}
    with serving(table=place, **limits) as client:
        answer = client.post("/v1/search", json={**GOOD, **change})
    assert answer.status_code == 422
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        '{"vectors": [[NaN, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]]}',
        '{"vectors": [[Infinity, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]]}',
        '{"vectors": [[1e999, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]]}',
        '{"vectors": [[1e39, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]]}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[99999999999999999999]]}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[-1]]}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [["1"]]}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]]}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0, 0], [0]], "bucket_ids": [[1], [1]]}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]], "scores": [[[0]]]}',
        '{"vectors": [], "bucket_ids": []}',
        '{"vectors": [[0, 0, 0, 0, 0, 0, 0, 0]], "bucket_ids": [[1]], "n_neigbors": 3}',
        '{"vectors": "\\ud800"}',
        "[" * 100_000,
        "nonsense",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/v1/search", "/v1/items"])
def test_nonsense_is_a_4xx_in_one_line(unchanged, path, body):
    headers = {"Content-Type": "application/json"}
    answer = unchanged.post(path, content=body, headers=headers)
    assert answer.status_code in (400, 422)
    error = answer.json()["error"]
    assert error
    assert "\n" not in error
    assert len(error) < 300


def test_nan_in_plain_arrays_is_refused(client):
    vectors = np.full((2, DIM), np.nan, dtype="<f4")
    body = vectors.tobytes() + np.zeros((2, 1), "<i8").tobytes()
    headers = {"Content-Type": "application/octet-stream"}
    answer = client.post("/v1/search/binary?n_queries=2", content=body, headers=headers)
    assert answer.status_code == 422
    assert "NaN" in answer.json()["error"]
    plain = client.post(
        "/v1/search/binary?n_queries=2", content=body, headers={"Content-Type": "text/plain"}
    )
    assert plain.status_code == 415


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/../../../../etc/passwd",
        "/v1/pictures/..%2f..%2fetc%2fpasswd",
        "/v1/pictures/1%00",
        "/v1/buckets/../../etc/passwd",
    ],
)
def test_no_path_leads_out(unchanged, path):
    answer = unchanged.get(path)
    assert answer.status_code in (404, 422)
    assert b"root:" not in answer.content
    assert b"import" not in answer.content


# -- how many, how long --------------------------------------------------------------------------


def test_too_many_at_once_are_told_when_to_come_again(place):
    with serving(table=place, max_requests=2, threads=1) as client:
        service = client.app.state.service
        begun, release = threading.Barrier(2), threading.Event()

        def hold():
            begun.wait(PATIENCE)
            release.wait(PATIENCE)

        service.search_pool.submit(hold)
        begun.wait(PATIENCE)
        answers = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(client.post("/v1/search", json=FILTERED).status_code)
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: "hashcade_requests_active 2.0" in client.get("/metrics").text)
        refused = client.post("/v1/search", json=FILTERED)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200  # those who watch are still answered
        assert client.get("/ready").status_code == 200
        release.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [200, 200]
        assert client.post("/v1/search", json=FILTERED).status_code == 200


def test_what_waits_longer_than_its_deadline_is_given_up(place):
    with serving(table=place, deadline=0.2, threads=1) as client:
        service = client.app.state.service
        release = threading.Event()
        service.search_pool.submit(lambda: release.wait(PATIENCE))
        answer = client.post("/v1/search", json=FILTERED)
        assert answer.status_code == 504
        with service.durable._commit:  # a change that has not begun is not made later either
            first = service.durable.add(NewItems([1], np.zeros((1, DIM)), labels=[0]))  # waits here
            wait_until(first.running)
            late = client.post("/v1/items", json={**GOOD, "ids": [777], "labels": [0]})
        assert late.status_code == 504
        release.set()
        first.result()
        assert service.durable.remove([5]).result().numbers.tolist() == [5]
        assert 777 not in service.durable.index


def test_an_index_that_is_served_already_is_not_served_again(client, place):
    with pytest.raises(IndexLockedError, match="another writer or by a service"):
        create_app(ServeSettings(table=place))
    with serving(table=place, read_only=True) as reader:
        assert reader.get("/v1/stats").json()["read_only"]
        assert reader.delete("/v1/items/1").status_code == 403


def test_damage_is_an_error_and_never_an_answer(place):
    segment = next((place / "index").glob("segment-*.bin"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with serving(table=place) as client:
        answers = [
            client.post("/v1/search", json={**GOOD, "bucket_ids": [[b]], "fill": False})
            for b in range(16)
        ]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert "damaged" in next(a for a in answers if a.status_code == 503).json()["error"]


def test_every_answer_but_arrays_carries_the_headers_that_protect_pages(client):
    for path in ("/", "/v1/stats", "/nowhere"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
    body = np.zeros((1, DIM), "<f4").tobytes() + np.zeros((1, 1), "<i8").tobytes()
    arrays = {"Content-Type": "application/octet-stream"}
    answer = client.post("/v1/search/binary?n_queries=1", content=body, headers=arrays)
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in answer.headers


@pytest.mark.parametrize(
    "setting",
    [{"max_batch": 0}, {"deadline": 0}, {"port": 70000}, {"threads": -1}, {"fold_seconds": -1}],
)
def test_settings_that_make_no_sense_are_refused(place, setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        ServeSettings(table=place, **setting)


@pytest.mark.parametrize("route", ["save", "reload"])
def test_a_save_or_a_reload_that_has_begun_is_waited_for(place, monkeypatch, route):
    with serving(table=place, deadline=0.2) as client:
        service = client.app.state.service
        begun, release = threading.Event(), threading.Event()

        def slow(*arguments):
            begun.set()
            return release.wait(60)

        target = (service.durable, "fold") if route == "save" else (service, "reload")
        monkeypatch.setattr(*target, slow)
        threading.Timer(1.0, release.set).start()
        answer = client.post(f"/v1/{route}")
        assert (answer.status_code, answer.json()["done"]) == (200, True)

        begun.clear()
        release.clear()
        service.slow_pool.submit(release.wait)  # it cannot begin: then it is never done
        answer = client.post(f"/v1/{route}")
        assert (answer.status_code, "nothing was done" in answer.text) == (504, True)
        release.set()
        service.slow_pool.submit(int).result(60)
        assert not begun.is_set()
        monkeypatch.undo()


def test_an_explanation_looks_into_no_more_buckets_than_the_limit(place):
    with serving(table=place, max_probe=3) as client:
        ask = {"vector": [0.0] * DIM, "fill": False}
        answer = client.post("/v1/explain", json={**ask, "bucket_ids": [0, 1, 2, 3]})
        assert answer.status_code == 422
        assert answer.json()["error"] == "the number of bucket_ids=4 must be <= max_probe=3"
        assert client.post("/v1/explain", json={**ask, "bucket_ids": [0, 1, 2]}).status_code == 200
