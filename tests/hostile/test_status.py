"""What the service says about itself, and requests that come twice."""

import json
import logging
import re
import sqlite3
import threading
import time

import numpy as np
import pytest

from hashcade import HashIndex, StorageError
from hashcade.serve import Client
from hashcade.serve.middleware import Middleware
from hashcade.store import Catalog, DurableIndex
from tests.serve.factories import DIM, N_ITEMS, TOKEN, Process, make_table, process, serving

ITEM = {"vectors": [[0.5] * DIM], "bucket_ids": [[1]], "labels": [0]}


@pytest.fixture
def place(tmp_path):
    return make_table(tmp_path / "table")


def failing_after_commit(monkeypatch):
    """Commits reach the disk, and are said to have failed: as a flush that fails may be."""
    real = Catalog._execute

    def run(catalog, sql, *values):
        done = real(catalog, sql, *values)
        if sql == "COMMIT":
            cause = sqlite3.OperationalError("disk I/O error")
            raise StorageError(f"cannot use {catalog.path}: disk I/O error") from cause
        return done

    monkeypatch.setattr(Catalog, "_execute", run)


@pytest.mark.promise("M8", "the flush of a commit fails, the change may be on disk")
def test_a_change_whose_fate_is_unknown_is_called_so(place, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    key = {"Idempotency-Key": "first"}
    with serving(table=place) as client:
        with monkeypatch.context() as patch:
            failing_after_commit(patch)
            answer = client.post("/v1/items", json=ITEM, headers=key)
        assert answer.status_code == 503
        assert "it is unknown whether the change was made" in answer.json()["error"]
        assert str(place) not in answer.text
        later = client.post("/v1/items", json=ITEM)
        assert later.status_code == 503
        assert "no changes are taken" in later.json()["error"]
        assert str(place.parent) not in later.text
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert str(place.parent) not in ready.text
        assert "hashcade_writes_failing 1.0" in client.get("/metrics").text
    last = caplog.records[-1].getMessage()
    assert "every change is saved" not in caplog.text, last
    assert caplog.records[-1].levelno == logging.ERROR
    with serving(table=place) as client:  # it was made, and is not made again
        again = client.post("/v1/items", json=ITEM, headers=key)
        assert again.status_code == 200
        assert again.json() == {"ids": [N_ITEMS], "n_items": N_ITEMS + 1}


@pytest.mark.promise("L", "saves of the index fail")
def test_saves_that_fail_are_told_everywhere(place, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("hashcade.store.saving._RETRY_SECONDS", 0.05)
    with serving(table=place, fold_seconds=0.05) as client:
        assert client.get("/ready").json() == {"status": "ready", "writes": "ok", "saves": "ok"}

        def fail(*_, **__):
            raise StorageError(f"cannot write {place}/index/manifest.json: No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(HashIndex, "save", fail)
            assert client.post("/v1/items", json=ITEM).status_code == 200  # it is in the database
            for _ in range(200):
                ready = client.get("/ready")
                if ready.status_code == 503:
                    break
                time.sleep(0.05)
            assert ready.status_code == 503
            assert ready.json()["writes"] == "ok"
            assert "No space left" in ready.json()["saves"]
            assert str(place.parent) not in ready.text
            metrics = client.get("/metrics").text
            assert "hashcade_saves_failing 1.0" in metrics
            assert re.search(r"hashcade_index_saves_failed [1-9]", metrics)
        for _ in range(200):
            if client.get("/ready").status_code == 200:
                break
            time.sleep(0.05)
        assert client.get("/ready").json() == {"status": "ready", "writes": "ok", "saves": "ok"}
        assert "hashcade_saves_failing 0.0" in client.get("/metrics").text
    assert caplog.records[-1].getMessage() == "every change is saved"


@pytest.mark.promise("L", "the last save fails")
def test_the_last_line_of_the_log_is_true(place, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    durable = DurableIndex(place)
    durable.remove([1]).result(60)
    with monkeypatch.context() as patch:
        patch.setattr(HashIndex, "save", lambda *_, **__: 1 / 0)
        durable.close()
    assert "every change is saved" not in caplog.text
    assert "the index was not saved, it lacks 1 changes" in caplog.records[-1].getMessage()


@pytest.mark.promise("L", "answers name no paths of the server")
def test_no_answer_names_a_path(place, monkeypatch):
    with serving(table=place) as client:
        place.rename(place.with_name("moved"))
        for answer in (
            client.post("/v1/items", json=ITEM),
            client.post("/v1/save"),
            client.post("/v1/reload"),
            client.get("/ready"),
        ):
            assert str(place.parent) not in answer.text, answer.text
        place.with_name("moved").rename(place)


# -- requests that come twice ----------------------------------------------------------------------

TWICE = pytest.mark.promise("L", "a retried add without ids makes no duplicate")


@TWICE
def test_the_second_answer_equals_the_first_also_after_a_restart(place, tmp_path, cases):
    cases.add(3)
    key = {"Idempotency-Key": "a-key"}
    with serving(table=place) as client:
        first = client.post("/v1/items", json=ITEM, headers=key)
        client.post("/v1/items", json=ITEM)  # without a key: another item
        second = client.post("/v1/items", json=ITEM, headers=key)
    with serving(table=place) as client:
        third = client.post("/v1/items", json=ITEM, headers=key)
        other = client.post("/v1/items", json={**ITEM, "labels": [1]}, headers=key)
        n_items = client.get("/v1/stats").json()["index"]["n_items"]
    assert first.status_code == 200
    assert first.content == second.content == third.content
    assert first.json() == {"ids": [N_ITEMS], "n_items": N_ITEMS + 1}
    assert other.status_code == 422
    assert "used for another request" in other.json()["error"]
    assert n_items == N_ITEMS + 2


@TWICE
@pytest.mark.parametrize("key", ["", "x" * 201, "with space", "tab\t"])
def test_a_key_that_is_none_is_refused(place, key):
    with serving(table=place) as client:
        answer = client.post("/v1/items", json=ITEM, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert "dempotency-" in answer.json()["error"]


@TWICE
def test_the_same_request_many_times_at_once_is_made_once(place, cases):
    cases.add(40)
    with serving(table=place) as client:
        service = client.app.state.service
        answers = []

        def send(number):
            key = {"Idempotency-Key": f"key-{number % 4}"}
            answers.append((number % 4, client.post("/v1/items", json=ITEM, headers=key)))

        with service.durable._commit:  # so that they come into one group
            threads = [threading.Thread(target=send, args=(number,)) for number in range(40)]
            for thread in threads:
                thread.start()
            time.sleep(1.0)
        for thread in threads:
            thread.join()
        assert {answer.status_code for _, answer in answers} == {200}
        for key in range(4):
            assert len({answer.content for number, answer in answers if number == key}) == 1
        assert len({tuple(answer.json()["ids"]) for _, answer in answers}) == 4
        assert len(service.durable.index) == N_ITEMS + 4


@TWICE
def test_a_request_that_failed_may_be_sent_again(place):
    key = {"Idempotency-Key": "k"}
    with serving(table=place) as client:
        bad = client.post("/v1/items", json={**ITEM, "labels": ["unknown"]}, headers=key)
        assert bad.status_code == 422
        assert client.post("/v1/items", json=ITEM, headers=key).status_code == 200


@TWICE
def test_old_keys_are_dropped(place, monkeypatch):
    monkeypatch.setattr("hashcade.store.change_log.MAX_ANSWERS", 3)
    with serving(table=place) as client:
        for number in range(6):
            client.post("/v1/items", json=ITEM, headers={"Idempotency-Key": f"k{number}"})
        catalog = client.app.state.service.durable.state.catalog
        kept = catalog._query("SELECT key FROM answers ORDER BY seq")
        assert kept == [("k3",), ("k4",), ("k5",)]
        monkeypatch.setattr("hashcade.store.change_log.MAX_ANSWER_SECONDS", -10)
        client.post("/v1/items", json=ITEM, headers={"Idempotency-Key": "last"})
        assert client.app.state.service.durable.state.catalog._query("SELECT * FROM answers") == []


@TWICE
def test_the_client_sends_an_add_again_after_a_timeout(place, tmp_path):
    with process(place, log=tmp_path / "log") as service, Client(service.url) as client:
        real = client._connection.getresponse
        calls = []

        def lost():
            answer = real()
            calls.append(answer.status)
            if len(calls) <= 2:  # the item is added, and nobody hears of it
                raise TimeoutError
            return answer

        client._connection.getresponse = lost
        assert client.add(np.full((1, DIM), 0.5), bucket_ids=[[1]], labels=[0]) == [N_ITEMS]
        assert calls == [200, 200, 200]
        client._connection.getresponse = real
        assert client.stats()["index"]["n_items"] == N_ITEMS + 1


@TWICE
def test_an_add_survives_a_kill_between_its_two_tries(place, tmp_path):
    data, key = json.dumps(ITEM).encode(), {"Idempotency-Key": "killed"}
    service = Process(place, log=tmp_path / "log")
    with Client(service.url) as client:
        first = client.request("POST", "/v1/items", data, "application/json", key)
    service.stop(9)
    with process(place, log=tmp_path / "log") as service, Client(service.url) as client:
        second = client.request("POST", "/v1/items", data, "application/json", key)
        assert client.stats()["index"]["n_items"] == N_ITEMS + 1
    assert first == second


# -- the last id -----------------------------------------------------------------------------------


@pytest.mark.promise("L", "id 2^63-1 ends automatic ids")
def test_after_the_last_id_one_says_what_to_do(place):
    last = 2**63 - 1
    for _ in range(2):  # also after a restart
        with serving(table=place) as client:
            status = client.post("/v1/items", json={**ITEM, "ids": [last]}).status_code
            assert status in (200, 422)
            automatic = client.post("/v1/items", json=ITEM)
            assert automatic.status_code == 422
            assert "give ids" in automatic.json()["error"]
            given = client.post("/v1/items", json={**ITEM, "ids": [5000], "replace": True})
            assert given.status_code == 200


@pytest.mark.promise("L", "wrong tokens, from more addresses than are remembered")
def test_the_memory_for_addresses_is_bounded(place, monkeypatch):
    monkeypatch.setattr("hashcade.serve.middleware._ADDRESSES", 5)
    with serving(table=place, token=TOKEN) as client:
        middleware = client.app.middleware_stack
        while not isinstance(middleware, Middleware):
            middleware = middleware.app
        for number in range(20):
            client._transport.client = (f"192.0.2.{number}", 1000)
            answer = client.get("/v1/stats", headers={"Authorization": "Bearer x"})
            assert answer.status_code == 401
        assert list(middleware._guesses) == [f"192.0.2.{number}" for number in range(15, 20)]
