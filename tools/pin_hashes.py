"""Write the pinned versions with the hashes of their files.

    python tools/pin_hashes.py constraints.txt hashes.txt

Asks the package index that pip is set up with. Taken are wheels that a supported Python may
install, on any system, and sources where there is no wheel.
"""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from pip._internal.models.index import PyPI

HEAD = """\
# The versions of constraints.txt with the hashes of their files: what `make setup` installs.
# Written by `make hashes`. torch has none: its build for processors is not the one of the index.
"""
UNHASHED = {"torch"}
TAGS = re.compile(r"-(py2\.py3|py3|cp311|cp312|cp313|cp3\d+-abi3)-")
LINK = re.compile(r"#sha256=([0-9a-f]{64})[^>]*>\s*([^<\s]+)\s*</a>")


def index_url():
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return (asked.stdout.strip() or PyPI.simple_url).rstrip("/")


def hashes(url, name, version):
    normal = re.sub(r"[-_.]+", "-", name).lower()
    with urllib.request.urlopen(f"{url}/{normal}/", timeout=60) as answer:
        files = LINK.findall(answer.read().decode())
    own = re.compile(rf"^[\w.-]+-{re.escape(version)}(-.+\.whl|\.tar\.gz|\.zip)$", re.IGNORECASE)
    mine = [(file, value) for value, file in files if own.match(file)]
    wheels = {value for file, value in mine if file.endswith(".whl") and TAGS.search(file)}
    sources = {value for file, value in mine if not file.endswith(".whl")}
    if not wheels | sources:
        raise SystemExit(f"{name}=={version}: no file with a hash")
    return sorted(wheels or sources)


def main():
    pins, output = map(Path, sys.argv[1:])
    url, lines = index_url(), []
    for pin in pins.read_text().splitlines():
        name, _, version = pin.partition("==")
        if version and not pin.startswith("#") and name not in UNHASHED:
            print(pin, file=sys.stderr)
            each = [f"    --hash=sha256:{value}" for value in hashes(url, name, version)]
            lines.append(" \\\n".join([pin, *each]) + "\n")
    output.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
