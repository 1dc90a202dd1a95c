"""``python -m bench.endurance [--only NAME ...] [--json]``: one row for each claim.

Result on stdout, progress on stderr. ``soak`` lasts ``--minutes``. Exit code 0 whatever the
figures.

Not here: throughput against others (``bench``), what may not become worse (``bench.gate``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import track

from bench.checks import Check, table
from bench.endurance.frames import frames
from bench.endurance.lifecycle import open_and_close, validation
from bench.endurance.memory import by_datasets, memory, soak, trainer_memory
from bench.endurance.passes import Circumstances
from bench.endurance.survival import decode_kills, kills, retunes, starved, stops

CHECKS: dict[str, Callable[[Circumstances], list[Check]]] = {
    "trainer": trainer_memory,
    "retunes": retunes,
    "kills": kills,
    "lifecycle": open_and_close,
    "memory": memory,
    "datasets": by_datasets,
    "soak": soak,
    "decode-kills": decode_kills,
    "stops": stops,
    "starved": starved,
    "validation": validation,
    "frames": frames,
}


def main() -> None:
    chosen = _arguments()
    given = Circumstances(chosen.reader, 60 * chosen.minutes)
    claims: list[Check] = []
    errors = Console(stderr=True)
    for name in track(chosen.only, "checks", console=errors, disable=not errors.is_terminal):
        print(f"{name} …", file=sys.stderr, flush=True)
        claims += CHECKS[name](given)
    if chosen.json:
        print(json.dumps([dataclasses.asdict(one) for one in claims], indent=2))
        return
    Console(width=max(Console().width, 140)).print(table(claims))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--reader", choices=["stream", "indexed"], default="stream")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the soak lasts")
    parser.add_argument("--json", action="store_true", help="print the claims as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
