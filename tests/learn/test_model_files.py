"""Stored models: what can be said without loading them, and a file of this format for good."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hashcade import CorruptIndexError, Hasher, StorageError
from hashcade.learn import ResolvedConfig, model_fingerprint, read_config
from tests.learn.factories import QUICK, blobs

GOLDEN = Path(__file__).parent / "golden" / "model"


def test_a_model_of_this_format_still_gives_the_same_buckets():
    """Made by ``python -m tests.learn.test_model_files``; a new format needs a new version."""
    hasher = Hasher.load(GOLDEN)
    expected = json.loads((GOLDEN.parent / "expected.json").read_text())
    X, _ = blobs()
    assert hasher.transform(X).ravel().tolist() == expected["bucket_ids"]
    np.testing.assert_allclose(hasher.scores(X[:3]).ravel(), expected["scores"], rtol=1e-4)
    assert hasher.classes_.tolist() == expected["classes"]
    assert model_fingerprint(GOLDEN) == expected["fingerprint"]
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 10_000


def test_a_config_writes_and_reads_itself():
    config = Hasher(**QUICK).fit(*blobs()).config_
    assert ResolvedConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert read_config(GOLDEN)["resolved"] == Hasher.load(GOLDEN).config_.to_json()


def test_the_fingerprint_tells_models_apart(tmp_path):
    X, y = blobs()
    prints = set()
    for name, settings in {"a": {}, "same": {}, "seed": {"random_state": 1}}.items():
        Hasher(**{**QUICK, **settings}).fit(X, y).save(tmp_path / name)
        prints.add(model_fingerprint(tmp_path / name))
    assert len(prints) == 2
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["resolved"]["unit_length"] = True  # the same weights, used in another way
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    assert model_fingerprint(tmp_path / "a") not in prints
    del config["model_sha256"]
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptIndexError, match="is damaged: 'model_sha256' is missing"):
        model_fingerprint(tmp_path / "a")
    with pytest.raises(StorageError, match="nowhere does not exist"):
        model_fingerprint(tmp_path / "nowhere")


def test_a_stored_model_is_described_and_used_without_torch():
    code = f"""
import sys
sys.modules["torch"] = None  # as if it was not installed
from hashcade.learn import Hasher, model_fingerprint, read_config
print(model_fingerprint({str(GOLDEN)!r}), read_config({str(GOLDEN)!r})["resolved"]["item_shape"])
hasher = Hasher.load({str(GOLDEN)!r})
print(hasher.transform([[0.0] * 8]).tolist())
for learn in (hasher.fit, hasher.adapt, hasher.fit_clusters):
    try:
        learn([[0.0] * 8] * 2, [0, 1]) if learn == hasher.fit else learn([[0.0] * 8] * 2)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, *others = done.stdout.splitlines()
    assert first == f"{model_fingerprint(GOLDEN)} [8]"
    assert second == str(Hasher.load(GOLDEN).transform([[0.0] * 8]).tolist())
    assert len(others) == 3
    for line in others:
        assert line.endswith("not installed; run: pip install 'hashcade[train]'")


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b'{"kind": "hashcade model"}', b"\xff\x00"])
def test_a_hostile_config_is_an_error_that_is_ours(tmp_path, content):
    Hasher.load(GOLDEN).save(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_bytes(content)
    for read in (read_config, model_fingerprint, Hasher.load):
        with pytest.raises(StorageError):
            read(tmp_path / "model")


def load_error(path):
    """The message of the error that a stored model gives, if any; others are not expected."""
    try:
        Hasher.load(path)
    except StorageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("section", ["whole", "resolved"])
def test_a_config_with_missing_or_wrong_values_is_an_error_that_is_ours(tmp_path, section):
    path = tmp_path / "model"
    Hasher.load(GOLDEN).save(path)
    config = json.loads((path / "config.json").read_text())
    fields = config if section == "whole" else config["resolved"]
    for name in fields.keys() - {"hashcade_version", "tuned", "codes_of"}:  # say nothing about it
        for change in ({}, {name: None}, {name: "nonsense"}, {name: [1]}):
            if fields[name] in change.values():
                continue
            changed = {key: value for key, value in fields.items() if key != name} | change
            if section == "resolved":
                changed = {**config, "resolved": changed}
            (path / "config.json").write_text(json.dumps(changed))
            message = load_error(path)
            assert message or change, f"{name} was not missed"
            assert "\n" not in message


def make_golden():
    X, y = blobs()
    hasher = Hasher(width=4, hidden_size=4, embedding_size=6, steps=60, verbose=False).fit(X, y)
    hasher.save(GOLDEN)
    expected = {
        "bucket_ids": hasher.transform(X).ravel().tolist(),
        "scores": hasher.scores(X[:3]).ravel().tolist(),
        "classes": hasher.classes_.tolist(),
        "fingerprint": model_fingerprint(GOLDEN),
    }
    (GOLDEN.parent / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    make_golden()
