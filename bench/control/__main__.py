"""``python -m bench.control``: real loaders under real disturbances, each promise checked.

Result on stdout (a table, or with ``--json`` one document without the raw series), progress on
stderr, everything as JSON in ``bench/results``. Memory scenarios make a memory cgroup, mounts need
a mount namespace: both need root; what cannot be had here is left out and said. Exit codes: 0 all
checks met, 1 some fell short, 2 bad arguments.

Not here: anything that measures (``bench.control.runner``, ``bench.control.turns``).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.control.data import ensure_data
from bench.control.group import NoGroupError
from bench.control.judge import judge, next_to_nothing
from bench.control.pairs import measure_pairs, paired_checks
from bench.control.report import RESULTS, new_file, save, show, show_checks
from bench.control.rivals import rival_check
from bench.control.runner import perform
from bench.control.scenario import READERS, Reader, Scenario, load_scenarios
from bench.control.static import SETTINGS, Searches
from bench.host import fingerprint, load

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
    path = new_file(arguments.out)
    rows: list[dict[str, Any]] = []
    chosen = [scenarios[name] for name in arguments.only or scenarios]
    for scenario in chosen:
        short = scenario if not arguments.quick else _shortened(scenario)
        if arguments.no_search:
            short = short.model_copy(update={"search": None, "paired": False})
        for reader in arguments.reader:
            row = _one(short, reader, searches, pairs=pairs)
            show_checks(row, console)
            rows.append(row)
            document = _document(rows, searches, began, began_s)
            save(document, path)
    if arguments.json:
        plain = [{key: one[key] for key in one if key != "record"} for one in rows]
        print(json.dumps({**document, "scenarios": plain}, indent=1))
    else:
        show(document, Console(width=max(Console().width, 120)))
    print(f"everything behind it: {path}", file=sys.stderr)
    short_of = any(check["met"] is False for row in rows for check in row.get("checks", ()))
    return int(short_of)


def _document(
    rows: list[dict[str, Any]], searches: Searches, began: Mapping[str, Any], began_s: float
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "host": fingerprint(),
        "load": {"began": began, "ended": load()},
        "took_s": time.monotonic() - began_s,
        "scenarios": rows,
        "searches": searches.found,
    }


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
        "checks": [check.as_dict() for check in checks],
        "best": best,
        "record": record,
        "took_s": time.monotonic() - began,
    }


def _shortened(scenario: Scenario) -> Scenario:
    """For a quick look: shorter, and so less sure."""
    return scenario.model_copy(
        update={"after_s": QUICK["after"] * scenario.after_s, "window_s": 5.0}
    )


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
