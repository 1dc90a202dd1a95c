"""Reads the built site as a person would, in a headless Chromium without a network.

    make docs && pip install playwright && python docs/browse.py    # Chromium: apt install chromium

Of every page: it asks for nothing outside the folder, nothing that it asks for is missing, no
script fails, every link inside leads to a page and to a place on it, and the page is not wider than
the window. Of the site: the colours follow the system's dark mode and the button, text stands out
from its ground in both, "/" goes to the search, which finds, and Tab reaches every link of the
sidebar with a visible outline.

Not here: building it (``make docs``), what the pages say (``check``).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Page, sync_playwright

SITE = Path(__file__).parent / "_build"
LEAST_CONTRAST = 4.5
"""Of text to its ground: WCAG 2.2, level AA."""

_LINKS = "all => all.map(one => one.href)"
_NAMES = "all => all.map(one => one.id || one.name)"
_TOO_WIDE = "() => document.documentElement.scrollWidth > window.innerWidth"
_CONTRAST = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = colour => parts(colour).map(one => one / 255)
    .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const text = light(getComputedStyle(document.querySelector('article p')).color);
  return (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05);
}"""
_GROUND = "() => getComputedStyle(document.body).backgroundColor"
_FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  return [one.closest('.sidebar-tree') ? one.getAttribute('href') || '' : '',
          style.outlineStyle !== 'none' || style.boxShadow !== 'none'];
}"""


def faults(page: Page) -> Iterator[str]:
    """What is wrong, one line each."""
    files = sorted(SITE.rglob("*.html"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: asked.append(f"missing {request.url}"))
    page.on("pageerror", lambda error: asked.append(f"error {error}"))
    names: dict[Path, set[str]] = {}
    links: dict[Path, list[str]] = {}
    for file in files:
        asked.clear()
        page.goto(file.as_uri())
        names[file] = set(page.eval_on_selector_all("[id], a[name]", _NAMES))
        links[file] = page.eval_on_selector_all("a[href]", _LINKS)
        yield from (f"{file.name}: {one}" for one in asked if not one.startswith("file:"))
        if page.evaluate(_TOO_WIDE):
            yield f"{file.name}: wider than the window"
    for file, own in links.items():
        for link in own:
            parts = urlsplit(link)
            target = Path(unquote(parts.path))
            if parts.scheme == "file" and not target.exists():
                yield f"{file.name}: {link} leads nowhere"
            place = unquote(parts.fragment)
            if parts.scheme == "file" and place and place not in names.get(target, {place}):
                yield f"{file.name}: there is no place {place} on {target.name}"
    yield from _colours(page)
    yield from _keyboard(page)


def _colours(page: Page) -> Iterator[str]:
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto((SITE / "quickstart.html").as_uri())
        grounds.append(page.evaluate(_GROUND))
        if (contrast := page.evaluate(_CONTRAST)) < LEAST_CONTRAST:
            yield f"{scheme}: text stands out by {contrast:.1f}, and should by {LEAST_CONTRAST}"
    if grounds[0] == grounds[1]:
        yield f"dark mode is as light: {grounds[0]}"
    before = page.evaluate(_GROUND)
    seen = set()
    for _ in range(3):  # the system's, light, dark
        page.locator("button.theme-toggle:visible").first.click()
        seen.add(page.evaluate(_GROUND))
    if seen == {before}:
        yield "the button does not change the colours"


def _keyboard(page: Page) -> Iterator[str]:
    page.emulate_media(color_scheme="light")
    page.goto((SITE / "index.html").as_uri())
    page.keyboard.press("/")
    if page.evaluate("() => document.activeElement.name") != "q":
        yield '"/" does not go to the search'
    page.keyboard.type("ram_floor")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?*")
    try:
        page.wait_for_selector("#search-results li a", timeout=10_000)
    except Exception as error:  # noqa: BLE001  (whatever it is, nothing was found)
        yield f"the search finds nothing: {str(error).splitlines()[0]}"
    page.goto((SITE / "index.html").as_uri())
    wanted = set(
        page.eval_on_selector_all(
            ".sidebar-tree a", "all => all.filter(one => one.offsetParent)"
            ".map(one => one.getAttribute('href'))",
        )
    )  # fmt: skip
    reached = set()
    for _ in range(3 * len(wanted) + 40):
        page.keyboard.press("Tab")
        link, outlined = page.evaluate(_FOCUS)
        if link:
            reached.add(link)
            if not outlined:
                yield f"focus cannot be seen on {link}"
                break
    if left := wanted - reached:
        yield f"Tab does not reach {len(left)} of {len(wanted)} links, such as {sorted(left)[0]}"


def main() -> int:
    """Look, and say what is wrong."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        found = list(faults(context.new_page()))
        browser.close()
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    sys.stdout.write(f"{len(list(SITE.rglob('*.html')))} pages, {len(found)} faults\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
