"""What the tests of the page share: Chromium as Debian packages it, driven by Playwright.

Pictures of the screen are left in ``artefacts/``, to be looked at.
"""

import os
import shutil
from pathlib import Path

import pytest

BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
ARTEFACTS = Path(__file__).parents[2] / "artefacts"
PATIENCE = 120_000  # milliseconds: the machine may be busy
# Every picture in view is there; those below it are loaded when somebody scrolls.
LOADED = """() => [...document.images].every((image) => {
    const box = image.getBoundingClientRect();
    return image.complete || !box.width || box.top > innerHeight;
})"""


def keep(page, name):
    ARTEFACTS.mkdir(exist_ok=True)
    for _ in range(500):
        if page.evaluate(LOADED):
            break
        page.wait_for_timeout(20)
    page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


def serious(page):
    """What axe finds that keeps people out."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (entry["id"], [node["html"][:120] for node in entry["nodes"]])
        for entry in found
        if entry["impact"] in ("serious", "critical")
    ]
