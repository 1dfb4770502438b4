"""What an index remembers of where it came from."""

import json
import shutil

import numpy as np
import pytest

from hashcade import CodeShape, CorruptIndexError, HashIndex, IncompatibleFormatError, StorageError
from hashcade.index import model_fingerprint, read_origin, write_origin


@pytest.fixture
def project(tmp_path):
    """A model, data, and an index that remembers both."""
    (tmp_path / "model").mkdir()
    config = {"model_sha256": "ab" * 32, "plan": {"shape": {"width": 4}}, "other": 1}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "data").mkdir()
    index = HashIndex.build([1, 2], np.eye(2), labels=[0, 1], shape=CodeShape(width=4, depth=1))
    index.save(tmp_path / "index")
    write_origin(
        tmp_path / "index",
        model=tmp_path / "model",
        data=tmp_path / "data",
        fingerprint=model_fingerprint(tmp_path / "model"),
        class_names=("ant", "bee"),
        names=("ant/1.png", "bee/ü.png"),
    )
    return tmp_path


def test_everything_comes_back(project):
    origin = read_origin(project / "index")
    assert origin.model == project / "model"
    assert origin.data == project / "data"
    assert origin.names == ("ant/1.png", "bee/ü.png")
    assert [origin.class_name(label) for label in (0, 1, 2, None)] == ["ant", "bee", 2, None]
    assert [origin.item_name(i) for i in (1, 2, -1)] == ["bee/ü.png", None, None]
    origin.check_model(project / "model")


def test_an_index_without_origin_says_nothing(tmp_path):
    assert read_origin(tmp_path) is None


def test_the_index_leaves_it_alone(project):
    index = HashIndex.load(project / "index")
    index.add([3], [[1.0, 1.0]], labels=[1])
    index.save(project / "index")
    index.verify()
    assert read_origin(project / "index").names == ("ant/1.png", "bee/ü.png")
    assert len(HashIndex.load(project / "index")) == 3


def test_another_model_is_refused(project):
    config = json.loads((project / "model" / "config.json").read_text())
    same = {**config, "other": 2, "hashcade_version": "9"}
    (project / "model" / "config.json").write_text(json.dumps(same))
    origin = read_origin(project / "index")
    origin.check_model(project / "model")  # what is not part of the function does not matter
    for change in ({"model_sha256": "cd" * 32}, {"plan": {"shape": {"width": 5}}}):
        (project / "model" / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(StorageError, match="was built with another model"):
            origin.check_model(project / "model")


def test_model_data_and_index_can_be_moved_together_or_the_index_alone(project, tmp_path_factory):
    together = tmp_path_factory.mktemp("moved") / "all"
    shutil.copytree(project, together)
    alone = tmp_path_factory.mktemp("alone") / "deep" / "index"
    shutil.copytree(project / "index", alone)
    assert read_origin(together / "index").model == together / "model"
    assert read_origin(alone).model == project / "model"
    shutil.rmtree(project / "model")
    assert read_origin(together / "index").data == together / "data"
    assert not read_origin(alone).model.exists()


def test_damage_is_an_error(project):
    names = project / "index" / "names.json"
    names.write_bytes(names.read_bytes().replace(b"ant", b"bat"))
    with pytest.raises(CorruptIndexError, match="checksum"):
        _ = read_origin(project / "index").names
    path = project / "index" / "origin.json"
    whole = path.read_text()
    path.write_text(whole.replace('"version": 1', '"version": 2'))
    with pytest.raises(IncompatibleFormatError, match="version 2"):
        read_origin(project / "index")
    path.write_text(whole[:-10])
    with pytest.raises(CorruptIndexError, match=r"origin\.json is damaged"):
        read_origin(project / "index")
    (project / "model" / "config.json").write_text("[]")
    with pytest.raises(CorruptIndexError):
        model_fingerprint(project / "model")
    with pytest.raises(StorageError, match="is no hashcade model"):
        model_fingerprint(project)
