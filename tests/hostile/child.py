"""Work in a process of its own: a crash, a hang or too much memory is a result, not the end."""

import os
import pickle
import resource
import select
import signal
import time


def in_child(function, *arguments, seconds=60.0, more_memory=None):
    """What a function returns in a forked process: ``("done", value)``, or what became of it.

    ``("raised", text)``, ``("killed by", signal)`` or ``("hangs", seconds)``. ``more_memory`` is
    how many bytes of address space it may take beyond what this process has.
    """
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if more_memory is not None:
                limit_memory(more_memory)
            answer = ("done", function(*arguments))
        except BaseException as error:
            answer = ("raised", f"{type(error).__name__}: {error}")
        try:
            with os.fdopen(send, "wb") as stream:
                pickle.dump(answer, stream)
        finally:
            os._exit(0)
    os.close(send)
    data, end = b"", time.monotonic() + seconds
    with os.fdopen(receive, "rb", buffering=0) as stream:
        while True:
            ready = select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return ("hangs", seconds)
            part = stream.read(1 << 20)
            if not part:
                break
            data += part
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ("killed by", signal.Signals(os.WTERMSIG(status)).name)
    return pickle.loads(data)


def limit_memory(more):
    """Let this process take so many bytes of address space beyond what it has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
