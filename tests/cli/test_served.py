"""Commands on a table that a service has open: nothing that was acknowledged is lost."""

import os
import shutil
import sqlite3

import numpy as np
import pytest
from starlette.testclient import TestClient

from hashcade import HashTable
from hashcade.serve import ServeSettings, create_app
from hashcade.store import DurableIndex, NewItems


@pytest.fixture
def table(sample, cwd):
    return shutil.copytree(sample.table, cwd / "table")


def add_one(durable, item):
    vector = np.ones((1, durable.index.dim))
    return durable.add(NewItems([0], vector, ids=[item], labels=["kind 0"])).result()


@pytest.mark.parametrize("by", ["path", "link"])
def test_force_does_not_replace_a_table_that_is_served(command, sample, cwd, table, by):
    (cwd / "link").symlink_to("table")
    given = table if by == "path" else cwd / "link"
    build = ("build", sample.model, sample.data, "-o", given, "--force", "--quiet")
    durable = DurableIndex(given)
    add_one(durable, 9000)
    done = command(*build)
    assert done.code == 2
    assert "is held by another writer or by a service; try again when it is done" in done.err
    assert done.err.count("\n") == 1
    add_one(durable, 9001)
    durable.close()
    assert sorted(os.listdir(cwd)) == ["link", "table"]
    assert all(item in HashTable.load(table) for item in (9000, 9001))
    assert command(*build).code == 0  # nobody serves it any more
    assert 9000 not in HashTable.load(given)
    assert sorted(os.listdir(cwd)) == ["link", "table"]
    assert (cwd / "link").is_symlink()


def test_a_service_that_began_while_the_table_was_built_is_seen(
    command, sample, table, monkeypatch
):
    from hashcade.cli import build

    services = []
    read_and_encode = build.read_and_encode

    def begin(*arguments, **more):
        services.append(DurableIndex(table))
        add_one(services[0], 9000)
        return read_and_encode(*arguments, **more)

    monkeypatch.setattr(build, "read_and_encode", begin)
    done = command("build", sample.model, sample.data, "-o", table, "--force", "--quiet")
    assert done.code == 2
    assert "by a service" in done.err
    services[0].close()
    assert 9000 in HashTable.load(table)


@pytest.mark.parametrize("verb", ["add", "remove"])
def test_a_table_that_is_served_is_changed_through_the_service(command, sample, table, cwd, verb):
    np.save("more.npy", sample.X[:2])
    arguments = ("add", table, "more.npy", "--quiet") if verb == "add" else ("remove", table, 3)
    durable = DurableIndex(table)
    add_one(durable, 9000)
    done = command(*arguments)
    assert done.code == 2
    assert "by a service" in done.err
    durable.close()
    assert command(*arguments).code == 0
    changed = HashTable.load(table)
    assert 9000 in changed
    assert len(changed) == (303 if verb == "add" else 300)


def test_a_new_table_is_brought_into_a_service_by_a_link(command, sample, cwd, table):
    """As docs/service.md says."""
    link = cwd / "serving"
    link.symlink_to(table)
    app = create_app(ServeSettings(table=link, deadline=300.0))
    with TestClient(app, base_url="http://localhost") as client:
        n_items = len(sample.X)
        assert client.delete("/v1/items/0").status_code == 200
        half = cwd / "half.npy"
        np.save(half, sample.X[: n_items // 2])
        assert command("build", sample.model, half, "-o", cwd / "table-2", "--quiet").code == 0
        link.unlink()
        link.symlink_to("table-2")
        assert client.get("/v1/items/1").status_code == 200
        answer = client.post("/v1/reload").json()
        assert answer == {"done": True, "n_items": n_items // 2}
        assert client.delete("/v1/items/1").status_code == 200
        # The old directory is free again, the new one is not.
        build = ("build", sample.model, half, "--force", "--quiet", "-o")
        assert command(*build, cwd / "table-2").code == 2
        assert len(HashTable.load(table)) == n_items - 1
        assert command(*build, table).code == 0
    assert len(HashTable.load(cwd / "table-2")) == n_items // 2 - 1


def test_acknowledged_changes_are_seen_by_every_command(command, sample, table):
    durable = DurableIndex(table)
    add_one(durable, 9000)
    add_one(durable, 9001)
    stopped = shutil.copytree(table, table.with_name("stopped"))  # as after kill -9
    durable.close()
    for path in (table, stopped):
        for arguments in (
            ("verify", path),
            ("inspect", path),
            ("search", path, sample.data, "--quiet", "-n", "1", "--show", "300"),
        ):
            done = command(*arguments)
            assert done.code == 0, done.err
            assert done.err == ""
        assert "302 items" in command("inspect", path).out
    assert command("remove", stopped, 9001).code == 0
    assert 9000 in HashTable.load(stopped)
    assert 9001 not in HashTable.load(stopped)


def test_verify_reads_the_changes_that_are_not_saved(command, table):
    durable = DurableIndex(table)
    for item in (9000, 9001):
        add_one(durable, item)
    stopped = shutil.copytree(table, table.with_name("stopped"))  # as after kill -9
    durable.close()
    db = sqlite3.connect(stopped / "items.db")
    db.execute("UPDATE changes SET body = zeroblob(100)")
    db.commit()
    db.close()
    done = command("verify", stopped)
    assert done.code == 2
    assert "checksum is wrong" in done.out
