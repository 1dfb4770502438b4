"""Several hashers on one base: its vectors stay as they are, and only the table is learned."""

import numpy as np
import pytest

from hashcade import Hasher
from hashcade.errors import NotFittedError

SMALL = {
    "width": 4, "steps": 10, "base_steps": 10, "classes_per_batch": 5, "augment": "none",
    "assignment": "codebook",
}  # fmt: skip


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    return rng.normal(size=(6, 8))[labels] + 0.3 * rng.normal(size=(120, 8)), labels


@pytest.fixture(scope="module")
def images(items):
    X, y = items
    grey = np.clip(128 + 60 * X, 0, 255).astype(np.uint8)
    return np.broadcast_to(grey[:, :, None, None], (120, 8, 8, 3)).copy(), y


@pytest.mark.parametrize(
    ("backbone", "assignment"),
    [(None, "codebook"), ("mlp", "codebook"), ("mlp", "prototype"), ("stride", "prototype")],
)
def test_vectors_are_those_of_the_base(items, images, backbone, assignment):
    X, y = images if backbone == "stride" else items
    settings = {**SMALL, "embedding_size": 5, "backbone": backbone, "assignment": assignment}
    base = Hasher(**settings).fit(X, y)
    before = base.embed(X)
    other = Hasher(**{**settings, "depth": 1, "width": 8, "random_state": 3})
    other.fit(X, y, base=base)
    np.testing.assert_array_equal(other.embed(X), before)
    np.testing.assert_array_equal(base.embed(X), before)
    assert other.shape_.depth == 1
    assert not np.array_equal(other.scores(X)[:, 0, :4], base.scores(X)[:, 0])


def test_with_its_own_base_nothing_changes(items):
    X, y = items
    whole = Hasher(**SMALL, embedding_size=5).fit(X, y)
    again = Hasher(**SMALL, embedding_size=5).fit(X, y, base=whole)
    np.testing.assert_array_equal(again.scores(X), whole.scores(X))


def test_a_run_goes_on_and_does_not_mix_bases(items, tmp_path, monkeypatch):
    from hashcade.errors import ConfigError

    X, y = items
    base = Hasher(**SMALL, embedding_size=5).fit(X, y)
    other_base = Hasher(**SMALL, embedding_size=5, random_state=1).fit(X, y)
    expected = Hasher(**SMALL, embedding_size=5, random_state=2).fit(X, y, base=base).scores(X)
    hasher = Hasher(**SMALL, embedding_size=5, random_state=2, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(hasher.fit(X, y, base=base).scores(X), expected)
    np.testing.assert_array_equal(hasher.fit(X, y, base=base).scores(X), expected)
    with pytest.raises(ConfigError, match="holds a run with base="):
        hasher.fit(X, y, base=other_base)
    with pytest.raises(ConfigError, match="holds a run with base="):
        hasher.fit(X, y)  # without one is another run too


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 4}, "base has hidden_size=6, this hasher has 4"),
        ({"embedding_size": 4}, "base has embedding_size=5, this hasher has 4"),
        ({"loss": "triplet"}, "base has unit_length=False, this hasher has True"),
    ],
)
def test_another_kind_of_base_is_refused(items, change, message):
    X, y = items
    mlp = {"backbone": "mlp", "hidden_size": 6, "embedding_size": 5}
    base = Hasher(**SMALL, **mlp).fit(X, y)
    with pytest.raises(ValueError, match=message):
        Hasher(**{**SMALL, **mlp, **change}).fit(X, y, base=base)


def test_a_base_must_be_fitted(items):
    with pytest.raises(NotFittedError):
        Hasher(**SMALL).fit(*items, base=Hasher())


@pytest.mark.parametrize("backbone", [None, "mlp"])
def test_learned_vectors_cannot_be_shared(items, backbone):
    X, y = items
    settings = {**SMALL, "assignment": "prototype", "rerank": "learned", "backbone": backbone}
    base = Hasher(**settings).fit(X, y)
    with pytest.raises(
        ValueError, match="base would share nothing: with rerank='learned'"
    ) as error:
        Hasher(**settings).fit(X, y, base=base)
    assert error.value.hint == "set rerank='given', or leave out base"
    given = {**settings, "rerank": "given"}
    shared = Hasher(**given).fit(X, y, base=Hasher(**given).fit(X, y))
    assert shared.embed(X).shape == (120, 8 if backbone is None else 64)
