"""Promises of the hostile tests: each test says what it tries, and counts its cases.

``pytest tests/hostile --promises FILE`` writes a JSON line for each promise that was tried: its id,
the attack or fault, the number of cases, and how many failed. ``tools/hostile_page.py`` makes
``docs/results/hostile.md`` of it.
"""

import json
from pathlib import Path

import pytest

_CASES = pytest.StashKey["Cases"]()
_ROWS = pytest.StashKey[dict]()


class Cases:
    """How many cases of a promise a test has tried."""

    def __init__(self):
        self.tried = 0

    def add(self, n=1):
        self.tried += n


def pytest_addoption(parser):
    parser.addoption("--promises", type=Path, help="write what was tried to this file, as JSON")


def pytest_configure(config):
    config.stash[_ROWS] = {}


@pytest.fixture
def cases(request):
    """Counts the cases that a test tries; one if it does not count."""
    counter = request.node.stash[_CASES] = Cases()
    return counter


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    marker = item.get_closest_marker("promise")
    tried = call.when == "call" and not report.skipped
    if marker is None or not (tried or report.failed):
        return
    name, attack = marker.args
    rows = item.config.stash[_ROWS]
    row = rows.setdefault((name, attack), {"id": name, "attack": attack, "cases": 0, "failed": 0})
    if tried:
        counter = item.stash.get(_CASES, None)
        row["cases"] += counter.tried if counter is not None and counter.tried else 1
    row["failed"] += int(report.failed)


def pytest_sessionfinish(session):
    path = session.config.getoption("promises", None)
    if path is not None:
        rows = [json.dumps(row) + "\n" for _, row in sorted(session.config.stash[_ROWS].items())]
        path.write_text("".join(rows))
