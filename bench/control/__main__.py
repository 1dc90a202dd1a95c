"""``python -m bench.control``: real loaders under real disturbances, each promise checked.

Result on stdout (a table, or with ``--json`` one document without the raw series), progress on
stderr, everything as JSON in ``bench/results``. Memory scenarios make a memory cgroup, mounts need
a mount namespace: both need root; what cannot be had here is left out and said. Exit codes: 0 all
checks met, 1 some fell short, 2 bad arguments.

Not here: anything that measures (``bench.control.runner``, ``bench.control.turns``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.checks import Check, table
from bench.control.data import ensure_data
from bench.control.group import NoGroupError
from bench.control.judge import judge, next_to_nothing
from bench.control.runner import perform
from bench.control.scenario import READERS, Reader, Scenario, load_scenarios
from bench.control.static import SETTINGS, Searches, measure_pairs, paired_checks, rival_check
from bench.host import fingerprint, load
from bench.report import RESULTS, host_line

PAIRS = 16
QUICK = {"settings": 6, "after": 0.6, "pairs": 6}


def main() -> int:
    scenarios = load_scenarios()
    arguments = _arguments(list(scenarios))
    if arguments.list:
        for one in scenarios.values():
            print(f"{one.name:18} {one.about}")
        return 0
    console = Console(stderr=True)
    began, began_s = load(), time.monotonic()
    count = int(QUICK["settings"]) if arguments.quick else SETTINGS
    pairs = arguments.pairs or (int(QUICK["pairs"]) if arguments.quick else PAIRS)
    searches = Searches(count=count, factor=0.6 if arguments.quick else 1.0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"control-{time.strftime('%Y%m%d-%H%M%S')}.json"
    rows: list[dict[str, Any]] = []
    chosen = [scenarios[name] for name in arguments.only or scenarios]
    for scenario in chosen:
        changes: dict[str, Any] = {}
        if arguments.quick:  # shorter, and so less sure
            changes = {"after_s": QUICK["after"] * scenario.after_s, "window_s": 5.0}
        if arguments.no_search:
            changes |= {"search": None, "paired": False}
        short = scenario.model_copy(update=changes)
        for reader in arguments.reader:
            row = _one(short, reader, searches, pairs=pairs)
            console.print(table(_checks(row), _title(row)))
            rows.append(row)
            document = {
                "schema_version": 1,
                "host": fingerprint(),
                "load": {"began": began, "ended": load()},
                "took_s": time.monotonic() - began_s,
                "scenarios": rows,
                "searches": searches.found,
            }
            # After every scenario, so that a run cut short has what it measured.
            path.write_text(json.dumps(document) + "\n")
    if arguments.json:
        plain = [{key: one[key] for key in one if key != "record"} for one in rows]
        print(json.dumps({**document, "scenarios": plain}, indent=1))
    else:
        _show(document, Console(width=max(Console().width, 120)))
    print(f"everything behind it: {path}", file=sys.stderr)
    return int(any(check["met"] is False for row in rows for check in row["checks"]))


def _one(scenario: Scenario, reader: Reader, searches: Searches, *, pairs: int) -> dict[str, Any]:
    """One scenario with one reader: the run, the search, the rival, the judgement."""
    row: dict[str, Any] = {"name": scenario.name, "reader": reader, "about": scenario.about}
    began = time.monotonic()
    spec = ensure_data(scenario.data)
    try:
        record = perform(scenario, reader, spec)
        asked = scenario.paired or not next_to_nothing(scenario, record)
        best = searches.best(scenario, reader, spec) if asked else None
        checks = judge(scenario, record, best)
        if scenario.paired and best is not None:
            row["pairs"] = measure_pairs(scenario, reader, spec, best, pairs=pairs)
            checks += paired_checks(scenario, row["pairs"])
        if scenario.rival:
            checks.append(rival_check(scenario, reader, spec, record))
    except (NoGroupError, PermissionError) as error:
        return {**row, "skipped": str(error), "checks": [], "took_s": time.monotonic() - began}
    return {
        **row,
        "checks": [dataclasses.asdict(check) for check in checks],
        "best": best,
        "record": record,
        "took_s": time.monotonic() - began,
    }


def _checks(row: Mapping[str, Any]) -> list[Check]:
    return [Check(**one) for one in row["checks"]]


def _title(row: Mapping[str, Any]) -> str:
    """A scenario and reader, and how many of its checks were met."""
    met = [check.met for check in _checks(row) if check.met is not None]
    came = f"left out: {row['skipped']}" if "skipped" in row else f"{sum(met)} of {len(met)} met"
    return f"{row['name']}, {row['reader']} ({row['took_s']:.0f} s): {row['about']}; {came}"


def _show(document: Mapping[str, Any], console: Console) -> None:
    """A line for each scenario and reader, and below it the checks that fell short."""
    console.print(f"{host_line(document)}; {document['took_s'] / 60:.1f} minutes")
    for row in document["scenarios"]:
        console.print(_title(row), highlight=False)
        if short := [one for one in _checks(row) if one.met is False]:
            console.print(table(short))


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=names, help="scenarios to run; default all")
    parser.add_argument("--reader", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--quick", action="store_true", help="shorter windows, fewer settings")
    parser.add_argument("--pairs", type=int, help=f"pairs of turns; default {PAIRS}")
    parser.add_argument(
        "--no-search", action="store_true", help="no static settings: waiting is not judged"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--json", action="store_true", help="print the JSON document")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
