"""Threads that read one state of a table together."""

import subprocess
import sys

import pytest

READ = """
import faulthandler, sys, threading
from pathlib import Path
import numpy as np
from hashcade.store import database, load_state
faulthandler.dump_traceback_later(60, exit=True)  # nothing else ends it
database._CANCEL_CHECK_STEPS = 10  # steps: statements look often at whether they are to stop
state, _ = load_state(Path(sys.argv[1]))
shown = state.catalog.snapshot()
work = lambda: [shown.names_of(np.arange(30)) for _ in range(300)]
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
faulthandler.cancel_dump_traceback_later()
"""


@pytest.mark.parametrize("again", range(2))
def test_they_do_not_wait_for_each_other_for_ever(place, again):
    done = subprocess.run([sys.executable, "-c", READ, place], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
