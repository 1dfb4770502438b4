"""The installed command, and an environment that has nothing of ours."""

import os
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("hashcade")


def clean_environment(home, **more):
    """What a fresh login has, and nothing of ours but the folder of the command."""
    path = os.pathsep.join([str(COMMAND.parent), "/usr/bin", "/bin"])
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", **more}
