"""``python -m bench.mixture_analysis RUN [--out DIR]``: what a run made of its mixture.

RUN is a batch log, or a folder with some; a run writes one where ``AUTOLOADER_BATCH_TIMES`` says.
With ``--spec mix.yaml`` a loader runs first, for ``--batches``, and writes the log there. Writes
``mixture_over_time.svg``, ``mixture_windows.svg`` and ``mixture_summary.txt`` beside the log and
prints the summary. Exit codes: 0, 2 bad arguments or no batches.

Not here: the log (``bench.mixture_analysis.recorded``).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from autoloader import AutoLoader
from autoloader.telemetry.batch_times import VARIABLE
from bench.mixture_analysis.drawings import draw_over_time, draw_windows
from bench.mixture_analysis.findings import find, summary
from bench.mixture_analysis.recorded import BatchLogError, read_runs


def main() -> int:
    arguments = _arguments()
    if arguments.spec is not None:
        _run(arguments.spec, arguments.run, arguments.batches)
    try:
        runs = read_runs(arguments.run, arguments.name)
    except (BatchLogError, OSError) as error:
        print(f"bench.mixture_analysis: {error}", file=sys.stderr)
        return 2
    chosen, *others = runs
    if others:
        print(
            f"{len(runs)} runs, the longest is shown; --name shows another: "
            + "; ".join(run.name for run in others),
            file=sys.stderr,
        )
    out = arguments.out or (arguments.run if arguments.run.is_dir() else arguments.run.parent)
    out.mkdir(parents=True, exist_ok=True)
    found = find(chosen)
    text = summary(chosen, found)
    (out / "mixture_summary.txt").write_text(text)
    draw_over_time(chosen, found, out / "mixture_over_time.svg")
    draw_windows(chosen, out / "mixture_windows.svg")
    print(text, end="")
    print(f"plots: {out}/mixture_over_time.svg, {out}/mixture_windows.svg", file=sys.stderr)
    return 0


def _run(spec: Path, run: Path, batches: int) -> None:
    """Take batches of a loader, which writes its log."""
    os.environ[VARIABLE] = str(run if run.suffix == ".jsonl" else run / "batch_times.jsonl")
    left = batches
    with AutoLoader(spec, output="numpy") as loader:
        while left:
            for _ in loader:
                left -= 1
                if not left % 100:
                    print(f"{batches - left}/{batches} batches", file=sys.stderr)
                if not left:
                    break


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.mixture_analysis", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, metavar="RUN", help="a batch log, or a folder with some")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: beside the log")
    parser.add_argument("--name", default="", help="part of the name of the run to show")
    parser.add_argument("--spec", type=Path, help="run a loader of this mixture first")
    parser.add_argument("--batches", type=int, default=1200, help="of that loader")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
