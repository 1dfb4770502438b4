"""The files for containers and systemd say what the program takes, and lock it in."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hashcade.cli import serve

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent
OPTIONS = {"--" + name.replace("_", "-") for name in serve.serve.__annotations__}


def commands():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    unit = (ROOT / "deploy" / "hashcade.service").read_text("utf-8")
    container = (ROOT / "Containerfile").read_text("utf-8")
    yield compose["services"]["hashcade"]["command"]
    yield re.search(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)[1].split()
    yield re.findall(r'"([^"]*)"', re.search(r"^CMD (.*)$", container, re.MULTILINE)[1])


def test_commands_have_options_that_exist():
    seen = 0
    for command in commands():
        assert command[0] == "serve"
        options = {word for word in command if word.startswith("--")}
        assert options <= OPTIONS
        seen += len(options)
    assert seen >= 3


def test_what_they_mount_is_here_and_nothing_is_writable():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    for service in compose["services"].values():
        assert service["read_only"]
        for volume in service["volumes"]:
            if volume.startswith("./deploy"):
                assert (ROOT / volume.partition(":")[0]).is_file()
    assert compose["services"]["hashcade"]["user"] == "65534:65534"
    assert yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text("utf-8"))
    assert "USER 65534:65534" in (ROOT / "Containerfile").read_text("utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_understood(tmp_path):
    unit = (ROOT / "deploy" / "hashcade.service").read_text("utf-8")
    place = tmp_path / "hashcade.service"
    place.write_text(unit.replace("/opt/hashcade/bin/hashcade", "/bin/true"), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", place],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "hashcade.service" in line]
    assert told == []
