"""The code in README and documentation runs, from top to bottom, as a reader would type it.

Python blocks run in this process, one after the other; ``$`` lines of console blocks run as
commands in the same folder. ``print(...)  # output`` promises the output; the other lines of a
console block promise lines of the real output, apart from the numbers in them.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent
sys.path[:0] = [str(ROOT / "tests" / "cli"), str(ROOT / "tests" / "serve")]
import services  # noqa: E402
from worlds_of_cli import make_photos, make_query  # noqa: E402


def blocks(path):
    """Languages and contents of the fenced blocks of a document."""
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def runnable(path):
    return any(language in ("python", "console") for language, _ in blocks(path))


def alike(line):
    """A line without what differs from run to run: numbers, fingerprints, kinds of image files."""
    line = re.sub(r"fingerprint \w+", "fingerprint #", line)
    line = re.sub(r"\.(jpg|png)\b", ".image", line)
    line = re.sub(r"\d[\d,]*(\.\d+)?", "#", line)
    return " ".join(line.split())


def run_console(block, folder):
    environment = {
        "HOME": str(folder), "PATH": f"{BIN}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *promised = part.splitlines()
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True,
            timeout=600, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        there = iter([alike(line) for line in done.stdout.splitlines()])
        for line in promised:  # in this order, others between them
            assert alike(line) in there, f"{command}: {line!r} is not in\n{done.stdout}"


@pytest.fixture
def service(tmp_path):
    """A way to start a service on an index; it is stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield (
            lambda index: (
                stack.enter_context(services.process(index, log=tmp_path / "service.log")).url
            )
        )


def test_documents_have_code():
    assert {language for path in DOCUMENTS for language, _ in blocks(path)} >= {
        "python",
        "console",
    }
    assert runnable(README)
    for name in ("tutorial-embeddings", "tutorial-images", "choosing", "method"):
        assert runnable(ROOT / "docs" / f"{name}.md")


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if runnable(path)], ids=lambda path: path.stem
)
def test_code_runs_and_prints_what_it_says(path, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    if path == README:  # the reader's own images
        make_photos(tmp_path / "photos", per_class=20)
        make_query(tmp_path / "query.jpg")
    namespace = {"__name__": path.stem}
    address = "http://127.0.0.1:8000"
    if path.stem == "service":  # the reader's own service, and queries
        buckets, vectors, _ = services.make_index(tmp_path / "index", labels=False)
        namespace |= {"vectors": vectors[:5], "buckets": buckets[:5]}
        service = request.getfixturevalue("service")
        address = service(tmp_path / "index")
    for language, block in blocks(path):
        if language == "python":
            block = block.replace("http://127.0.0.1:8000", address)
            exec(compile(block, str(path), "exec"), namespace)
            expected = re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
            printed = capsys.readouterr().out.splitlines()
            assert printed == expected or not expected
        elif language == "console":
            run_console(block, tmp_path)


def test_a_broken_promise_is_seen(tmp_path):
    run_console("$ hashcade --version\nhashcade 9.9.9.dev9\n", tmp_path)
    with pytest.raises(AssertionError, match="is not in"):
        run_console("$ hashcade --version\nhashcode 1\n", tmp_path)
    with pytest.raises(AssertionError, match="No such command"):
        run_console("$ hashcade nonsense\n", tmp_path)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("name", ["api.md", "decisions.md", "cli.md", "operations.md"])
def test_every_document_is_linked_from_the_readme(name):
    assert f"docs/{name}" in README.read_text(encoding="utf-8")


def test_the_python_reference_is_fresh(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from api_reference import reference

    stored = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert stored == reference(), "docs/api.md is stale; run: make docs-api"


@pytest.mark.parametrize(
    "target",
    ["demo", "test", "test-slow", "bench", "bench-solver", "bench-index", "bench-learn-embeddings"],
)
def test_commands_of_the_readme_exist(target):
    assert f"make {target}" in README.read_text(encoding="utf-8")
    assert f"\n{target}:" in (README.parent / "Makefile").read_text(encoding="utf-8")
