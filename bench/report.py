"""Shows a run: tables for a terminal, a page in HTML with plots, the tables of ``docs``.

``python -m bench.report RESULTS.json ... [--html PAGE] [--write-docs]`` shows what earlier runs on
one machine left. Everything shown comes from the documents.

Theory of operation. The page holds the same tables as the terminal, and memory over time. In
``docs/explanation/benchmarks.md`` tables stand between
``<!-- measured: NAME -->`` and ``<!-- end -->``, where NAME is a scenario,
``all`` (every scenario of the run with its title) or ``host``; the words around them are written by
hand. A scenario that the document lacks keeps the table it has.

Not here: the figures (``bench.figures``).
"""

from __future__ import annotations

import argparse
import io
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autoloader.telemetry.charts import Line, Timeline, over_time, render
from bench.figures import limit_shares

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[1] / "docs/explanation/benchmarks.md"
MIB = 2**20

_MEASURED = re.compile(r"<!-- measured: ([\w-]+) -->\n(?:.*?\n)??<!-- end -->", re.DOTALL)


def save(run: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Writes the document under its date; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(run, indent=1) + "\n")
    return path


def merged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Runs on one machine as one; of a scenario that several have, the last one's."""
    last = {name: number for number, run in enumerate(runs) for name in run["scenarios"]}
    return {
        **runs[0],
        "load": {"began": runs[0]["load"]["began"], "ended": runs[-1]["load"]["ended"]},
        "scenarios": {name: runs[number]["scenarios"][name] for name, number in last.items()},
        "figures": [
            figure
            for number, run in enumerate(runs)
            for figure in run["figures"]
            if last[figure["scenario"]] == number
        ],
    }


def show(run: Mapping[str, Any], console: Console) -> None:
    """Prints contenders and figures."""
    console.print(host_line(run))
    for name, scenario in run["scenarios"].items():
        columns, contenders = _contenders(scenario)
        if contenders:
            console.print(_table(f"{name}: {scenario['about']}", columns, contenders))
    for why in run.get("left_out", {}).values():
        console.print(why)
    for who, why in run.get("failed", {}).items():
        console.print(f"{who} failed: {why}", markup=False)
    rows = [(f"{one['scenario']}: {one['title']}", *_figure_words(one)) for one in run["figures"]]
    console.print(_table("figures", _FIGURE_COLUMNS, rows))


def write_page(run: Mapping[str, Any], path: Path) -> Path:
    """Writes tables and charts of a run as one HTML file; returns its path."""
    console = Console(record=True, file=io.StringIO(), width=150)
    show(run, console)
    scenarios = []
    for name, scenario in run["scenarios"].items():
        scenarios.append((name, scenario["about"], _memory_chart(name, scenario["turns"])))
    text = render("bench", "bench.html.jinja", tables=console.export_text(), scenarios=scenarios)
    path.write_text(text)
    return path


def _memory_chart(key: str, turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Memory of each contender's first turn over its time; empty where none was sampled."""
    sampled = {name: own[0]["memory"] for name, own in turns.items() if own[0].get("memory")}
    if not sampled:
        return ""
    lines = [
        Line(name, [(at_s, held / MIB) for at_s, held in samples], "abcd"[place % 4])
        for place, (name, samples) in enumerate(sampled.items())
    ]
    end_s = max(samples[-1][0] for samples in sampled.values())
    title = "memory from process start to end: " + ", ".join(sampled)
    return over_time(f"{key}-memory", title, "MiB", lines, Timeline(end_s), legend=True)


def write_docs(run: Mapping[str, Any], page: Path = PAGE) -> list[str]:
    """Writes the document's tables into ``page``; the names of those it wrote."""
    written = []

    def table(found: re.Match[str]) -> str:
        name = found[1]
        if name == "host":
            lines = [_host_words(run)]
        elif name == "all":
            lines = [line for one in run["scenarios"] for line in _section(run, one)]
        elif name in run["scenarios"]:
            lines = list(_markdown(run, name))
        else:
            return found[0]
        written.append(name)
        return "\n".join([f"<!-- measured: {name} -->", *lines, "<!-- end -->"])

    page.write_text(_MEASURED.sub(table, page.read_text()))
    return written


# --- words ---------------------------------------------------------------------------------------

_FIGURE_COLUMNS = ("figure", "against", "median", "interval", "target", "")
_CONTENDER_COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    ("samples/s", "samples_per_s", 1, 0),
    ("CPU ms/sample", "cpu_ms_per_sample", 1, 3),
    ("CPUs used", "cpus_used", 1, 2),
    ("first batch s", "first_batch_s", 1, 2),
    ("close s", "close_s", 1, 2),
    ("peak MiB", "peak_bytes", 1 / MIB, 0),
    ("episodes/batch", "distinct_episodes", 1, 1),
    ("storage order", "storage_correlation", 1, 2),
    ("same episode", "same_episode_ratio", 1, 2),
)
"""Heading, measure, factor, decimals; a contender that was not asked has an empty field."""


def host_line(run: Mapping[str, Any]) -> str:
    """The machine and how busy it was."""
    host, load = run["host"], run["load"]
    averages = [
        " ".join(f"{one:.2f}" for one in load[when]["load_average"]) for when in ("began", "ended")
    ]
    return (
        f"{host['processor']}, {host['cpus']} cpus, Python {host['python']}, "
        f"TensorFlow {host['versions']['tensorflow']}; "
        f"load average {averages[0]} at the start, {averages[1]} at the end"
    )


def _host_words(run: Mapping[str, Any]) -> str:
    """Where and when, for the page."""
    host = run["host"]
    turns = [
        turn for one in run["scenarios"].values() for own in one["turns"].values() for turn in own
    ]
    others = max((float(turn.get("others_cpus", 0.0)) for turn in turns), default=0.0)
    names = " ".join(run["scenarios"])
    return (
        f"Measured {run['load']['began']['time'][:10]} on {host['cpus']} CPUs of "
        f"{host['processor']}, kernel {host['kernel']}, Python {host['python']}, TensorFlow "
        f"{host['versions']['tensorflow']}; others used at most {others:.2f} processors during any "
        f'turn. To repeat it: `make bench ARGS="--only {names}"`.'
    )


def _contenders(scenario: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: what each contender gave, and its share of each limit that ran."""
    turns = {
        name: own for name, own in scenario["turns"].items() if own and "samples_per_s" in own[0]
    }
    kinds = {one["name"]: one["kind"] for one in scenario["scenario"]["contenders"]}
    shares = limit_shares(kinds, turns)
    limits = list(dict.fromkeys(short for own in shares.values() for short in own))
    shown = [
        column
        for column in _CONTENDER_COLUMNS
        if any(column[1] in turn for own in turns.values() for turn in own)
    ]
    rows = []
    for name, own in turns.items():
        told = [_middle(own, key, factor, digits) for _, key, factor, digits in shown]
        parts = [f"{shares[name][short]:.3f}" if short in shares[name] else "" for short in limits]
        others = max(float(turn["others_cpus"]) for turn in own)
        rows.append([name, told[0], *parts, *told[1:], str(len(own)), f"{others:.2f}"])
    first, *rest = (heading for heading, *_ in shown) if shown else ("",)
    of = [f"of {short}" for short in limits]
    return ["contender", first, *of, *rest, "turns", "others' CPUs"], rows


def _middle(turns: Sequence[Mapping[str, Any]], key: str, factor: float, digits: int) -> str:
    values = [factor * float(turn[key]) for turn in turns if key in turn]
    return f"{statistics.median(values):.{digits}f}" if values else ""


def _figure_words(figure: Mapping[str, Any]) -> tuple[str, ...]:
    value, unit = figure["value"], figure["unit"]
    scale = 1.0
    if unit == "bytes":
        scale, unit = 1 / MIB, "MiB"
    interval = ""
    if value["high"] > value["low"]:
        low, high = scale * value["low"], scale * value["high"]
        interval = f"{low:.3f} – {high:.3f} ({100 * value['confidence']:.0f} %)"
    verdict = {None: "", True: "reached", False: "FELL SHORT"}[figure["met"]]
    median = f"{scale * value['median']:.3f} {unit}"
    return (figure["against"], median, interval, figure["target"], verdict)


def _section(run: Mapping[str, Any], name: str) -> Iterator[str]:
    """A scenario with its title."""
    yield f"### {name}\n\n{run['scenarios'][name]['about']}.\n"
    yield from _markdown(run, name)
    yield ""


def _markdown(run: Mapping[str, Any], name: str) -> Iterator[str]:
    """A scenario's contenders and figures as Markdown tables."""
    columns, rows = _contenders(run["scenarios"][name])
    if rows:
        yield f"| {' | '.join(columns)} |"
        yield "|" + "---|" * len(columns)
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""
    yield "| figure | against | measured | interval | target | |"
    yield "|---|---|---|---|---|---|"
    for one in run["figures"]:
        if one["scenario"] == name:
            against, median, interval, target, verdict = _figure_words(one)
            word = "**falls short**" if one["met"] is False else verdict
            yield f"| {one['title']} | {against} | {median} | {interval} | {target} | {word} |"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        words = number == 0 or column in ("against", "")
        table.add_column(column, justify="left" if words else "right", no_wrap=False)
    for row in rows:
        table.add_row(*row)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS.json")
    parser.add_argument("--html", type=Path, metavar="PAGE", help="write the page there too")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write the tables of docs/explanation/benchmarks.md",
    )
    chosen = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in chosen.results]
    if any(run["host"] != runs[0]["host"] for run in runs):
        parser.error("runs of several machines or versions cannot be shown as one")
    run = merged(runs)
    show(run, Console(width=max(Console().width, 150)))
    if chosen.html:
        print(f"as a page: {write_page(run, chosen.html)}", file=sys.stderr)
    if chosen.write_docs:
        print(f"written in {PAGE}: {', '.join(write_docs(run)) or 'nothing'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
