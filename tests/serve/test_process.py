"""The service as a process: how it starts, stops, is killed, and what is there afterwards."""

import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

from hashcade import HashTable
from hashcade.serve import Client, ServiceError
from tests.serve.factories import DIM, N_ITEMS, TOKEN, Process, command, load_index, process


def add_until_it_dies(url, seed, acknowledged, token=None):
    """Add and remove items one after the other; note what was acknowledged."""
    client = Client(url, token=token, timeout=60)
    rng = np.random.default_rng(seed)
    number = 0
    try:
        while True:
            item = 1_000_000 * (seed + 1) + number
            vector = rng.normal(size=(1, DIM)).astype(np.float32)
            client.add(vector, bucket_ids=[[int(rng.integers(0, 16))]], ids=[item], labels=[0])
            acknowledged[item] = vector[0]
            if number % 5 == 4:
                client.remove([item - 2])
                acknowledged[item - 2] = None
            number += 1
    except (OSError, ServiceError):
        pass  # the last change may or may not have been made: nobody was told
    except Exception as error:
        if type(error).__module__ != "http.client":
            raise
    finally:
        client.close()


def missing(index, acknowledged):
    """Acknowledged changes that are not there; the very last one of each client may differ."""
    gone = []
    for item, vector in acknowledged.items():
        there = item in index
        if vector is None:
            if there:
                gone.append(item)
        elif not there or not np.array_equal(index.item(item)["vector"], vector):
            gone.append(item)
    return gone


def assert_nothing_acknowledged_is_lost(place, log, n_rounds, **settings):
    acknowledged = {}
    for round_number in range(n_rounds):
        service = Process(place, log=log, **settings)
        notes = [{}, {}]
        threads = [
            threading.Thread(
                target=add_until_it_dies, args=(service.url, 2 * round_number + k, notes[k])
            )
            for k in range(2)
        ]
        for thread in threads:
            thread.start()
        wanted = 3 + round_number % 7
        while min(len(note) for note in notes) < wanted:
            time.sleep(0.01)
        service.stop(signal.SIGKILL)
        for thread in threads:
            thread.join()
        for note in notes:
            # A removal that was sent last may have been made without being acknowledged.
            doubtful = max(note) - 2
            if (max(note) % 1_000_000) % 5 == 4 and note[doubtful] is not None:
                del note[doubtful]
            acknowledged.update(note)
    service = Process(place, log=log)
    assert service.stop() == 0
    index = load_index(place)
    index.verify()
    assert len(acknowledged) > n_rounds
    assert missing(index, acknowledged) == []


def test_acknowledged_changes_survive_kill_9(place, tmp_path):
    assert_nothing_acknowledged_is_lost(place, tmp_path / "log", 2, fold_seconds=0.2)


@pytest.mark.slow
def test_acknowledged_changes_survive_kill_9_many_times(place, tmp_path):
    assert_nothing_acknowledged_is_lost(place, tmp_path / "log", 15, fold_seconds=0.1)


def test_a_graceful_stop_saves_what_was_acknowledged(place, tmp_path):
    service = Process(place, log=tmp_path / "log")
    with Client(service.url) as client:
        added = client.add(np.ones((3, DIM)), bucket_ids=[[1], [2], [3]], labels=[0, 0, 1])
        client.remove([0])
    assert service.stop(signal.SIGTERM) == 0
    assert "every change is saved" in service.log.read_text()
    index = load_index(place)
    index.verify()
    assert all(item in index for item in added)
    assert 0 not in index
    assert len(index) == N_ITEMS + 2


def test_searches_go_on_while_a_new_index_is_read(place, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(place)
    with process(link, log=tmp_path / "log") as service:
        statuses, stop = [], threading.Event()

        def search():
            with Client(service.url) as client:
                while not stop.is_set():
                    found = client.search(np.zeros((4, DIM)), bucket_ids=[[1]] * 4)
                    statuses.append(found.ids.shape)

        thread = threading.Thread(target=search)
        thread.start()
        for round_number in range(5):
            other = HashTable.load(link)
            other.save(tmp_path / f"table-{round_number}")  # the one that is served is held
            other.remove([10 + round_number])
            other.save(tmp_path / f"table-{round_number}")
            link.unlink()
            link.symlink_to(tmp_path / f"table-{round_number}")
            if round_number % 2:
                with Client(service.url) as client:
                    client.json("POST", "/v1/reload")
            else:
                service.process.send_signal(signal.SIGHUP)
            with Client(service.url) as client:
                while client.stats()["index"]["n_items"] != N_ITEMS - 1 - round_number:
                    time.sleep(0.01)
        stop.set()
        thread.join()
        assert len(statuses) > 5
        assert set(statuses) == {(4, 10)}


def test_the_client_searches_as_the_library_does(place, tmp_path):
    index = load_index(place)
    vectors = np.random.default_rng(1).normal(size=(3, DIM)).astype(np.float32)
    scores = np.random.default_rng(2).normal(size=(3, 2, 4)).astype(np.float32)
    with process(place, token=TOKEN, log=tmp_path / "log") as service:
        with Client(service.url, token=TOKEN) as client:
            told = client.search(vectors, scores=scores, n_neighbors=4, n_probe=3)
            with pytest.raises(ServiceError, match=r"422: .*dim 7|bytes") as caught:
                client.search(vectors[:, :7], bucket_ids=[[1]] * 3)
            assert caught.value.status == 422
        with Client(service.url) as stranger, pytest.raises(ServiceError, match="401"):
            stranger.stats()
    expected = index.search(vectors, scores=scores, n_neighbors=4, n_probe=3)
    assert np.array_equal(told.ids, expected.ids)
    assert np.array_equal(told.distances, expected.distances)
    assert TOKEN not in service.log.read_text()


def refused(place, **settings):
    done = subprocess.run(
        command(place, **settings), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr.strip()


def test_what_keeps_it_from_starting_is_told_in_one_line(place, tmp_path):
    told = refused(place, host="0.0.0.0")
    assert told.startswith("error: host=0.0.0.0 can be reached from other machines")
    assert "\n" not in told
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = refused(place, port=port)
    assert f"error: cannot listen on 127.0.0.1 port {port}" in told
    assert "choose another with --port" in told
    assert "is not a hashcade table" in refused(tmp_path / "nothing")
    assert "16" in refused(place, token="short")


def test_an_answer_does_not_wait_for_the_ack_of_its_head(place, tmp_path):
    """40 ms, if the system collects small packets."""
    with process(place, log=tmp_path / "log") as service, Client(service.url) as client:
        seconds = []
        for _ in range(50):
            start = time.perf_counter()
            client.json("GET", "/health")
            seconds.append(time.perf_counter() - start)
        assert sorted(seconds)[5] < 0.03
