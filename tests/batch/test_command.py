"""``hashcade build`` from several files, patterns and directories."""

import json

import pytest

from hashcade.cli.app import make_app, run
from tests.batch.factories import digest


@pytest.fixture
def command(capsys):
    def call(*arguments):
        capsys.readouterr()
        code = run(make_app(), [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_files_patterns_and_directories_give_one_table(tmp_path, model, shards, command):
    options = ("--payload", "price,text", "--workers", 1, "--memory", "20MB", "--json")
    ways = {
        "files": sorted(shards.iterdir()),
        "pattern": [shards / "*.parquet"],
        "directory": [shards],
    }
    for name, data in ways.items():
        code, out, err = command("build", model, *data, "-o", tmp_path / name, *options)
        assert (code, err) == (0, "")
        assert json.loads(out)["n_items"] == 2048 + 1024 + 3072 + 1 + 700
    assert digest(tmp_path / "files") == digest(tmp_path / "pattern")
    assert digest(tmp_path / "files") == digest(tmp_path / "directory")
    code, out, err = command("verify", tmp_path / "files")
    assert code == 0, err


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
    code, out, err = command("build", model, shards, "-o", tmp_path / "a", "--workers", 1, *more)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "a").exists()


def test_a_table_that_exists(tmp_path, model, shards, command):
    build = ("build", model, shards, "-o", tmp_path / "a", "--workers", 1)
    assert command(*build)[0] == 0
    code, _, err = command(*build)
    assert code == 2
    assert "exists" in err
    assert "--force" in err
    assert command(*build, "--force")[0] == 0
