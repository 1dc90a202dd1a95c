"""``python -m bench.gate``: fails when something became worse than ``bench/baseline.json`` allows.

Counts first (a minute, on any machine), then the ratios of the baseline's scenarios (needs a quiet
one). ``--counts`` and ``--short`` leave the ratios out; ``--run RESULTS.json`` takes them from one
that was measured before. ``--write`` counts, and writes the baseline anew, with ``--run``'s ratios.
Result on stdout, progress on stderr. Exit codes: 0 within limits, 1 not, 2 bad arguments, 4 a
loader failed.

Not here: the limits (``bench.gate.baseline``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.checks import Check, table
from bench.child import ChildFailedError
from bench.gate.baseline import (
    PLACE,
    Baseline,
    Verdict,
    counted_baseline,
    judge_counts,
    judge_ratios,
    load_baseline,
    timed_baseline,
)
from bench.gate.turns import COUNTINGS, SHORT, run_counting
from bench.report import save
from bench.runner import Patience
from bench.scenario import load_scenarios
from bench.suite import run_suite


def main() -> int:
    arguments = _arguments()
    try:
        counts = {}
        for name in SHORT if arguments.short else COUNTINGS:
            print(f"counting: {name}", file=sys.stderr, flush=True)
            counts[name] = run_counting(name)
        if arguments.write:
            return _write(counts, arguments.run)
        baseline = load_baseline()
        verdicts = judge_counts(baseline, counts)
        if not (arguments.short or arguments.counts):
            verdicts += judge_ratios(baseline, _measured(baseline, arguments.run))
    except ChildFailedError as error:
        print(f"bench.gate: {error}", file=sys.stderr)
        return 4
    if arguments.json:
        print(json.dumps([dataclasses.asdict(one) for one in verdicts], indent=1))
    else:
        _show(verdicts)
    return 0 if all(one.passed for one in verdicts) else 1


def _measured(baseline: Baseline, run: Path | None) -> list[dict[str, Any]]:
    """The figures of a run: the one given, or of the baseline's scenarios, now."""
    if run is not None:
        found: list[dict[str, Any]] = json.loads(run.read_text())["figures"]
        return found
    if not baseline.timed:
        return []
    scenarios = load_scenarios()
    document = run_suite([scenarios[name] for name in baseline.timed], patience=Patience())
    print(f"everything behind it: {save(document)}", file=sys.stderr)
    return list(document["figures"])


def _write(counts: dict[str, dict[str, float]], run: Path | None) -> int:
    before = load_baseline() if PLACE.exists() else Baseline(counted={})
    timed, host = before.timed, before.host
    if run is not None:
        document = json.loads(run.read_text())
        timed, host = timed_baseline(document), document["host"]
    after = Baseline(
        counted=counted_baseline(counts, {name: one.edge for name, one in COUNTINGS.items()}),
        timed=timed,
        host=host,
    )
    PLACE.write_text(after.model_dump_json(indent=1) + "\n")
    print(f"written: {PLACE}")
    return 0


def _show(verdicts: Sequence[Verdict]) -> None:
    shown = (
        Check(
            f"{one.where}: {one.figure}",
            one.found + ", better than the baseline knows" * one.better,
            one.wanted,
            one.passed,
        )
        for one in verdicts
    )
    Console(width=max(Console().width, 140)).print(table(shown))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="the counts that the test suite checks")
    form.add_argument("--counts", action="store_true", help="all counts, and no ratios")
    form.add_argument("--write", action="store_true", help="write the baseline anew")
    parser.add_argument("--run", type=Path, metavar="RESULTS.json", help="a run's document")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
