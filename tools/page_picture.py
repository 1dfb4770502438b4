"""Take the picture of the page of the service: ``make page-picture``.

Needs Chromium, and the table that ``make demo`` leaves.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "demo" / "digits.table"
PICTURE = ROOT / "docs" / "figures" / "page.png"
ADDRESS = "#/item/7"


def main() -> int:
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "hashcade", "serve", TABLE, "--port", "0"]
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert service.stderr is not None
        lines = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in service.stderr)
        url = next(found[0] for found in lines if found)
        with sync_playwright() as playwright:
            chromium = playwright.chromium
            browser = chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1160, "height": 800})
            page.set_default_timeout(120_000)
            page.goto(f"{url}/{ADDRESS}")
            page.wait_for_selector(".neighbours img")
            page.wait_for_load_state("networkidle")
            page.screenshot(path=PICTURE)
            browser.close()
    finally:
        service.terminate()
        service.wait(timeout=60)
    print(f"written {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
