"""Short searches run in the event loop; whatever may take long, or reads a file, in a thread."""

import threading
import time

import numpy as np
import pytest

from hashcade import HashTable
from hashcade.serve import responses
from tests.serve.factories import DIM, SHAPE, make_table, serving

ONE = {"vectors": [[0.0] * DIM], "bucket_ids": [[1]]}


@pytest.fixture
def searched_in(monkeypatch):
    """Names of the threads in which tables are searched, one for each search."""
    threads, search = [], HashTable.search

    def noting(self, *args, **options):
        threads.append(threading.current_thread().name)
        return search(self, *args, **options)

    monkeypatch.setattr(HashTable, "search", noting)
    return threads


def in_pool(threads):
    return [name.startswith("hashcade-") for name in threads]


def test_a_short_search_runs_in_the_event_loop(client, searched_in):
    answer = client.post("/v1/search", json=ONE)
    assert answer.status_code == 200
    assert in_pool(searched_in) == [False]


@pytest.mark.parametrize(
    "more",
    [
        {"where": {"label": 1}},
        {"filter_ids": [1, 2, 3]},
        {"n_neighbors": 1000, "vectors": [[0.0] * DIM] * 3, "bucket_ids": [[1]] * 3},
        {"bucket_ids": None, "scores": np.zeros((1, SHAPE.depth, SHAPE.width)).tolist()},
    ],
)
def test_filters_many_results_and_scores_are_for_threads(client, searched_in, more):
    answer = client.post("/v1/search", json={**ONE, **more})
    assert answer.status_code == 200
    assert in_pool(searched_in) == [True]


def test_many_candidates_are_for_threads(client, searched_in, monkeypatch):
    fullest = client.app.state.service.durable.index.most_candidates(2)
    work = (fullest + 10) * DIM  # the query's bucket, one to fill up with, and the results
    for limit, is_in_pool in ((work, False), (work - 1, True)):
        searched_in.clear()
        monkeypatch.setattr("hashcade.serve.routes_search._SHORT_NUMBERS", limit)
        client.post("/v1/search", json=ONE)
        assert in_pool(searched_in) == [is_in_pool]


def test_a_table_with_payload_is_searched_in_threads(tmp_path, searched_in):
    place = make_table(tmp_path / "table")
    with serving(table=place) as client:
        added = {**ONE, "payload": [{"year": 2000}]}
        assert client.post("/v1/items", json=added).status_code == 200
        client.post("/v1/search", json=ONE)
    assert in_pool(searched_in) == [True]


def test_after_a_search_that_took_too_long_threads_are_used_for_some_seconds(
    client, searched_in, monkeypatch
):
    service = client.app.state.service
    monkeypatch.setattr(responses, "_STALL_SECONDS", -1.0)  # every search takes too long
    for _ in range(3):
        assert client.post("/v1/search", json=ONE).status_code == 200
    assert in_pool(searched_in) == [False, True, True]
    monkeypatch.setattr(responses, "_STALL_SECONDS", 60.0)
    service.short_work_after = time.monotonic()
    client.post("/v1/search", json=ONE)
    assert in_pool(searched_in)[-1] is False


def test_errors_of_short_searches_are_answers(client, searched_in):
    wrong = {**ONE, "bucket_ids": [[SHAPE.n_buckets]]}
    answer = client.post("/v1/search", json=wrong)
    assert answer.status_code == 422
    assert "bucket" in answer.json()["error"]
    assert in_pool(searched_in) == [False]
