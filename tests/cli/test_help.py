"""Help: there at once, with examples, and the same as in the reference."""

import dataclasses
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_factories import COMMAND, clean_environment

from hashcade.cli.app import VERBS

ROOT = Path(__file__).parents[2]
NAMES = [verb.__name__ for verb in VERBS]


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
def test_every_option_of_an_example_exists(name, command):
    text = command(name, "--help").out
    for line in text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines():
        verb = re.search(r"hashcade (\w+)", line)
        if verb is None:
            continue
        known = set(re.findall(r"--?[a-z][a-z-]*", command(verb[1], "--help").out))
        used = re.findall(r" (--?[a-z][a-z-]*)", line.partition(f"hashcade {verb[1]}")[2])
        assert set(used) <= known, line


def test_the_reference_is_fresh(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from cli_reference import reference

    stored = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert stored == reference(), "docs/cli.md is stale; run: make docs-cli"
    for name in NAMES:
        assert f"\n## hashcade {name}\n" in stored


def test_help_and_python_m_are_the_same(tmp_path):
    environment = clean_environment(tmp_path)
    by_module, by_script = (
        subprocess.run(
            [*start, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=60,
        ).stdout
        for start in ([sys.executable, "-m", "hashcade"], [COMMAND])
    )  # fmt: skip
    assert by_module == by_script
    assert "Usage: hashcade " in by_script


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
    words = {"_HASHCADE_COMPLETE": "complete_bash", "COMP_WORDS": "hashcade se", "COMP_CWORD": "1"}
    assert installed(**words).stdout.split() == ["search", "serve"]


def test_every_setting_of_the_service_is_an_option(command):
    from hashcade.serve import ServeSettings

    # The path is an argument; a token on the command line could be read by other users.
    elsewhere = {"table", "token", "model", "use_model"}
    text = command("serve", "--help").out
    for field in dataclasses.fields(ServeSettings):
        if field.name not in elsewhere:
            assert f"--{field.name.replace('_', '-')}" in text


@pytest.mark.alone
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


def test_help_imports_nothing_heavy(tmp_path):
    code = (
        "import sys\nsys.argv = ['hashcade', '--help']\nfrom hashcade.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60,
        env=clean_environment(tmp_path),
    ).stdout  # fmt: skip
    modules = {name.partition(".")[0] for name in out.splitlines()[-1].split()}
    assert "typer" in modules
    assert not modules & {"numpy", "numba", "torch", "pyarrow", "PIL", "fastapi", "matplotlib"}
