"""The files that say which versions are installed agree."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def test_every_pin_but_torch_has_hashes():
    pins = dict(PIN.findall((ROOT / "constraints.txt").read_text()))
    assert pins.pop("torch") == "2.13.0"
    hashed = (ROOT / "hashes.txt").read_text()
    assert dict(PIN.findall(hashed)) == pins
    for block in re.split(r"\n(?=\S)", hashed.strip())[2:]:
        assert "--hash=sha256:" in block
