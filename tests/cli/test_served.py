"""Commands on an index that a service has open: nothing that was acknowledged is lost."""

import os
import shutil
import threading

import numpy as np
import pytest
from starlette.testclient import TestClient

from hashcade import HashIndex
from hashcade.serve import ServeSettings, create_app
from hashcade.serve._journal import waiting_changes
from hashcade.serve._live import LiveIndex


@pytest.fixture
def index(made, here):
    return shutil.copytree(made.index, here / "index")


def add_one(live, item):
    return live.add([0], np.ones((1, live.index.dim)), ids=[item], labels=[0]).result()


@pytest.mark.parametrize("by", ["path", "link"])
def test_force_does_not_replace_an_index_that_is_served(command, made, here, index, by):
    (here / "link").symlink_to("index")
    given = index if by == "path" else here / "link"
    build = ("build", made.model, made.data, "-o", given, "--force", "--quiet")
    live = LiveIndex(given)
    add_one(live, 9000)
    told = command(*build)
    assert told.code == 2
    assert "held by another writer or by a service; try again when it is done" in told.err
    assert told.err.count("\n") == 1
    add_one(live, 9001)
    live.close()
    assert sorted(os.listdir(here)) == ["index", "link"]
    assert all(item in HashIndex.load(index) for item in (9000, 9001))
    assert command(*build).code == 0  # nobody serves it any more
    assert 9000 not in HashIndex.load(given)
    assert sorted(os.listdir(here)) == ["index", "link"]
    assert (here / "link").is_symlink()


def test_a_service_that_began_while_the_index_was_built_is_seen(command, made, index, monkeypatch):
    from hashcade.cli import _build

    served = []

    def begin(*arguments, **more):
        served.append(LiveIndex(index))
        add_one(served[0], 9000)
        return real(*arguments, **more)

    real = _build.encode_data
    monkeypatch.setattr(_build, "encode_data", begin)
    told = command("build", made.model, made.data, "-o", index, "--force", "--quiet")
    assert told.code == 2
    assert "by a service" in told.err
    served[0].close()
    assert 9000 in HashIndex.load(index)


def test_a_new_index_is_brought_into_a_service_by_a_link(command, made, here, index):
    """As docs/service.md says under "A new index"."""
    link = here / "serving"
    link.symlink_to(index)
    app = create_app(ServeSettings(index=link, deadline=300.0))
    with TestClient(app, base_url="http://localhost") as client:
        n_items = len(made.X)
        assert client.delete("/v1/items/0").status_code == 200
        half = here / "half.npy"
        np.save(half, made.X[: n_items // 2])
        assert command("build", made.model, half, "-o", here / "index-2", "--quiet").code == 0
        link.unlink()
        link.symlink_to("index-2")
        assert client.get("/v1/items/1").status_code == 200
        answer = client.post("/v1/reload").json()
        assert answer == {"done": True, "n_items": n_items // 2}
        assert client.delete("/v1/items/1").status_code == 200
        # The old directory is free again, the new one is not.
        build = ("build", made.model, half, "--force", "--quiet", "-o")
        assert command(*build, here / "index-2").code == 2
        assert len(HashIndex.load(index)) == n_items - 1
        assert command(*build, index).code == 0
    assert len(HashIndex.load(here / "index-2")) == n_items // 2 - 1


def test_changes_that_wait_are_told_and_no_damage(command, made, index):
    live = LiveIndex(index)
    for verb in ("verify", "inspect"):
        assert command(verb, index).err == ""
    add_one(live, 9000)
    add_one(live, 9001)
    told = f"hashcade: 2 changes wait in the journal of {index}, not seen here\n"
    for arguments in (
        ("verify", index),
        ("verify", index, "--json"),
        ("inspect", index),
        ("inspect", index, "--json"),
        ("search", index, made.data, "--quiet", "-n", "1"),
    ):
        done = command(*arguments)
        assert done.code == 0
        assert done.err == told
        assert "journal" not in done.out
    live.close()
    assert command("verify", index).err == ""


@pytest.mark.parametrize("what", ["damaged", "of another index"])
def test_verify_reads_the_journal(command, made, index, what):
    live = LiveIndex(index)
    for item in (9000, 9001):
        add_one(live, item)
    stopped = shutil.copytree(index, index.with_name("stopped"))  # as after kill -9
    live.close()
    if what == "damaged":
        (log,) = (stopped / "journal").glob("*.log")
        data = bytearray(log.read_bytes())
        data[150] ^= 1
        log.write_bytes(data)
        expected = "its checksum is wrong"
    else:
        HashIndex.load(made.index).save(stopped)
        expected = "2 changes to an index that is not there any more"
    done = command("verify", stopped)
    assert done.code == 2
    assert expected in done.out
    assert done.out.count("\n") == 1
    done = command("inspect", stopped)  # reads the index alone
    assert done.code == 0
    assert expected in done.err


def test_a_journal_is_read_while_the_service_saves(index):
    """Files go and the generation changes between the steps of a reader."""
    live = LiveIndex(index)
    stop, problems, n_read = threading.Event(), [], [0]

    def read():
        while not stop.is_set():
            try:
                waiting_changes(index)
                n_read[0] += 1
            except Exception as error:
                problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for item in range(9000, 9060):
        add_one(live, item)
        live.fold()
    stop.set()
    thread.join()
    live.close()
    assert problems == []
    assert n_read[0] > 10
