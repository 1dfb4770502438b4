"""What looks wrong although nothing failed: one line each on stderr, and in JSON a list."""

import json

import numpy as np
import pytest
from cli_factories import make_photos

from hashcade.cli.warn import chance

SHORT = ["--steps", "5", "--width", "4", "--quiet"]


def said(done):
    """The warnings of a command, which succeeded; the same on stderr as in JSON."""
    assert done.code == 0
    warnings = json.loads(done.out)["warnings"]
    lines = [line for line in done.err.splitlines() if "warning" in line]
    assert lines == [f"hashcade: warning: {line}" for line in warnings]
    return warnings


@pytest.fixture
def noise(cwd):
    """Vectors that have nothing to do with their labels."""
    rng = np.random.default_rng(0)
    np.savez("noise.npz", X=rng.normal(size=(2000, 8)), y=np.arange(2000) % 10)
    np.savez("queries.npz", X=rng.normal(size=(200, 8)), y=np.arange(200) % 10)
    return "noise.npz"


@pytest.mark.parametrize("verb", ["fit", "train", "evaluate"])
def test_precision_near_chance(command, noise, verb):
    fitted = command("train" if verb == "train" else "fit", noise, "-o", "out", *SHORT, "--json")
    done = fitted
    if verb == "evaluate":
        done = command("evaluate", "out", "queries.npz", "-n", 1, "--json")
    (warning,) = said(done)
    assert (
        "is near chance (10.0 %); check that labels and items belong together, use other" in warning
    )


def test_precision_under_exhaustive_search(command, cwd):
    """Items in the buckets of a network that was hardly trained; vectors as they are given."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 12
    X = 0.8 * rng.normal(size=(12, 16))[y] + rng.normal(size=(600, 16))
    np.savez("data.npz", X=X[:500], y=y[:500])
    np.savez("queries.npz", X=X[500:], y=y[500:])
    hasty = ["--steps", 1, "--set", "joint_steps=0", "--set", "assignment=path", "--width", 32]
    command("train", "data.npz", "-o", "model", *hasty, "--quiet")
    command("build", "model", "data.npz", "-o", "table", "--place", "network", "--quiet")
    alone = ["--no-fill", "-n", 1, "--json"]
    warnings = said(command("evaluate", "table", "queries.npz", *alone))
    assert "is under that of exhaustive search (" in warnings[0]
    assert warnings[0].endswith("look into more buckets (--n-probe), or train longer (--steps)")


@pytest.mark.parametrize("verb", ["build", "inspect"])
def test_low_purity(command, noise, verb):
    command("train", noise, "-o", "model", *SHORT)
    done = command("build", "model", noise, "-o", "table", "--place", "network", "--json")
    if verb == "inspect":
        done = command("inspect", "table", "--json")
    (warning,) = said(done)
    assert warning.startswith("purity ")
    assert warning.endswith(
        "train longer (--steps), with more items of a class, or a larger --width"
    )
    by_label = command("build", "model", noise, "-o", "other", "--json")
    assert said(by_label) == []  # every bucket holds one class


def test_most_classes_have_one_item(command, cwd):
    rng = np.random.default_rng(0)
    y = np.concatenate([np.arange(10), np.full(30, 20), np.full(30, 21)])
    np.savez("single.npz", X=10 * np.eye(22)[y] + rng.normal(size=(70, 22)), y=y)
    warnings = said(
        command("train", "single.npz", "-o", "model", "--steps", 60, "--quiet", "--json")
    )
    assert warnings[0] == (
        "10 of 12 classes have one item only, of which nothing general can be learned; give more "
        "items of a class, or merge classes"
    )


def test_images_smaller_than_the_network_takes(command, cwd):
    make_photos(cwd / "photos", per_class=4)  # 30 to 60 pixels
    scratch = ["--from-scratch", "--steps", 2, "--base-steps", 2, "--quiet", "--json"]
    big = command("fit", "photos", "-o", "a", *scratch, "--image-size", 64)
    assert said(big)[0] == (
        "12 of 12 images are smaller than the 64×64 that the network takes, and were enlarged; "
        "set a smaller --image-size"
    )
    small = command("fit", "photos", "-o", "b", *scratch, "--image-size", 24)
    assert not any("smaller" in line for line in said(small))
    features = command("fit", "photos", "-o", "c", *SHORT, "--json")
    assert said(features)[0] == (
        "12 of 12 images are smaller than the 224×224 that the network takes, and were enlarged; "
        "give larger ones"
    )


def test_good_results_come_without_a_warning(command, sample, cwd):
    done = command(
        "fit", sample.data, "-o", "table", "--width", 4, "--steps", 60, "--json", "--quiet"
    )
    assert said(done) == []
    assert done.err == ""


def test_chance_is_that_of_a_random_item():
    assert chance(["a"] * 90 + ["b"] * 10) == pytest.approx(82.0)
    assert chance(["a"] * 90 + ["b"] * 10, ["b"]) == pytest.approx(10.0)
    assert chance(["a"], ["c"]) == 0.0
