"""What a run's record and its metrics cost, and whether a batch is later for them.

    python -m bench.record_cost [--spec mix.yaml] [--seconds 20] [--pairs 5] [--json]

A consumer takes batches at a fixed pace from loaders that are opened in turns (without, with, with,
without, …). With: the record goes to a folder, metrics are served at a port and scraped there once
a second by another process. Told are:

- processor time of one line of the record, made and written, as a share of a core at one a second;
- processor time of one scrape (the moment taken over, the text made, the request answered), as a
  share of a core at one a second; both are measured here on what the running loader last said;
- how long the consumer waited for its batches, without and with: p50, p99 and the longest, and the
  median over pairs of turns of the difference of the p99s.

Not here: what ``top`` costs.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autoloader import AutoLoader
from autoloader.demo.build import ensure_demo
from autoloader.telemetry.exporter import Exporter
from autoloader.telemetry.run_log import RunLog
from autoloader.telemetry.runtime import living_runs
from autoloader.telemetry.snapshot import Snapshot
from bench.paced import PacedConsumer, options, p99, waits_told

_WARM_S = 5.0
_ROUNDS = 200
_SCRAPE = """
import sys, time, urllib.request
port, times, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for _ in range(times):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
    except OSError:
        pass
    time.sleep(pause_s)
"""


def main(arguments: list[str] | None = None) -> int:
    chosen = options("What a run's record and its metrics cost.").parse_args(arguments)
    spec = chosen.spec or ensure_demo()
    waits: dict[bool, list[list[float]]] = {False: [], True: []}
    moment: Snapshot | None = None
    for pair in range(chosen.pairs):
        for watched in (False, True) if pair % 2 == 0 else (True, False):
            with _asked_for(watched), AutoLoader(spec, ram_floor="1GB", output="numpy") as loader:
                consumer = PacedConsumer(loader, chosen.step_ms / 1e3)
                consumer.take(_WARM_S)
                waits[watched].append(consumer.take(chosen.seconds))
                own = [one for one in living_runs() if one.trainer_pid == os.getpid()]
                moment = own[0] if own else moment
    if moment is None:
        raise SystemExit("the loader said nothing of itself: take longer turns (--seconds)")
    told = {
        "load": os.getloadavg()[0],
        "datasets": len(moment.datasets),
        "turns_s": chosen.seconds,
        "pairs": chosen.pairs,
        "record_core_ratio": line_s(moment),
        "metrics_core_ratio": scrape_s(moment),
        "waits_ms": {"without": waits_told(waits[False]), "with": waits_told(waits[True])},
        "p99_difference_ms": statistics.median(
            p99(two) - p99(one) for one, two in zip(waits[False], waits[True], strict=True)
        ),
    }
    if chosen.json:
        print(json.dumps(told))
        return 0
    print(
        f"load {told['load']:.1f}, {chosen.pairs} pairs of {chosen.seconds:.0f} s, "
        f"{told['datasets']} datasets"
    )
    print(f"the record, a line a second: {told['record_core_ratio']:.3%} of a core")
    print(f"metrics, scraped every second: {told['metrics_core_ratio']:.3%} of a core")
    for name, turns in (("without", waits[False]), ("with", waits[True])):
        one = waits_told(turns)
        print(
            f"waits {name}: p50 {one['p50']:.2f}, p99 {one['p99']:.2f}, longest "
            f"{one['longest']:.2f} ms over {one['batches']} batches"
        )
    print(f"p99 with less without, median of pairs: {told['p99_difference_ms']:+.2f} ms")
    return 0


@contextmanager
def _asked_for(watched: bool) -> Iterator[None]:
    """The environment of a loader with record and metrics, which are scraped; or without both."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOLOADER_RUN_DIR"] = folder if watched else "off"
        # What is measured is the record of the run; the log of decisions is another one.
        os.environ["AUTOLOADER_DECISIONS"] = "/dev/null"
        scraper = None
        if watched:
            port = _free_port()
            os.environ["AUTOLOADER_METRICS_PORT"] = str(port)
            scraper = _scraper(port, 10**6, 1.0)
        try:
            yield
        finally:
            if scraper is not None:
                scraper.kill()
                scraper.wait()
            os.environ.clear()
            os.environ.update(before)


def _scraper(port: int, times: int, pause_s: float) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", _SCRAPE, str(port), str(times), str(pause_s)]
    return subprocess.Popen(words)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def line_s(moment: Snapshot) -> float:
    """Processor time of a line of the record, in seconds: of a run so young that each is kept."""
    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(Path(folder) / "run" / "train-0.jsonl", dict, list)
        log.write(moment)
        every = [_later(moment, second) for second in range(1, _ROUNDS + 1)]
        began = time.thread_time()
        for one in every:
            log.write(one)
        spent = (time.thread_time() - began) / _ROUNDS
        log.close()
    return spent


def scrape_s(moment: Snapshot) -> float:
    """Processor time of this process for a moment taken over and a scrape of it, in seconds."""
    port = _free_port()
    shown = Exporter("bench", 0, port=port)
    every = [_later(moment, second) for second in range(_ROUNDS)]
    scraper = _scraper(port, _ROUNDS, 0.02)
    began = time.process_time()
    for one in every:
        shown.write(one)
        time.sleep(0.02)
    scraper.wait()
    spent = (time.process_time() - began) / _ROUNDS
    shown.close()
    return spent


def _later(moment: Snapshot, seconds: int) -> Snapshot:
    """Another moment of the same run, in which all that moves has moved."""
    consumer = replace(moment.consumer, batches=moment.consumer.batches + 10 * seconds)
    datasets = {
        name: replace(one, samples=one.samples + seconds, queue=seconds % 9)
        for name, one in moment.datasets.items()
    }
    return replace(
        moment,
        at_s=moment.started_at_s + seconds,
        samples=moment.samples + 480 * seconds,
        consumer=consumer,
        datasets=datasets,
        memory=replace(moment.memory, headroom_bytes=2**33 + seconds),
        ring=replace(moment.ring, filled=seconds % 4),
    )


if __name__ == "__main__":
    sys.exit(main())
