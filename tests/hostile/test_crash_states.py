"""Power cuts at every moment: the old or the new is there whole, and all that was acknowledged."""

import shutil
import sys

import pytest

from tests.hostile import crash

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("strace") is None, reason="strace records the calls"
)
QUICK = 150


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("crash")


@pytest.mark.promise("crash", "power cut after any call: data lost or torn, names reordered")
@pytest.mark.parametrize("name", crash.PROGRAMS)
def test_every_state_is_the_old_or_the_new(place, name, cases):
    n_states, _, problems = crash.try_states(name, place, step=3, most=QUICK)
    cases.add(n_states)
    assert problems == []
    assert n_states >= 15


@pytest.mark.slow
@pytest.mark.promise("crash", "power cut after any call: data lost or torn, names reordered")
def test_five_thousand_states(place, cases):
    total = 0
    for name in crash.PROGRAMS:
        n_states, n_calls, problems = crash.try_states(name, place, long=True)
        print(f"{name}: {n_calls} calls, {n_states} states")
        cases.add(n_states)
        assert problems == []
        total += n_states
    assert total >= 5000


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("model over an old one", "import os\nos.fsync = lambda handle: None"),
        ("load, change and save", "import os\nos.fsync = lambda handle: None"),
        (
            "build over an old table",
            "import hashcade._io\nhashcade._io.sync_directory = lambda path: None",
        ),
    ],
)
def test_a_missing_flush_is_found(place, monkeypatch, name, flaw):
    """The states are worth something: without its flushes a program fails."""
    script, *more = crash.PROGRAMS[name]
    monkeypatch.setitem(crash.PROGRAMS, name, (flaw + "\n" + script, *more))
    _, _, problems = crash.try_states(name, place, until_wrong=True)
    assert problems
