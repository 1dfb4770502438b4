"""A server held to a share of a core, so that several "machines" fit on one.

Each group of processes gets a cpu cgroup of its own, of either version, and is gone at the end.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
QUOTA = 1000  # microseconds, the least that the kernel allows: of a tenth of a core, 1 of 10 ms


class CpuQuota:
    """A cgroup that may use ``share`` of a core."""

    def __init__(self, name: str, share: float) -> None:
        version_1 = (ROOT / "cpu").is_dir()
        self._folder = (ROOT / "cpu" if version_1 else ROOT) / f"hashcade-{os.getpid()}-{name}"
        period = round(QUOTA / share)
        try:
            if not version_1:
                (ROOT / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
            if version_1:
                (self._folder / "cpu.cfs_period_us").write_text(str(period))
                (self._folder / "cpu.cfs_quota_us").write_text(str(QUOTA))
            else:
                (self._folder / "cpu.max").write_text(f"{QUOTA} {period}")
        except OSError as error:
            raise SystemExit(
                f"this benchmark holds each server to {share:g} of a core, and may not make a cpu"
                f" cgroup ({error}): run it as root, in a container with --privileged"
            ) from None

    def add(self, *pids: int) -> None:
        """Put processes into it; what they start later is in it, too."""
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    def cpu_seconds(self) -> float:
        """Processor time of the processes that are in it now."""
        pids = (self._folder / "cgroup.procs").read_text().split()
        return sum(cpu_seconds(pid) for pid in pids)

    def close(self) -> None:
        """Remove it; its processes, if any are left, are free again."""
        home = self._folder.parent / "cgroup.procs"
        for pid in (self._folder / "cgroup.procs").read_text().split():
            home.write_text(pid)
        self._folder.rmdir()


def cpu_seconds(pid: int | str) -> float:
    """Processor time of a process, all its threads, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        total += int(task.read_text().split()[0])
    return total / 1e9
