"""A picture of ``autoloader top`` on the Stage-2 trainer, while a neighbour takes memory.

    python -m bench.top_picture OUT [--spec mix.yaml] [--room 2GiB] [--below 512MiB]

Trains for a while with a RAM floor so far below what is free now (``--room``), has another process
take memory until so much less than the floor is left (``--below``), has it let go, and draws what
``top`` shows: ``OUT/short.svg`` (memory is short) and ``OUT/back.svg`` (it is back), with the
snapshots beside them, and PNGs where there is a Chromium. Needs no network.

Not here: what top shows (``autoloader.cli.run_view``), what it costs (``bench.top_cost``).
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autoloader.cli.run_view import Frame, draw_run
from autoloader.demo.build import ensure_demo
from autoloader.probes.headroom import HeadroomProbe
from autoloader.telemetry.runtime import living_runs
from autoloader.telemetry.snapshot import Snapshot
from autoloader.units import GIB, MIB, format_bytes, parse_bytes

WIDTH, HEIGHT = 80, 24
_WARM_BATCHES = 12
_LONGEST_S = 240.0
_STEP_BYTES = 64 * MIB
_MOST_BYTES = 8 * GIB
_TAKER = f"""
import sys
from autoloader.probes.headroom import HeadroomProbe
probe, held = HeadroomProbe(limits_for_s=1.0), []
leave, most = map(int, sys.argv[1:])
while len(held) * {_STEP_BYTES} < most and probe.read().headroom_bytes > leave:
    held.append(bytearray(b"1") * {_STEP_BYTES})
print("taken", flush=True)
sys.stdin.readline()
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A picture of `autoloader top`.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--room", default="2GiB")
    parser.add_argument("--below", default="512MiB")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    spec = chosen.spec or ensure_demo()
    floor = HeadroomProbe().read().headroom_bytes - parse_bytes(chosen.room)
    leave = floor - parse_bytes(chosen.below)
    print(f"RAM floor {format_bytes(floor)}; a neighbour leaves {format_bytes(leave)}", flush=True)
    command = [
        *(sys.executable, "-m", "training.stage2", "--spec", str(spec), "--image-size", "64"),
        *(
            "--batch-size",
            "32",
            "--max-steps",
            "100000",
            "--laq-steps",
            "2",
            "--ram-floor",
            str(floor),
        ),
        *("--output", str(chosen.out / "run")),
    ]
    with (chosen.out / "trainer.log").open("w") as log:
        trainer = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            return _follow(trainer.pid, leave, chosen.out)
        finally:
            trainer.kill()
            trainer.wait()


def _follow(trainer: int, leave_bytes: int, out: Path) -> int:
    calm = _seen(trainer, lambda one: len(one.lately.wait_ratios) >= 20)
    command = [sys.executable, "-c", _TAKER, str(leave_bytes), str(_MOST_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as neighbour:
        print(f"pid {neighbour.pid} takes memory", flush=True)
        known = {(move.at_s, move.why) for move in calm.moves}

        def is_short(one: Snapshot) -> bool:
            new = [move for move in one.moves if (move.at_s, move.why) not in known]
            return one.limited_by == "memory" and any("headroom" in move.why for move in new)

        _draw(_seen(trainer, is_short), out / "short")
        time.sleep(5)
        neighbour.communicate(b"\n")
    _draw(_seen(trainer, lambda one: one.state in ("GROW", "HOLD")), out / "back")
    return 0


def _seen(trainer: int, wanted: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot of the trainer's loader that is as wanted."""
    deadline = time.monotonic() + _LONGEST_S
    last: list[Snapshot] = []
    while time.monotonic() < deadline:
        last = [one for one in living_runs() if one.trainer_pid == trainer and one.split == "train"]
        if last and wanted(last[0]):
            return last[0]
        time.sleep(0.25)
    lines = [one.plain for run in last for one in draw_run([run], Frame(now_s=time.time()))]
    raise SystemExit("\n".join([f"not seen within {_LONGEST_S:.0f} s; last:", *lines]))


def _draw(moment: Snapshot, out: Path) -> None:
    """Write a snapshot and its picture."""
    out.with_suffix(".json").write_text(moment.to_json())
    console = Console(
        width=WIDTH,
        height=HEIGHT,
        record=True,
        force_terminal=True,
        file=io.StringIO(),
        color_system="truecolor",
    )
    lines: list[Text] = draw_run([moment], Frame(WIDTH, HEIGHT, moment.at_s + 0.5))
    for line in lines:
        console.print(line, soft_wrap=True)
    svg = console.export_svg(title="autoloader top")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # no network
    out.with_suffix(".svg").write_text(svg.replace("Fira Code", "DejaVu Sans Mono"))
    print(f"{out.with_suffix('.svg')}: {lines[1].plain}", flush=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium:
        page = out.with_suffix(".svg").absolute().as_uri()
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        wide, high = (round(float(one)) for one in size.groups()) if size else (1000, 650)
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--window-size={wide},{high}", f"--screenshot={out.with_suffix('.png')}", page),
            ],
            check=False,
            capture_output=True,
            timeout=120,
        )
        print(out.with_suffix(".png"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
