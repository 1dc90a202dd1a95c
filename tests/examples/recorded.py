"""Runs ``train_bc.py`` and writes down the batches that it was given, told to stop at one of them.

    python recorded.py FOLDER STOP train_bc.py mix.yaml …

``FOLDER/RANK.json`` gets the digests of every row of every batch. At batch ``STOP`` (0: at none)
the last rank is told to stop, as SLURM tells a job whose time is over: by SIGTERM.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autoloader
from autoloader import AutoLoader, Batch


def digests(batch: Batch) -> list[str]:
    """Of each row: all that the batch holds of it."""

    def bytes_of(part: Any, row: int) -> Iterator[bytes]:
        if isinstance(part, dict):
            for name in sorted(part):
                yield from bytes_of(part[name], row)
        else:
            one = part[row]
            yield one.encode() if isinstance(one, str) else one.numpy().tobytes()

    return [
        hashlib.sha256(b"".join(bytes_of(dict(batch), row))).hexdigest()
        for row in range(len(batch["language"]))
    ]


def main(folder: str, stop: str, script: str, *words: str) -> None:
    seen: list[list[str]] = []

    class Recorded(AutoLoader):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                seen.append(digests(batch))
                if len(seen) == int(stop) and self.rank == self.world_size - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    before = sys.argv, {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    autoloader.AutoLoader = Recorded  # type: ignore[misc]
    sys.argv = [script, *words]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        autoloader.AutoLoader = AutoLoader  # type: ignore[misc]
        sys.argv = before[0]
        sys.path.remove(str(Path(script).parent))
        for number, handler in before[1].items():
            signal.signal(number, handler)
        rank = os.environ.get("RANK", "0")
        (Path(folder) / f"{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
