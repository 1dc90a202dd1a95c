"""How long a frame keeps the interpreter: what bounds one process however many threads it has.

Theory of operation. With frames of 16×16 and one decode thread the child's user time is the
decoder's own, during which the interpreter is free, and Python's, during which it is held. The
decoder's is measured alone on the same frames, so the rest is what the interpreter is held for.
The kernel's time (reading, waking) is left out: no call to it holds the interpreter. What the
decoder's binding does before it lets go counts as the decoder's, so the figure is a little low.

Not here: how much more two processes give (``bench/scenarios/8-tiny.yaml``).
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np
import simplejpeg

from autoloader import AutoLoader
from bench.control.trainer import endless
from bench.data import ensure_data
from bench.endurance.claims import HELD, Circumstances, Claim
from bench.mixture import read_mixture
from bench.records import parse_example, read_records

WARM_BATCHES, BATCHES, ALONE_FRAMES = 20, 300, 20_000


def interpreter(_: Circumstances) -> list[Claim]:
    """What a frame costs beside its decoding, where frames are so small that it shows."""
    used, decoding = _held_per_frame()
    return [
        Claim(
            "16×16: child's user time, the decoder's, interpreter held",
            f"{used:.1f}, {decoding:.1f}, {used - decoding:.1f} µs/frame",
            "reported",
            None,
        )
    ]


def _held_per_frame() -> tuple[float, float]:
    """(user time of the child, of it the decoder's) in µs a frame."""
    spec = ensure_data("tiny")
    knobs = {"reader": "indexed", "decode_threads": 1}
    with AutoLoader(spec, **HELD, knobs=knobs) as opened:
        batches = endless(opened)
        for _ in range(WARM_BATCHES):
            next(batches)
        child, frames = opened.statistics().worker_pids[0], 0
        before = _user_s(child)
        for _ in range(BATCHES):
            shown = next(batches)["images"]["primary"]
            frames += shown.shape[0] * shown.shape[1]
        used = _user_s(child) - before
    return used / frames * 1e6, _decoding_us(spec)


def _decoding_us(spec: Path) -> float:
    """User time of decoding one frame, nothing around it."""
    mixture = read_mixture(spec)
    (dataset,) = mixture.datasets
    frames: list[bytes] = []
    for path, records in dataset.files:
        for record in itertools.islice(read_records(Path(path)), records):
            frames += parse_example(record, (dataset.image,))[dataset.image]
    out = np.empty((*mixture.size, 3), np.uint8)
    before = time.thread_time()
    for frame in itertools.islice(itertools.cycle(frames), ALONE_FRAMES):
        simplejpeg.decode_jpeg(frame, "RGB", fastdct=True, buffer=out)
    return (time.thread_time() - before) / ALONE_FRAMES * 1e6


def _user_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")
