"""A model and an index made once, and two ways to run commands."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from installed_command import COMMAND, clean_environment
from worlds_of_cli import make_embeddings

from hashcade.cli._app import make_app
from hashcade.cli._errors import run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys):
    """Run a command in this process: exit code, stdout and stderr."""

    def call(*arguments):
        capsys.readouterr()
        code = run(make_app(), [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def installed(tmp_path):
    """Run the installed command in a clean environment, in an empty folder."""
    home, cwd = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    cwd.mkdir()

    def call(*arguments, code=0, **more):
        done = subprocess.run(
            [COMMAND, *map(str, arguments)], cwd=cwd, env=clean_environment(home, **more),
            capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    call.cwd, call.home = cwd, home
    return call


@pytest.fixture(scope="package")
def made(tmp_path_factory):
    """Embeddings with labels, a model of them, and an index."""
    place = tmp_path_factory.mktemp("made")
    X, y = make_embeddings()
    np.save(place / "vectors.npy", X)
    np.save(place / "vectors_labels.npy", y)
    app = make_app()
    options = ["--width", "4", "--steps", "60", "--quiet"]
    data, model, index = place / "vectors.npy", place / "model", place / "index"
    assert run(app, ["train", str(data), "-o", str(model), *options]) == 0
    assert run(app, ["build", str(model), str(data), "-o", str(index), "--quiet"]) == 0
    return SimpleNamespace(place=place, data=data, model=model, index=index, X=X, y=y)
