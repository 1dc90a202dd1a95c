"""Part of ``make lint``: says which files and folders of the package are too large."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "autoloader"
MAX_LINES = 450
MAX_FILES = 15
"""Modules of a folder. ``cli`` has one for each command and is not checked."""
MAX_TOP = 12
"""Modules at the top of the package."""


def faults() -> Iterator[str]:
    """What is too large, a line each."""
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield f"{path.relative_to(PACKAGE.parent)}: {lines} lines, and may have {MAX_LINES}"
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE / "cli"}):
        most = MAX_TOP if folder == PACKAGE else MAX_FILES
        count = len(list(folder.glob("*.py")))
        if count > most:
            yield f"{folder.relative_to(PACKAGE.parent)}: {count} modules, and may have {most}"


def main() -> int:
    """Print what is too large; 1 where anything is."""
    found = list(faults())
    sys.stdout.writelines(f"{line}\n" for line in found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
