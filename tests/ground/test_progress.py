"""One progress display: a changing line on a terminal, lines that stay elsewhere."""

import io

import pytest

from hashcade import _progress
from hashcade._progress import Progress, duration, progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_sees_total_and_time_left(monkeypatch, clock):
    terminal = Terminal()
    monkeypatch.setattr(_progress.sys, "stderr", terminal)
    display = Progress()
    display.update("reading", 0, 100)
    clock[0] += 10
    display.update("reading", 25, 100, "loss 0.5")
    last = terminal.getvalue().rpartition("\r")[2]
    assert "reading █████░░░░░░░░░░░░░░░ 25/100  loss 0.5  30 s left" in last


def test_elsewhere_only_lines_that_stay_are_printed(capsys):
    display = Progress(verbose=True)
    display.update("reading", 1, 2)
    display.say("stage 1 of 2")
    assert capsys.readouterr().err == "stage 1 of 2\n"


def test_quiet_is_quiet(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(_progress.sys, "stderr", terminal)
    with progress_bar("reading", quiet=True) as move:
        move(1, 2)
    assert terminal.getvalue() == ""


def test_the_bar_is_gone_afterwards(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(_progress.sys, "stderr", terminal)
    with progress_bar("reading") as move:
        move(1, 2)
    assert terminal.getvalue().endswith("\r\033[K")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7500, "2 h 05 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
