"""The Python in the README runs, from top to bottom, as a reader would type it."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def python_blocks():
    text = README.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_readme_has_python():
    assert python_blocks()


def test_python_of_the_readme_runs_and_prints_what_it_says(capsys):
    namespace = {"__name__": "readme"}
    expected = []
    for block in python_blocks():
        exec(compile(block, str(README), "exec"), namespace)
        # `print(...)  # output` promises the output.
        expected += re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(
    "target",
    ["demo", "test", "test-slow", "bench", "bench-solver", "bench-index", "bench-learn-embeddings"],
)
def test_commands_of_the_readme_exist(target):
    assert f"make {target}" in README.read_text(encoding="utf-8")
    assert f"\n{target}:" in (README.parent / "Makefile").read_text(encoding="utf-8")
