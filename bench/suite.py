"""Runs scenarios with a progress bar, and gathers everything that came of them in one document.

Not here: a scenario's turns (``bench.runner``), showing the document (``bench.report``).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.data import ensure_data
from bench.figures import Figure, work_out
from bench.host import fingerprint, load
from bench.peers import missing, prepare
from bench.runner import Patience, run_scenario
from bench.scenario import Scenario


def run_suite(
    chosen: Sequence[Scenario], *, patience: Patience, pairs: int | None = None
) -> dict[str, Any]:
    """The document of a run of ``chosen``; what goes on is told on stderr.

    Args:
        chosen: in this order.
        patience: what is done about other load.
        pairs: rounds of the timed scenarios; default each scenario's own.

    Raises:
        ChildFailedError: contenders of one scenario give different frames.
    """
    left_out = {
        one.kind: why
        for scenario in chosen
        for one in scenario.contenders
        if (why := missing(one.kind))
    }
    for why in left_out.values():
        print(f"bench: {why}", file=sys.stderr)
    able = (
        one.without({who.name for who in one.contenders if who.kind in left_out}) for one in chosen
    )
    chosen = [one for one in able if one is not None]
    # The bar must not take processor time from what is measured.
    with Progress(console=Console(stderr=True), refresh_per_second=1) as progress:
        bar = progress.add_task("data", total=None)
        uses = sorted({(who.kind, one.data_of(who)) for one in chosen for who in one.contenders})
        data = {}
        for kind, name in uses:
            progress.update(bar, description=f"data of {kind}: {name}")
            data[name] = ensure_data(name)
            prepare(kind, data[name])
        total, numbers = sum(len(one.contenders) * _rounds(one, pairs) for one in chosen), count()

        def told(text: str) -> None:
            done = next(numbers)
            progress.update(bar, description=text, completed=done, total=total)
            if not progress.console.is_terminal:
                print(f"{done}/{total} {text}", file=sys.stderr, flush=True)

        began, ran, figures = load(), {}, list[Figure]()
        failed: dict[str, str] = {}
        for one in chosen:
            rounds = _rounds(one, pairs)
            found = run_scenario(one, data, pairs=rounds, patience=patience, told=told)
            failed |= {f"{one.name}: {name}": why for name, why in found.failed.items()}
            whole = one.without(found.failed)
            if whole is None:
                continue
            figures += work_out(whole, found.turns)
            ran[one.name] = {
                "about": one.about,
                "scenario": whole.model_dump(mode="json"),
                "turns": found.turns,
            }
    return {
        "schema_version": 2,
        "host": fingerprint(),
        "load": {"began": began, "ended": load()},
        "figures": [dataclasses.asdict(figure) for figure in figures],
        "left_out": left_out,
        "failed": failed,
        "scenarios": ran,
    }


def _rounds(scenario: Scenario, pairs: int | None) -> int:
    """Counting gives the same every time; only timed scenarios take more rounds."""
    return scenario.pairs if pairs is None or scenario.count_samples else pairs
