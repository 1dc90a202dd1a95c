"""Holds every row against what plain TFDS reads of the same files, found by its provenance."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from plain_tfds import plain_episodes, text_at, value_at

from autoloader import AutoLoader


def write_table(folder: Path, datasets: Mapping[str, Path]) -> Path:
    """What TFDS reads of each dataset (by name), as a file for ``Witness``.

    Frames are those of ``observation/image`` as they lie, so they must need no resizing.
    """
    table: dict[str, str] = {}
    for name, path in datasets.items():
        info = json.loads((path / "dataset_info.json").read_text())
        lengths = next(int_list(s["shardLengths"]) for s in info["splits"] if s["name"] == "train")
        places = [(shard, record) for shard, n in enumerate(lengths) for record in range(n)]
        for (shard, record), steps in zip(places, plain_episodes(path, "train"), strict=True):
            for t, step in enumerate(steps):
                table[f"{name}/{shard}/{record}/{t}"] = _digest(
                    value_at(step, "observation/image"),
                    value_at(step, "action"),
                    value_at(step, "observation/state"),
                    text_at(step, "language_instruction"),
                )
    file = folder / "table.json"
    file.write_text(json.dumps(table))
    return file


def int_list(values: list[Any]) -> list[int]:
    return [int(value) for value in values]


class Witness:
    """Counts rows that are wrong, missing or came twice.

    Args:
        table: from ``write_table``.
        loader: whose batches they are; of whole datasets, without stride or windows.
    """

    def __init__(self, table: Path, loader: AutoLoader) -> None:
        self._table: dict[str, str] = json.loads(table.read_text())
        self._names = loader.dataset_names
        self._seen: collections.Counter[tuple[int, str]] = collections.Counter()
        self._sizes = collections.Counter(place.partition("/")[0] for place in self._table)
        self.rows = self.wrong = 0

    def note(self, batch: Mapping[str, Any]) -> None:
        for row, (index, pass_, shard, record, t) in enumerate(batch["provenance"].tolist()):
            place = f"{self._names[index]}/{shard}/{record}/{t}"
            found = _digest(
                np.asarray(batch["images"]["primary"][row, 0]),
                np.asarray(batch["action"][row, 0]),
                np.asarray(batch["state"][row, 0]),
                batch["language"][row],
            )
            self.rows += 1
            self.wrong += found != self._table.get(place)
            self._seen[pass_, place] += 1

    def passes(self) -> int:
        """Passes that every dataset has done."""
        last = collections.defaultdict(int)
        for pass_, place in self._seen:
            name = place.partition("/")[0]
            last[name] = max(last[name], pass_)
        return min(last[name] for name in self._names)

    def counts(self) -> dict[str, int]:
        """Rows, and how many of them were wrong, missing in a pass that is over, or came twice."""
        missing = 0
        begun = {(pass_, place.partition("/")[0]) for pass_, place in self._seen}
        for pass_, name in begun:
            if (pass_ + 1, name) in begun:
                found = sum(1 for p, s in self._seen if p == pass_ and s.startswith(f"{name}/"))
                missing += self._sizes[name] - found
        twice = sum(count - 1 for count in self._seen.values())
        return {"rows": self.rows, "wrong": self.wrong, "missing": missing, "twice": twice}


def _digest(image: Any, action: Any, state: Any, text: str) -> str:
    parts = hashlib.blake2b(digest_size=12)
    for values, kind in ((image, np.uint8), (action, np.float32), (state, np.float32)):
        parts.update(np.ascontiguousarray(values, kind).tobytes())
    parts.update(text.encode())
    return parts.hexdigest()
