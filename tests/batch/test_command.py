"""``hashcade build`` from several files, patterns and directories."""

import json

import pytest

from tests.batch.factories import digest


def test_files_patterns_and_directories_give_one_table(tmp_path, model, shards, command):
    options = ("--payload", "price,text", "--workers", 1, "--memory", "20MB", "--json")
    ways = {
        "files": sorted(shards.iterdir()),
        "pattern": [shards / "*.parquet"],
        "directory": [shards],
    }
    for name, data in ways.items():
        done = command("build", model, *data, "-o", tmp_path / name, *options)
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["n_items"] == 2048 + 1024 + 3072 + 1 + 700
    assert digest(tmp_path / "files") == digest(tmp_path / "pattern")
    assert digest(tmp_path / "files") == digest(tmp_path / "directory")
    done = command("verify", tmp_path / "files")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--memory", "much"], "--memory=much must be a number of bytes such as 500MB or 4GB"),
        (["--memory", "1MB"], "memory=1000000 must be >= 16777216"),
        (["--split", "train"], "--split is not for shards of Parquet"),
        (["--labels", "kind"], "looked for kind"),
        (["--payload", "colour"], "looked for colour"),
    ],
)
def test_mistakes(tmp_path, model, shards, command, more, message):
    done = command("build", model, shards, "-o", tmp_path / "a", "--workers", 1, *more)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not (tmp_path / "a").exists()


def test_a_table_that_exists(tmp_path, model, shards, command):
    build = ("build", model, shards, "-o", tmp_path / "a", "--workers", 1)
    assert command(*build).code == 0
    done = command(*build)
    assert done.code == 2
    assert "exists" in done.err
    assert "--force" in done.err
    assert command(*build, "--force").code == 0
