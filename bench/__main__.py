"""``python -m bench``: runs scenarios and prints what came of them.

Result on stdout (tables, or with ``--json`` one document), progress on stderr; everything as JSON
in ``bench/results``, with a page of it in HTML beside it. Exit codes: 0 whatever the figures say,
2 bad arguments, 4 a contender failed (the table says which; what the others gave is there).

Not here: anything that measures (``bench.runner``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from bench.child import ChildFailedError
from bench.report import RESULTS, save, show, write_page
from bench.runner import Patience
from bench.scenario import load_scenarios
from bench.suite import run_suite


def main() -> int:
    scenarios = load_scenarios()
    arguments = _arguments(list(scenarios))
    if arguments.list:
        for one in scenarios.values():
            print(f"{one.name:16} {'short' if one.short else '':6} {one.about}")
        return 0
    names = arguments.only or [
        one.name for one in scenarios.values() if one.short or arguments.full
    ]
    patience = Patience(arguments.patience, arguments.retakes)
    try:
        chosen = [scenarios[name] for name in names]
        run = run_suite(chosen, pairs=arguments.pairs, patience=patience)
    except ChildFailedError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 4
    path = save(run, arguments.out)
    page = write_page(run, path.with_suffix(".html"))
    if arguments.json:
        print(json.dumps(run, indent=1))
    else:
        show(run, Console(width=max(Console().width, 150)))
    print(f"everything behind it: {path}\nas a page: {page}", file=sys.stderr)
    return 4 if run["failed"] else 0


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="+", choices=names, help="scenarios to run")
    chosen.add_argument(
        "--full", action="store_true", help="all scenarios, not the short ones only"
    )
    parser.add_argument("--pairs", type=int, help="rounds of the timed scenarios; 6 give 95 %%")
    parser.add_argument("--json", action="store_true", help="print the JSON document")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds a turn waits for a quiet machine"
    )
    parser.add_argument(
        "--retakes", type=int, default=1, help="how often a turn disturbed by others is repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    arguments = parser.parse_args()
    if arguments.pairs is not None and arguments.pairs < 1:
        parser.error("--pairs is at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
