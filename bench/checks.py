"""What was found of one thing, beside what is wanted of it; shown as a table.

Not here: what is checked (``bench.control.judge``, ``bench.endurance``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

_WORDS = {True: "met", False: "[bold red]FELL SHORT[/]", None: ""}


@dataclass(frozen=True, slots=True)
class Check:
    """One row.

    Attributes:
        name: what is said of the loader.
        found: the figure.
        wanted: what should be; "reported" where nothing is.
        met: whether it is; ``None`` where nothing is wanted, or it is not known.
    """

    name: str
    found: str
    wanted: str
    met: bool | None


def most(name: str, found: float | None, limit: float, unit: str, digits: int = 2) -> Check:
    """A figure that may be ``limit`` at most; ``None``: it never came to it."""
    told = "never" if found is None else f"{found:.{digits}f} {unit}"
    return Check(name, told, f"≤ {limit:g} {unit}", found is not None and found <= limit)


def all_of(name: str, right: int, count: int) -> Check:
    """How many of a count are right; all should be."""
    return Check(name, f"{right} of {count}", "all", right == count)


def reported(name: str, found: str) -> Check:
    """A figure of which nothing is wanted."""
    return Check(name, found, "reported", None)


def table(checks: Iterable[Check], title: str | None = None) -> Table:
    """A row for each."""
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("check", "found", "wanted", ""):
        shown.add_column(column, overflow="fold")
    for one in checks:
        shown.add_row(one.name, one.found, one.wanted, _WORDS[one.met])
    return shown
