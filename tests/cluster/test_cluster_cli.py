"""``hashcade cluster`` from publishing to retiring."""

import json

import numpy as np
import pytest

from hashcade.cli.app import make_app
from hashcade.cli.app import run as run_app
from tests.cluster.factories import Kind, saved_table


@pytest.fixture
def run(capsys):
    def run(*arguments, code=0):
        assert run_app(make_app(), ["cluster", *map(str, arguments)]) == code
        output = capsys.readouterr()
        return json.loads(output.out) if "--json" in arguments else output.out + output.err

    return run


def test_from_publishing_to_retiring(plain_redis, tmp_path, run):
    place = (plain_redis.url, "--name", "t")
    names = []
    for number in range(3):
        path = tmp_path / str(number)
        saved_table(path, Kind(), np.random.default_rng(number))
        activate = ["--first-pass", "int8"] if number == 1 else ["--activate"]
        text = run("publish", path, *place, *activate)
        assert ("not active" in text) == (number == 1)
        assert "on average" in text
        names.append(text.split()[1].rstrip(","))
    listed = run("generations", *place, "--json")["generations"]
    assert {row["generation"]: row["use"] for row in listed} == {
        names[0]: "previous", names[1]: "", names[2]: "current"
    }  # fmt: skip
    assert names[2] in run("generations", *place)
    assert run("rollback", *place, "--json") == {"generation": names[0]}
    assert run("activate", plain_redis.url, names[2], "--name", "t", "--json")
    assert run("retire", *place, "--json") == {"retired": [names[1]]}
    assert "is the current one" in run("retire", *place, "--generation", names[2], code=2)
    assert "everything is there" in run("verify", *place)
    with plain_redis.client() as client:
        client.unlink(next(iter(client.scan_iter(f"*{names[2]}:b"))))
    text = run("verify", *place, code=2)
    assert "is missing" in text
    assert "hashcade cluster repair" in text
    assert run("repair", tmp_path / "2", *place, "--json") == {"repaired": 1}
    assert run("verify", *place, "--json") == {"problems": []}


def test_large_blocks_are_warned_of(plain_redis, tmp_path, run):
    saved_table(tmp_path / "t", Kind(n=3000, dim=64, width=2, depth=1), np.random.default_rng(0))
    assert "train with more buckets" in run(
        "publish", tmp_path / "t", plain_redis.url, "--name", "t"
    )


def test_passwords_are_never_shown(plain_redis, tmp_path, run):
    with plain_redis.client() as client:
        client.config_set("requirepass", "secret words")
    saved_table(tmp_path / "t", Kind(), np.random.default_rng(0))
    command, password = ("publish", tmp_path / "t", plain_redis.url, "--name", "t"), tmp_path / "p"
    assert "HASHCADE_REDIS_PASSWORD" in run(*command, code=2)
    password.write_text("secret words\n")
    assert "secret" not in run(*command, "--password-file", password)
    password.write_text("wrong secret")
    assert "secret" not in run(*command, "--password-file", password, code=2)
    url = f"redis://:secret@{plain_redis.address}"
    assert "secret" not in run("verify", url, "--name", "t", code=2)
