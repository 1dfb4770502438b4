"""Help: there at once, with examples, and the same as in the reference."""

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from installed_command import COMMAND, clean_environment

from hashcade.cli._app import VERBS
from hashcade.cli._reference import reference

DOCS = Path(__file__).parents[2] / "docs"
# The verbs of the contract.
NAMES = [
    "demo", "train", "encode", "build", "search",
    "evaluate", "reproduce", "inspect", "verify", "serve",
]  # fmt: skip


def test_all_verbs_of_the_contract_are_there():
    assert sorted(verb.__name__ for verb in VERBS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_examples_that_name_the_verb(name, command):
    done = command(name, "--help")
    assert done.code == 0
    examples = done.out.partition("Examples:\n")[2].partition("\n\n")[0]
    assert f"hashcade {name}" in examples
    options = done.out.partition("Options:\n")[2]
    for line in re.split(r"\n  (?=-)", options):  # every option says what it is for
        assert len(line.split()) >= 3, line


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_has_a_section_in_the_reference(name):
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"\n## hashcade {name}\n" in text


def test_the_reference_is_fresh():
    stored = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert stored == reference(), "docs/cli.md is stale; run: make docs-cli"


def test_help_and_python_m_are_the_same(tmp_path):
    by_module = subprocess.run(
        [sys.executable, "-m", "hashcade", "--help"],
        cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    by_script = subprocess.run(
        [COMMAND, "--help"],
        cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert by_module.stdout == by_script.stdout
    assert "Usage: hashcade " in by_script.stdout


def test_the_command_alone_shows_its_verbs(command):
    alone = command()
    assert alone.code == 0
    assert alone.out == command("--help").out


def test_version_and_completion(command, installed):
    from hashcade import __version__

    assert command("--version").out == f"hashcade {__version__}\n"
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # there may be no shell above us
    shown = installed("--show-completion", "bash", **named).stdout
    assert "_HASHCADE_COMPLETE=complete_bash" in shown
    asked = {"_HASHCADE_COMPLETE": "complete_bash", "COMP_WORDS": "hashcade se", "COMP_CWORD": "1"}
    assert installed(**asked).stdout.split() == ["search", "serve"]


def test_help_takes_less_than_half_a_second(tmp_path):
    def seconds(*arguments):
        start = time.perf_counter()
        subprocess.run(
            arguments, check=True, capture_output=True, timeout=60,
            env=clean_environment(tmp_path),
        )  # fmt: skip
        return time.perf_counter() - start

    # Beside the bare interpreter, so that a busy machine weighs on both.
    extra = [seconds(COMMAND, "--help") - seconds(sys.executable, "-c", "pass") for _ in range(5)]
    assert statistics.median(extra) < 0.45


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['hashcade', '--help']\nfrom hashcade.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    modules = {name.partition(".")[0] for name in out.splitlines()[-1].split()}
    assert "typer" in modules
    assert not modules & {"numpy", "numba", "torch", "pyarrow", "PIL", "fastapi", "matplotlib"}
