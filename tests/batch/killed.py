"""A build that kills itself: ``python -m tests.batch.killed FLUSH SETTINGS``.

Every result is flushed to the disk before it gets its name: to end at each flush is to end at
each moment that matters.
"""

import json
import os
import signal
import sys


def main():
    flushes, last = 0, int(sys.argv[1])
    flush = os.fsync

    def fsync(handle):
        nonlocal flushes
        flushes += 1
        if flushes == last:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)

    os.fsync = fsync
    from hashcade.batch import build_table

    build_table(**json.loads(sys.argv[2]))
    print(flushes)


if __name__ == "__main__":
    main()
