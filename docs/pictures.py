"""Draws the contact sheet of README and quickstart anew: the quickstart's own commands.

    pip install playwright && python docs/pictures.py    # Chromium: apt install chromium

Not here: memory over time (``docs/explanation/benchmarks.md``).
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

SHEET = Path(__file__).parent / "images/contact-sheet.png"
DATASET = "mobile_drawers"
"""Shown, as one column of it is odd."""


def main() -> int:
    """Write the mixture, the sheet and the picture of one dataset's part."""
    command = [sys.executable, "-m", "autoloader"]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        demo = [*command, "demo", "data", "--datasets", "3", "--scale", "0.02"]
        subprocess.run(demo, check=True, cwd=folder)
        peek = [*command, "peek", "data/mix.yaml", "-o", "sheet.html"]
        subprocess.run(peek, check=True, cwd=folder)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 900})
        page.goto(Path(folder, "sheet.html").as_uri())
        page.add_style_tag(content="section { border: 0; margin: 0; padding: 0 14px 8px; }")
        section = page.locator(f"section[aria-label$={DATASET}]")
        section.locator(".line svg").first.hover()  # its value under the pointer is told
        drawn = Image.open(io.BytesIO(section.screenshot()))
        few = drawn.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)  # keeps rare colours
        few.save(SHEET, optimize=True)
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
