"""Documentation as a contract: its code runs, and prints what it says.

Python blocks of a document run one after the other, as a reader would type them, and
``print(...)  # output`` promises the output. ``$`` lines of console blocks run as commands in the
same folder, and the lines below them promise lines of the real output, in this order. Whole
numbers must be equal. What training gives depends on the processor in its last digits, so decimal
numbers may differ by 5 %; paths of buckets, times and fingerprints may be anything.
"""

import contextlib
import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import hashcade
from hashcade import HashTable
from hashcade.cli.app import make_app, run
from tests.cli.cli_factories import clean_environment, make_embeddings, make_photos, make_query

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]

# -- what a document promises ----------------------------------------------------------------------


def blocks(path):
    """Languages and contents of the fenced blocks of a document."""
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def is_runnable(path):
    return any(language in ("python", "console") for language, _ in blocks(path))


def matches(promised, printed):
    """Whether a line of output is the one that was promised."""
    one, two = (_without_chance(line).split() for line in (promised, printed))
    return len(one) == len(two) and all(map(_same_word, one, two))


def _without_chance(line):
    line = re.sub(r"fingerprint \w+", "fingerprint #", line)
    line = re.sub(r"\b\d+(/\d+)+\b", "#/#", line)
    return re.sub(r"\b[\d.]+ (s|ms|min)\b", "# s", line)


def _same_word(one, two):
    if re.fullmatch(r"\d[\d,]*\.\d+", one) and re.fullmatch(r"\d[\d,]*\.\d+", two):
        a, b = (float(word.replace(",", "")) for word in (one, two))
        return abs(a - b) <= max(0.05 * max(a, b), 0.05)
    return one == two


def run_console(block, capsys):
    """Run the commands of a block in this process, which saves importing torch each time."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *promised = part.splitlines()
        program, *arguments = shlex.split(command)
        assert program == "hashcade", command
        code = run(make_app(), arguments)
        out, err = capsys.readouterr()
        assert code == 0, f"{command}\n{err}"
        printed = iter(out.splitlines())
        for line in promised:
            found = any(matches(line, candidate) for candidate in printed)
            assert found, f"{command}: {line!r} is not in\n{out}"


@contextlib.contextmanager
def running_service(folder):
    """A service on the reader's own table; its address."""
    process = subprocess.Popen(
        ["hashcade", "serve", "my.table", "--port", "0"],
        cwd=folder, env=clean_environment(folder), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        addresses = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)
        address = next(found[0] for found in addresses if found)
        for _ in range(600):  # until it listens
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health"):
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=60)


def make_packages(folder):
    """Texts with embeddings and labels in columns, and two queries."""
    X, y = make_embeddings(n=300)
    columns = {"embedding": list(X), "section": y.astype(str)}
    columns["package"] = columns["text"] = [f"package {row}" for row in range(len(X))]
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "packages.parquet")
    np.save(folder / "questions.npy", X[:2])


def prepare(path, folder, namespace):
    """What a reader of a document has already."""
    if path == README:
        make_photos(folder / "photos", per_class=20)
        make_query(folder / "query.jpg")
        make_packages(folder)
    if path.stem == "service":
        rng = np.random.default_rng(0)
        y = rng.integers(0, 5, 200)
        X = (rng.normal(size=(5, 8))[y] + 0.2 * rng.normal(size=(200, 8))).astype(np.float32)
        labels = np.array(["ant", "bee", "cat", "dog", "eel"])[y]
        HashTable(width=4, steps=20, verbose=False).fit(X, labels).save(folder / "my.table")
        namespace |= {"queries": X[:5], "items": X[:2]}
    return namespace


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if is_runnable(path)], ids=lambda path: path.stem
)
def test_code_runs_and_prints_what_it_says(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    address = "http://127.0.0.1:8000"
    with contextlib.ExitStack() as stack:
        namespace = prepare(path, tmp_path, {"__name__": path.stem})
        if path.stem == "service":
            address = stack.enter_context(running_service(tmp_path))
        for language, block in blocks(path):
            if language == "console":
                run_console(block, capsys)
            if language != "python":
                continue
            block = block.replace("http://127.0.0.1:8000", address)
            exec(compile(block, str(path), "exec"), namespace)
            printed = capsys.readouterr().out.splitlines()
            expected = re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
            assert printed == expected or not expected


def test_documents_have_code():
    for name in ("tutorial-embeddings", "tutorial-images", "choosing", "method", "integrations"):
        assert is_runnable(ROOT / "docs" / f"{name}.md")
    assert is_runnable(README)


@pytest.mark.parametrize(
    ("promised", "printed", "same"),
    [
        ("speed-up  5.9 expected", "speed-up 6.0 expected", True),
        ("speed-up  5.9 expected", "speed-up 7.1 expected", False),
        ("items  4,000 of dimension 64", "items  4,000 of dimension 64", True),
        ("items  4,000 of dimension 64", "items  3,999 of dimension 64", False),
        ("q is in bucket 1/3", "q is in bucket 0/2", True),
        ("time  3 s", "time  0.25 s", True),
        ("model  m (fingerprint 0a)", "model  m (fingerprint 7f)", True),
        ("  1  28  leaf/08.jpg", "  1  29  leaf/08.jpg", False),
        ("table", "table  my.table", False),
    ],
)
def test_lines_are_compared_with_their_numbers(promised, printed, same):
    assert matches(promised, printed) is same


def test_a_broken_promise_is_seen(capsys):
    run_console(f"$ hashcade --version\nhashcade {hashcade.__version__}\n", capsys)
    with pytest.raises(AssertionError, match="is not in"):
        run_console("$ hashcade --version\nhashcade 1\n", capsys)
    with pytest.raises(AssertionError, match="No such command"):
        run_console("$ hashcade nonsense\n", capsys)


# -- links, references, docstrings -----------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"],
    ids=lambda path: path.stem,
)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("name", ["api.md", "decisions.md", "cli.md", "operations.md"])
def test_every_document_is_linked_from_the_readme(name):
    assert f"docs/{name}" in README.read_text(encoding="utf-8")


def test_the_readme_has_the_stored_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import readme

    _, _, rest = README.read_text(encoding="utf-8").partition(readme.BEGIN)
    figures, end, _ = rest.partition(readme.END)
    assert end
    assert figures.strip() == readme.table().strip(), "run: python tools/readme.py README.md"
    assert readme.PICTURE.is_file()


def test_the_figures_are_what_their_program_draws(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import figures

    for name, draw in figures.FIGURES.items():
        stored = (figures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert stored == draw(), "run: make figures"


def test_the_site_is_built_without_a_warning(tmp_path):
    """Every page is in its list, and every link in it leads somewhere."""
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = {path.relative_to(tmp_path).with_suffix(".md") for path in tmp_path.rglob("*.html")}
    assert {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")} <= pages


def test_the_readme_can_be_read_in_a_minute():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_python_reference_is_fresh(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from api_reference import reference

    stored = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert stored == reference(), "docs/api.md is stale; run: make docs-api"


def test_make_targets_that_documents_name_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for path in (*DOCUMENTS, ROOT / "CONTRIBUTING.md"):
        for name in re.findall(
            r"(?:`|^)make ([a-z][\w-]*\w)(?![\w*-])", path.read_text(), flags=re.MULTILINE
        ):
            assert name in targets, f"{path.name}: make {name}"


MODULES = [
    module.name
    for module in pkgutil.walk_packages(hashcade.__path__, "hashcade.")
    if not module.name.endswith("__main__")
]


def test_there_are_examples_in_docstrings():
    finder = doctest.DocTestFinder()
    modules = map(importlib.import_module, MODULES)
    assert sum(bool(test.examples) for m in modules for test in finder.find(m)) >= 10


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
