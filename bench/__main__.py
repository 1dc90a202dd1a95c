"""``python -m bench``: runs the scenarios and prints what came of it.

Result on stdout (a table, or with ``--json`` one document), progress on stderr, everything as JSON
in ``bench/results``. Exit codes: 0 whatever the figures say, 2 bad arguments, 4 a contender failed.

Not here: anything that measures (``bench.runner``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.data import ensure_data
from bench.figures import Figure, work_out
from bench.host import fingerprint, load
from bench.peers import missing, prepare
from bench.report import RESULTS, document, save, show
from bench.runner import Patience, TurnFailedError, run_scenario
from bench.scenario import Scenario, load_scenarios


def main() -> int:
    scenarios = load_scenarios()
    arguments = _arguments(list(scenarios))
    if arguments.list:
        for one in scenarios.values():
            print(f"{one.name:12} {one.about}")
        return 0
    chosen = _able([scenarios[name] for name in arguments.only or scenarios])
    patience = Patience(arguments.patience, arguments.retakes)
    with _progress() as progress:
        try:
            run, figures = _run(chosen, arguments.pairs, patience, progress)
        except TurnFailedError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 4
    path = save(run, arguments.out)
    if arguments.json:
        print(json.dumps(run, indent=1))
    else:
        show(run, figures, Console(width=max(Console().width, 150)))
    print(f"everything behind it: {path}", file=sys.stderr)
    return 0


def _able(scenarios: list[Scenario]) -> list[Scenario]:
    """The scenarios without who cannot run here; why not goes to stderr."""
    lacking = {one.kind: missing(one.kind) for scenario in scenarios for one in scenario.contenders}
    for why in filter(None, lacking.values()):
        print(f"bench: {why}", file=sys.stderr)
    left = (
        scenario.without({one.name for one in scenario.contenders if lacking[one.kind]})
        for scenario in scenarios
    )
    return [scenario for scenario in left if scenario is not None]


def _run(
    chosen: list[Scenario], pairs: int | None, patience: Patience, progress: Progress
) -> tuple[dict[str, Any], list[Figure]]:
    bar = progress.add_task("data", total=None)

    def built(done: int, total: int) -> None:
        progress.update(bar, description="building the demo mixture", completed=done, total=total)

    names = {one.data_of(contender) for one in chosen for contender in one.contenders}
    data = {name: ensure_data(name, built) for name in sorted(names)}
    for kind, name in sorted({(c.kind, one.data_of(c)) for one in chosen for c in one.contenders}):
        progress.update(bar, description=f"data of {kind}")
        prepare(kind, data[name])
    before = 0
    total = sum(len(one.contenders) * _rounds(one, pairs) for one in chosen)

    def told(text: str, done: int, _all: int) -> None:
        progress.update(bar, description=text, completed=before + done, total=total)
        if not progress.console.is_terminal:
            print(f"{before + done}/{total} {text}", file=sys.stderr, flush=True)

    began, ran, figures = load(), {}, []
    for one in chosen:
        rounds = _rounds(one, pairs)
        turns = run_scenario(one, data, pairs=rounds, patience=patience, told=told)
        before += len(one.contenders) * rounds
        figures += work_out(one, turns)
        ran[one.name] = {"about": one.about, "scenario": one.model_dump(), "turns": turns}
    run = document(host=fingerprint(), began=began, ended=load(), scenarios=ran, figures=figures)
    return run, figures


def _rounds(scenario: Scenario, pairs: int | None) -> int:
    """Counting gives the same every time; only timed scenarios take more rounds."""
    return scenario.pairs if pairs is None or scenario.count_samples else pairs


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        # The bar must not take processor time from what is measured.
        refresh_per_second=1,
    )


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=names, help="scenarios to run; default all")
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
