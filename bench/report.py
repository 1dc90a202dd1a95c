"""Shows a run: a table on stdout, and everything behind it as one JSON file.

Not here: the figures (``bench.figures``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figures import Figure

RESULTS = Path(__file__).with_name("results")
MIB = 2**20


def document(
    *,
    host: Mapping[str, Any],
    began: Mapping[str, Any],
    ended: Mapping[str, Any],
    scenarios: Mapping[str, Any],
    figures: Sequence[Figure],
) -> dict[str, Any]:
    """The JSON document of a run."""
    return {
        "schema_version": 1,
        "host": dict(host),
        "load": {"began": dict(began), "ended": dict(ended)},
        "figures": [figure.as_dict() for figure in figures],
        "scenarios": dict(scenarios),
    }


def save(run: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Writes the document under its date; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(run, indent=1) + "\n")
    return path


def show(run: Mapping[str, Any], figures: Sequence[Figure], console: Console) -> None:
    """Prints contenders and figures."""
    host, load = run["host"], run["load"]
    averages = [
        " ".join(f"{one:.2f}" for one in load[when]["load_average"]) for when in ("began", "ended")
    ]
    console.print(
        f"{host['processor']}, {host['cpus']} cpus, Python {host['python']}, "
        f"TensorFlow {host['versions']['tensorflow']}; "
        f"load average {averages[0]} at the start, {averages[1]} at the end"
    )
    for name, scenario in run["scenarios"].items():
        rows = _contender_rows(scenario["turns"])
        if rows:
            console.print(_table(f"{name}: {scenario['about']}", _CONTENDER_COLUMNS, rows))
    rows = [_figure_row(figure) for figure in figures]
    console.print(_table("figures", _FIGURE_COLUMNS, rows))


_FIGURE_COLUMNS = ("figure", "against", "median", "interval", "target", "")
_CONTENDER_COLUMNS = (
    "contender",
    "samples/s",
    "CPU ms/sample",
    "CPUs used",
    "first batch s",
    "peak MiB",
    "turns",
    "others' CPUs",
)


def _contender_rows(turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, own in turns.items():
        if "samples_per_s" not in own[0]:
            continue

        def middle(key: str, own: Sequence[Mapping[str, Any]] = own) -> float:
            ordered = sorted(float(turn[key]) for turn in own)
            half = len(ordered) // 2
            return (ordered[half] + ordered[-half - 1]) / 2

        rows.append(
            (
                name,
                f"{middle('samples_per_s'):.0f}",
                f"{middle('cpu_ms_per_sample'):.3f}",
                f"{middle('cpus_used'):.2f}",
                f"{middle('first_batch_s'):.2f}",
                f"{middle('peak_bytes') / MIB:.0f}",
                str(len(own)),
                f"{max(float(turn['others_cpus']) for turn in own):.2f}",
            )
        )
    return rows


def _figure_row(figure: Figure) -> tuple[str, ...]:
    value = figure.value
    interval = ""
    if value.high > value.low:
        interval = f"{value.low:.3f} – {value.high:.3f} ({100 * value.confidence:.0f} %)"
    verdict = {None: "", True: "reached", False: "FELL SHORT"}[figure.met]
    return (
        f"{figure.scenario}: {figure.title}",
        figure.against,
        f"{value.median:.3f} {figure.unit}",
        interval,
        figure.target,
        verdict,
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        words = number == 0 or column in ("against", "")
        table.add_column(column, justify="left" if words else "right", no_wrap=False)
    for row in rows:
        table.add_row(*row)
    return table
