"""Runs scenarios with a progress bar, and gathers everything that came of them in one document.

Not here: a scenario's turns (``bench.runner``), showing the document (``bench.report``).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
        TurnFailedError: contenders of one scenario give different frames.
    """
    left_out = {
        one.kind: why
        for scenario in chosen
        for one in scenario.contenders
        if (why := missing(one.kind))
    }
    for why in left_out.values():
        print(f"bench: {why}", file=sys.stderr)
    chosen = _able(chosen, left_out)
    with _progress() as progress:
        bar = progress.add_task("data", total=None)

        def built(done: int, total: int) -> None:
            progress.update(
                bar, description="building the demo mixture", completed=done, total=total
            )

        uses = sorted({(who.kind, one.data_of(who)) for one in chosen for who in one.contenders})
        data = {name: ensure_data(name, built) for name in sorted({name for _, name in uses})}
        for kind, name in uses:
            progress.update(bar, description=f"data of {kind}")
            prepare(kind, data[name])
        before = 0
        total = sum(len(one.contenders) * _rounds(one, pairs) for one in chosen)

        def told(text: str, done: int, _all: int) -> None:
            progress.update(bar, description=text, completed=before + done, total=total)
            if not progress.console.is_terminal:
                print(f"{before + done}/{total} {text}", file=sys.stderr, flush=True)

        began, ran, figures = load(), {}, list[Figure]()
        failed: dict[str, str] = {}
        for one in chosen:
            rounds = _rounds(one, pairs)
            found = run_scenario(one, data, pairs=rounds, patience=patience, told=told)
            before += len(one.contenders) * rounds
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
        "figures": [figure.as_dict() for figure in figures],
        "left_out": left_out,
        "failed": failed,
        "scenarios": ran,
    }


def _able(scenarios: Sequence[Scenario], left_out: Collection[str]) -> list[Scenario]:
    """The scenarios without contenders of the kinds that are left out."""
    left = (
        scenario.without({one.name for one in scenario.contenders if one.kind in left_out})
        for scenario in scenarios
    )
    return [scenario for scenario in left if scenario is not None]


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
