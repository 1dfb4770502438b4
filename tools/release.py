"""Build the wheel and the source archive, and try the wheel as a stranger would: ``make release``.

In a new environment, outside of the repository: install, the README's first example, ``hashcade
demo``, and ``hashcade serve`` with its page. Nothing is uploaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
NOT_IN_IT = ("experiments/", "benchmarks/", "tests/", "docs/")


def say(*words: object) -> None:
    print(*words, flush=True)


def build() -> Path:
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(DIST)], cwd=ROOT, check=True
    )
    (wheel,) = DIST.glob("*.whl")
    assert list(DIST.glob("*.tar.gz")), "there is no source archive"
    names = zipfile.ZipFile(wheel).namelist()
    foreign = [name for name in names if name.startswith(NOT_IN_IT)]
    assert not foreign, f"in the wheel: {foreign[:3]}"
    assert any(name.endswith("static/index.html") for name in names), "the page is not in the wheel"
    return wheel


def first_example() -> str:
    """The first Python block of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found, "the README has no Python"
    return found[1]


def served_page(hashcade: Path, folder: Path, environment: dict[str, str]) -> str:
    process = subprocess.Popen(
        [hashcade, "serve", "demo/digits.table", "--port", "0"],
        cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)
        address = next(found[0] for found in lines if found)
        for _ in range(600):  # until it listens
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/ready"):
                break
            time.sleep(0.1)
        with urllib.request.urlopen(address, timeout=60) as answer:
            return str(answer.read().decode())
    finally:
        process.terminate()
        process.communicate(timeout=60)


def main() -> int:
    wheel = build()
    say(f"built {wheel.name}, and a source archive")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment["HOME"] = name
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        binaries = folder / "env" / "bin"
        wanted = f"{wheel}[train,demo,serve,images]"
        say("installing it into a new environment")
        command = [binaries / "python", "-m", "pip", "install", "--quiet", wanted]
        subprocess.run(
            [*command, "--constraint", ROOT / "constraints.txt"], env=environment, check=True
        )
        for what in ([binaries / "python", "-c", first_example()], [binaries / "hashcade", "demo"]):
            subprocess.run(what, cwd=folder, env=environment, check=True)
        page = served_page(binaries / "hashcade", folder, environment)
        assert "<html" in page, page[:200]
        say("install, first example, demo and page: all work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
