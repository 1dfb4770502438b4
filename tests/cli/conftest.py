"""A model and tables made once, and two ways to run commands."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from cli_factories import COMMAND, clean_environment, make_embeddings, make_photos

from hashcade.cli.app import make_app, run


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """Embeddings with labels, a model of them, and a table."""
    folder = tmp_path_factory.mktemp("sample")
    X, y = make_embeddings()
    data, model, table = folder / "vectors.npy", folder / "model", folder / "table"
    np.save(data, X)
    np.save(folder / "vectors_labels.npy", y)
    options = ["--width", "4", "--steps", "60", "--quiet"]
    assert run(make_app(), ["train", str(data), "-o", str(model), *options]) == 0
    assert run(make_app(), ["build", str(model), str(data), "-o", str(table), "--quiet"]) == 0
    return SimpleNamespace(folder=folder, data=data, model=model, table=table, X=X, y=y)


@pytest.fixture(scope="session")
def photo_sample(tmp_path_factory):
    """Images with labels and names, one of them broken, and a table of the others."""
    folder = tmp_path_factory.mktemp("photos")
    photos, table = folder / "photos", folder / "table"
    make_photos(photos, per_class=6)
    (photos / "leaf" / "01.png").write_text("not an image")
    short = ["--from-scratch", "--steps", "2", "--base-steps", "2", "--image-size", "16x24"]
    short.append("--skip-bad")
    assert run(make_app(), ["fit", str(photos), "-o", str(table), *short, "--quiet"]) == 0
    return SimpleNamespace(folder=folder, photos=photos, table=table)
