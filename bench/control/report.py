"""Shows what came of scenarios: a table on stdout, and everything behind it as one JSON file.

Not here: the judgement (``bench.control.judge``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parents[1] / "results"

_WORDS = {True: "met", False: "[bold red]FELL SHORT[/]", None: ""}


def show(document: Mapping[str, Any], console: Console) -> None:
    """One table: a row for each scenario and reader, and below it the checks that fell short."""
    host, load = document["host"], document["load"]
    averages = [f"{load[when]['load_average'][0]:.2f}" for when in ("began", "ended")]
    console.print(
        f"{host['processor']}, {host['cpus']} cpus; load average {averages[0]} at the start, "
        f"{averages[1]} at the end; {document['took_s'] / 60:.1f} minutes"
    )
    table = Table(title="scenarios", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("scenario", "reader", "checks met", "waiting", "best static", "floor", "s"):
        table.add_column(column, justify="left" if column in ("scenario", "reader") else "right")
    for one in document["scenarios"]:
        table.add_row(*_row(one))
    console.print(table)
    for one in document["scenarios"]:
        for check in one["checks"]:
            if check["met"] is False:
                console.print(
                    f"  {one['name']} ({one['reader']}): {check['name']}: {check['found']}, "
                    f"wanted {check['wanted']}",
                    highlight=False,
                )


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    if one.get("skipped"):
        return one["name"], one["reader"], f"left out: {one['skipped']}", "", "", "", ""
    checks: Sequence[Mapping[str, Any]] = one["checks"]
    judged = [check for check in checks if check["met"] is not None]
    met = sum(check["met"] for check in judged)
    by_name = {check["name"]: check for check in checks}
    floor = by_name.get("below the floor by the loader")
    waits = by_name.get("waiting at the end")
    best = one.get("best")
    return (
        one["name"],
        one["reader"],
        f"{met} of {len(judged)}" if met == len(judged) else f"[red]{met} of {len(judged)}[/]",
        waits["found"].partition(",")[0] if waits else "",
        f"{best['wait_a_batch_s'] * 1e3:.0f} ms" if best else "",
        "" if floor is None else "kept" if floor["met"] else "[red]crossed[/]",
        f"{one['took_s']:.0f}",
    )


def show_checks(one: Mapping[str, Any], console: Console) -> None:
    """Every check of one scenario and reader."""
    title = f"{one['name']}, {one['reader']}: {one['about']}"
    if one.get("skipped"):
        console.print(f"{title}: left out: {one['skipped']}", highlight=False)
        return
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("check", "found", "wanted", ""):
        table.add_column(column, overflow="fold")
    for check in one["checks"]:
        table.add_row(check["name"], check["found"], check["wanted"], _WORDS[check["met"]])
    console.print(table)


def new_file(folder: Path = RESULTS) -> Path:
    """Where the document of a run that begins now goes."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"control-{time.strftime('%Y%m%d-%H%M%S')}.json"


def save(document: Mapping[str, Any], path: Path) -> None:
    """Writes the document; after every scenario, so that a run cut short has what it measured."""
    path.write_text(json.dumps(document) + "\n")
